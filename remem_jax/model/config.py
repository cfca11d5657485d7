"""What a decoder is: its sizes and switches, from and to Hugging Face dictionaries, and one list of its parameters.

Four families differ only in the values of `ModelConfig`: qwen2, qwen3 (dense), llama (Llama 3, SmolLM2) and mistral.

Axes: V vocabulary, D hidden, F feed-forward, H query heads, K key/value heads, h head size, L layers.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from remem_jax.errors import RememError
from remem_jax.model import rope
from remem_jax.model.rope import RopeScaling


@dataclass(frozen=True)
class ModelConfig:
    """A decoder; hashable, so it can be static under jit. Every size is checked when it is made."""

    model_type: str
    """`qwen2`, `qwen3`, `llama` or `mistral`."""
    vocab_size: int
    """V, rows of the embedding (may exceed the tokenizer's ids)."""
    hidden_size: int
    """D."""
    intermediate_size: int
    """F."""
    num_layers: int
    """L."""
    num_heads: int
    """H."""
    num_kv_heads: int
    """K; divides H."""
    head_dim: int
    """h; even, not always D / H."""
    rms_norm_eps: float
    """Added to the mean square in every norm."""
    rope_theta: float
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None
    """None: frequencies as they are."""
    tie_embeddings: bool
    """The head is the embedding."""
    qkv_bias: bool
    """Query, key and value projections add a bias."""
    o_bias: bool
    """The output projection adds a bias."""
    qk_norm: bool
    """Query and key heads are RMS-normed before rotation (Qwen3)."""
    max_positions: int
    """Context limit. An active sliding window lowers it to the window, within which full attention is exact."""
    eos_ids: tuple[int, ...]
    """Ids that end a text."""
    sliding_window: int | None = None
    """The active sliding window, kept for export only: no text may be longer (see max_positions)."""

    def __post_init__(self):
        for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, field) < 1:
                raise RememError(f"model configuration: {field} must be at least 1, found {getattr(self, field)}")
        if self.num_heads % self.num_kv_heads:
            raise RememError(
                f"model configuration: {self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads "
                "evenly; num_attention_heads must be a multiple of num_key_value_heads"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise RememError(f"model configuration: head_dim must be even for rotary positions, found {self.head_dim}")
        if self.max_positions < 1:
            raise RememError(f"model configuration: the context must be at least 1 token, found {self.max_positions}")


@dataclass(frozen=True)
class Spec:
    """One parameter. A frozen dataclass, not a tuple, so that a tree of these has Specs as leaves."""

    shape: tuple[int, ...]
    """Hugging Face orientation: [out, in]."""
    axes: tuple[str, ...]
    """Logical axis of each dimension: vocab, embed, heads, kv, ff, head_dim, layers, rank."""
    hf_name: str
    """Name in a checkpoint; a layer's own has `{layer}` for its number."""
    init: str
    """`normal`, `ones` or `zeros`."""


_ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
}
_DEFAULT_POSITIONS = {"qwen2": 32768, "qwen3": 32768, "llama": 2048, "mistral": 131072}
SUPPORTED = "qwen2 (Qwen2, Qwen2.5), qwen3 (dense), llama (Llama 3, SmolLM2), mistral"
_REFUSED_WHEN_SET = {
    "mlp_bias": "biases in the feed-forward layers",
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "quantization_config": "quantised weights (load the unquantised checkpoint, or a GGUF file)",
}


def from_hf(d: dict) -> ModelConfig:
    """`ModelConfig` of a config.json dictionary in the form of transformers 4 or 5.

    Raises:
        RememError: the architecture, the activation or the rotary scaling is not one of ours, or a size is missing.
    """
    model_type = d.get("model_type")
    if model_type not in _ARCHITECTURES:
        found = model_type or "/".join(d.get("architectures") or []) or "none named"
        raise RememError(f"unsupported architecture {found}: supported are {SUPPORTED}")
    for key, what in _REFUSED_WHEN_SET.items():
        if d.get(key):
            raise RememError(f"unsupported {model_type} model: {what} ({key} = {str(d[key])[:40]})")
    if d.get("hidden_act", "silu") not in ("silu", "swish"):
        raise RememError(f"unsupported activation {d['hidden_act']} in a {model_type} model: supported is silu")
    hidden, layers, heads = (_size(d, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    default_kv_heads = 8 if model_type == "mistral" and "num_key_value_heads" not in d else heads
    theta, scaling, positions = rope.from_hf(d, default_positions=_DEFAULT_POSITIONS[model_type])
    window = _sliding_window(d, model_type, layers)
    bias = bool(d.get("attention_bias", False)) and model_type in ("llama", "qwen3")
    return ModelConfig(
        model_type=model_type,
        vocab_size=_size(d, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(d, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=d.get("num_key_value_heads") or default_kv_heads,
        head_dim=_head_dim(d, model_type, hidden, heads),
        rms_norm_eps=float(d.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_embeddings=bool(d.get("tie_word_embeddings", False)),
        qkv_bias=bias or model_type == "qwen2",
        o_bias=bias,
        qk_norm=model_type == "qwen3",
        max_positions=min(positions, window or positions),
        eos_ids=eos_ids(d.get("eos_token_id")),
        sliding_window=window,
    )


def to_hf(config: ModelConfig) -> dict:
    """The config.json dictionary of a configuration, in the rotary form that transformers 4 and 5 and servers read.

    The context limit is written as max_position_embeddings; a sliding window is written for every layer, which is the
    same model for every text within it.
    """
    family = config.model_type
    uniform_bias = family in ("llama", "qwen3") and config.qkv_bias == config.o_bias
    fixed_bias = {"qwen2": (True, False), "mistral": (False, False)}.get(family) == (config.qkv_bias, config.o_bias)
    if not (uniform_bias or fixed_bias) or config.qk_norm != (family == "qwen3"):
        raise RememError(
            f"a {family} model with qkv_bias={config.qkv_bias}, o_bias={config.o_bias}, qk_norm={config.qk_norm} "
            "has no Hugging Face form"
        )
    d = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if config.rope_scaling is not None:
        d["rope_scaling"] = rope.to_hf(config.rope_scaling)
    if config.eos_ids:
        first, *more = config.eos_ids
        d["eos_token_id"] = [first, *more] if more else first
    if family in ("llama", "qwen3"):
        d["attention_bias"] = config.qkv_bias
    if family == "mistral":
        d["sliding_window"] = config.sliding_window
    if family in ("qwen2", "qwen3") and config.sliding_window is not None:
        d |= {"use_sliding_window": True, "sliding_window": config.sliding_window, "max_window_layers": 0}
    return d


def eos_ids(*values: int | list[int] | None) -> tuple[int, ...]:
    """The distinct ids of several `eos_token_id` entries, in order of appearance."""
    ids = [i for value in values for i in ([] if value is None else [value] if isinstance(value, int) else value)]
    return tuple(dict.fromkeys(ids))


def _size(d: dict, key: str) -> int:
    value = d.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RememError(f"model configuration: expected a whole number for {key}, found {value!r}")
    return value


def _head_dim(d: dict, model_type: str, hidden: int, heads: int) -> int:
    if d.get("head_dim"):
        return _size(d, "head_dim")
    if model_type == "qwen3":
        return 128
    if heads < 1 or hidden % heads:
        raise RememError(f"model configuration: hidden_size {hidden} does not divide into {heads} attention heads")
    return hidden // heads


def _sliding_window(d: dict, model_type: str, layers: int) -> int | None:
    """The window that limits some layer, or None."""
    if model_type == "llama":
        return None
    if model_type == "mistral":
        return d.get("sliding_window", 4096)
    if not d.get("use_sliding_window", False):
        return None
    kinds = d.get("layer_types")
    slides = "sliding_attention" in kinds if kinds is not None else d.get("max_window_layers", 28) < layers
    return d.get("sliding_window", 4096) if slides else None


def rope_frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """Rotary angle per position, float32 `[h/2]`, and the factor on cosine and sine (1 but for YaRN)."""
    return rope.frequencies(config.head_dim, config.rope_theta, config.rope_scaling)


def parameter_specs(config: ModelConfig) -> dict[tuple[str, ...], Spec]:
    """Every parameter by its path, those of one layer under `("layers", name)`: the only list there is."""
    c, block = config, "model.layers.{layer}."
    heads, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    specs: dict[tuple[str, ...], Spec] = {}
    specs["embed",] = Spec((c.vocab_size, c.hidden_size), ("vocab", "embed"), "model.embed_tokens.weight", "normal")

    def layer(name: str, shape: tuple[int, ...], axes: tuple[str, ...], hf_name: str, init: str = "normal") -> None:
        specs["layers", name] = Spec(shape, axes, block + hf_name, init)

    layer("attn_norm", (c.hidden_size,), ("embed",), "input_layernorm.weight", "ones")
    layer("q", (heads, c.hidden_size), ("heads", "embed"), "self_attn.q_proj.weight")
    layer("k", (kv, c.hidden_size), ("kv", "embed"), "self_attn.k_proj.weight")
    layer("v", (kv, c.hidden_size), ("kv", "embed"), "self_attn.v_proj.weight")
    layer("o", (c.hidden_size, heads), ("embed", "heads"), "self_attn.o_proj.weight")
    if c.qkv_bias:
        layer("q_bias", (heads,), ("heads",), "self_attn.q_proj.bias", "zeros")
        layer("k_bias", (kv,), ("kv",), "self_attn.k_proj.bias", "zeros")
        layer("v_bias", (kv,), ("kv",), "self_attn.v_proj.bias", "zeros")
    if c.o_bias:
        layer("o_bias", (c.hidden_size,), ("embed",), "self_attn.o_proj.bias", "zeros")
    if c.qk_norm:
        layer("q_norm", (c.head_dim,), ("head_dim",), "self_attn.q_norm.weight", "ones")
        layer("k_norm", (c.head_dim,), ("head_dim",), "self_attn.k_norm.weight", "ones")
    layer("mlp_norm", (c.hidden_size,), ("embed",), "post_attention_layernorm.weight", "ones")
    layer("gate", (c.intermediate_size, c.hidden_size), ("ff", "embed"), "mlp.gate_proj.weight")
    layer("up", (c.intermediate_size, c.hidden_size), ("ff", "embed"), "mlp.up_proj.weight")
    layer("down", (c.hidden_size, c.intermediate_size), ("embed", "ff"), "mlp.down_proj.weight")
    specs["norm",] = Spec((c.hidden_size,), ("embed",), "model.norm.weight", "ones")
    if not c.tie_embeddings:
        specs["head",] = Spec((c.vocab_size, c.hidden_size), ("vocab", "embed"), "lm_head.weight", "normal")
    return specs


def parameter_tree(config: ModelConfig, *, stacked: bool = False) -> dict:
    """The parameters' tree with a `Spec` at each leaf: map over it for shapes, shardings, initialisers and names.

    Not stacked, `layers` is a tuple of L dictionaries and every name is complete. Stacked, it is one dictionary whose
    shapes start with L, whose axes start with `layers`, and whose names keep `{layer}`.
    """
    specs = parameter_specs(config)
    tree: dict = {path[0]: spec for path, spec in specs.items() if len(path) == 1}
    block = {path[1]: spec for path, spec in specs.items() if len(path) == 2}
    if stacked:
        tree["layers"] = {
            name: dataclasses.replace(spec, shape=(config.num_layers, *spec.shape), axes=("layers", *spec.axes))
            for name, spec in block.items()
        }
    else:
        tree["layers"] = tuple(
            {name: dataclasses.replace(s, hf_name=s.hf_name.format(layer=i)) for name, s in block.items()}
            for i in range(config.num_layers)
        )
    return tree


def count_parameters(config: ModelConfig) -> int:
    """How many numbers the model has; a tied head counts once."""
    return sum(
        math.prod(spec.shape) * (config.num_layers if len(path) == 2 else 1)
        for path, spec in parameter_specs(config).items()
    )
