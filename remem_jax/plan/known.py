"""What a plan knows without a network: TPU chips by their published figures, and the sizes of Qwen2.5 models."""

import re
from dataclasses import dataclass

from remem_jax.errors import RememError
from remem_jax.model.config import ModelConfig


@dataclass(frozen=True)
class Chip:
    """Published figures of one chip (docs.cloud.google.com/tpu/docs, the page of each version), but for `gib`."""

    flops: float
    """Peak bfloat16 FLOP/s."""
    gib: float
    """Memory of one device that a program may use, in GiB: what libtpu 0.0.42.1 names when it refuses one."""
    hbm_bandwidth: float
    """Bytes a second."""
    link_bandwidth: float
    """Bytes a second between chips, all links of a chip together."""
    axes: int
    """Dimensions of a topology."""
    devices: int = 1
    """Devices of a chip, as JAX sees them."""


CHIPS = {
    "v4": Chip(275e12, 15.25, 1228e9, 2400e9 / 8, 3, devices=2),
    "v5e": Chip(197e12, 15.75, 819e9, 1600e9 / 8, 2),
    "v5p": Chip(459e12, 95.74, 2765e9, 4800e9 / 8, 3),
    "v6e": Chip(918e12, 31.25, 1640e9, 3584e9 / 8, 2),
    "tpu7x": Chip(2307e12, 94.75, 7380e9, 9600e9 / 8, 3, devices=2),
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology name such as `v5e:8x8`; raises RememError for a name that is none."""
    name, _, shape = topology.partition(":")
    examples = "v5e:8x8, v6e:8x8, v5p:4x4x4, v4:4x4x4 or tpu7x:4x4x4"
    if name not in CHIPS:
        raise RememError(
            f"topology: expected a chip of {', '.join(CHIPS)}, such as {examples}, found {topology or 'nothing'}"
        )
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) or shape.count("x") + 1 != CHIPS[name].axes:
        raise RememError(
            f"topology: expected {name}: and {CHIPS[name].axes} sizes, such as {examples}, found {topology}"
        )
    return CHIPS[name]


def _qwen(hidden: int, feed_forward: int, layers: int, heads: int, kv: int, size: int, vocabulary: int, tied: bool):
    return ModelConfig(
        model_type="qwen2",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=size,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        tie_embeddings=tied,
        qkv_bias=True,
        o_bias=False,
        qk_norm=False,
        max_positions=32768,
        eos_ids=(),
    )


MODELS = {
    "Qwen2.5-0.5B": _qwen(896, 4864, 24, 14, 2, 64, 151936, True),
    "Qwen2.5-1.5B": _qwen(1536, 8960, 28, 12, 2, 128, 151936, True),
    "Qwen2.5-3B": _qwen(2048, 11008, 36, 16, 2, 128, 151936, True),
    "Qwen2.5-7B": _qwen(3584, 18944, 28, 28, 4, 128, 152064, False),
}


def known_model(name: str) -> ModelConfig | None:
    """The sizes of `Qwen/Qwen2.5-7B-Instruct` and its like; None for other names."""
    return MODELS.get(re.sub(r"-Instruct$", "", name.rpartition("/")[2]))
