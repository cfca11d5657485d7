"""A tiny random model with a byte tokenizer, so that code around a model can be tested in seconds, without a download.

The model's words mean nothing; what it computes is as exact as any other's, and the same for the same seed.

Axes: D hidden, F feed-forward, H query heads, K key/value heads, h head size, L layers, V vocabulary.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.model.config import ModelConfig, Spec, parameter_tree
from remem_jax.model.load import Model
from remem_jax.token_rules import cut_ids, valid_text

SPECIAL = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>")
_FIRST_SPECIAL = 256
_ANY_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


class DummyTokenizer:
    """A `Tokenizer`: ids 0-255 are the bytes of UTF-8, then the strings of `SPECIAL`; a reply ends with `<|end|>`."""

    vocab_size = _FIRST_SPECIAL + len(SPECIAL)
    eos_ids = (_FIRST_SPECIAL + 1,)
    special_ids = frozenset(range(_FIRST_SPECIAL, _FIRST_SPECIAL + len(SPECIAL)))
    bos_id = _FIRST_SPECIAL
    fingerprint = "dummy"

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        ids = []
        for part in _ANY_SPECIAL.split(text) if special else [text]:
            one_special = special and part in SPECIAL
            ids += [_FIRST_SPECIAL + SPECIAL.index(part)] if one_special else valid_text(part).encode("utf-8")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(_bytes, ids)).decode("utf-8", "replace")

    def show(self, ids: Sequence[int]) -> str:
        shown = b"".join(_bytes(i) or SPECIAL[i - _FIRST_SPECIAL].encode() for i in ids)
        return shown.decode("utf-8", "replace")

    def chat(self) -> tuple[list[int], list[int]]:
        head, tail = "<|begin|><|user|>", "<|end|><|assistant|>"
        return self.encode(head, special=True), self.encode(tail, special=True)

    def cut(self, ids: Sequence[int], limit: int) -> list[int]:
        return cut_ids(ids, limit, _bytes)


def _bytes(token: int) -> bytes:
    return bytes([token]) if token < _FIRST_SPECIAL else b""


def tiny_config(family: str = "llama", **changes) -> ModelConfig:
    """A decoder of 2 layers (D 32, F 48, H 4, K 2, h 8) over `DummyTokenizer`'s ids.

    Args:
        family: `llama`, `mistral`, `qwen2` (biases) or `qwen3` (normed query and key heads).
        changes: fields of `ModelConfig` that should differ.
    """
    fields: dict = {
        "model_type": family,
        "vocab_size": DummyTokenizer.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_embeddings": False,
        "qkv_bias": family == "qwen2",
        "o_bias": False,
        "qk_norm": family == "qwen3",
        "max_positions": 8192,
        "eos_ids": DummyTokenizer.eos_ids,
    }
    return ModelConfig(**fields | changes)


def tiny_model(seed: int = 0, *, family: str = "llama", stacked: bool = False, **changes) -> Model:
    """A float32 model of `tiny_config(family, **changes)` with random weights.

    They are larger than a fresh model's, biases and norms included: each layer matters, attention is not uniform, and
    the next token is neither certain nor anyone's guess.
    """
    config = tiny_config(family, **changes)
    numbers = np.random.default_rng(seed)

    def spread(spec: Spec) -> np.ndarray:
        noise = numbers.normal(size=spec.shape).astype(np.float32)
        if len(spec.shape) == 1:
            return 0.2 * noise + np.float32(spec.init == "ones")
        # The embedding is wide, unless it is the head too: then every token would repeat itself.
        wide = spec.hf_name.endswith("embed_tokens.weight") and not config.tie_embeddings
        return noise if wide else noise * np.float32(spec.shape[1] ** -0.5)

    params = jax.tree.map(spread, parameter_tree(config))
    if stacked:
        params["layers"] = jax.tree.map(lambda *leaves: np.stack(leaves), *params["layers"])
    params = jax.tree.map(jnp.asarray, params)
    return Model(config, params, DummyTokenizer(), jnp.dtype("float32"), Path("tiny"))
