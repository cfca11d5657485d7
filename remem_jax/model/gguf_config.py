"""What a GGUF header says about a model, in the words of a Hugging Face config.json, and tensor names likewise.

Numbers that the header leaves out get llama.cpp's defaults; what can't be expressed is refused by name.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from remem_jax.errors import RememError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
# The header names one end token; chat models end a reply with any of these.
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>")


def hf_tensor_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; a name without one stays as it is."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_INNER[part]}.{kind}" if part in _INNER else name
    part, _, kind = name.rpartition(".")
    return f"{_OUTER[part]}.{kind}" if part in _OUTER else name


def required(path: Path, metadata: Mapping[str, Any], key: str) -> Any:
    """A metadata value that must be there."""
    if key not in metadata:
        raise RememError(f"{path} lacks the metadata entry {key}: the file is damaged or not a language model")
    return metadata[key]


def eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end a reply: those named in the header first, then well-known control tokens of the vocabulary."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [metadata[f"tokenizer.ggml.{key}"] for key in keys if f"tokenizer.ggml.{key}" in metadata]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type", ())
    known = [i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind == _CONTROL and token in _ENDS]
    return tuple(dict.fromkeys(named + known))


def config_of(
    path: Path, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], factors: np.ndarray | None
) -> dict[str, Any]:
    """config.json dictionary from metadata, tensor shapes by Hugging Face name, and rope_freqs (`[h/2]`, or None)."""
    architecture = required(path, metadata, "general.architecture")

    def value(key: str, *default: Any) -> Any:
        key = f"{architecture}.{key}"
        return metadata.get(key, *default) if default else required(path, metadata, key)

    if value("expert_count", 0):
        raise RememError(f"{path} is a mixture of {value('expert_count')} experts: only dense models are supported")
    heads, hidden = value("attention.head_count"), value("embedding_length")
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(value(key, 0), list):
            raise RememError(f"{path} has a {key} for each layer: only models whose layers are alike are supported")
    if heads < 1:
        raise RememError(f"{path} has {heads} attention heads: the file is damaged; fetch it again")
    head_dim = value("attention.key_length", hidden // heads)
    rotated = value("rope.dimension_count", head_dim)
    if rotated != head_dim or value("attention.value_length", head_dim) != head_dim:
        raise RememError(f"{path} rotates {rotated} of {head_dim} key numbers: expected all, with values as long")
    embed = "model.embed_tokens.weight"
    if embed not in shapes:
        raise RememError(f"{path} lacks the tensor token_embd.weight: the file is damaged or not a language model")
    return {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": shapes[embed][0],
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(path, value, head_dim, factors),
        "attention_bias": architecture == "llama" and "model.layers.0.self_attn.q_proj.bias" in shapes,
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(eos_ids(metadata)),
    }


def _rope_scaling(path: Path, value: Any, head_dim: int, factors: np.ndarray | None) -> dict[str, Any] | None:
    """RoPE scaling from the metadata, or from a tensor of frequency divisors, which Llama 3.1 files carry instead."""
    old = value("rope.scale_linear", 1.0)  # the entry of files from before rope.scaling.*
    kind = value("rope.scaling.type", "linear")
    factor = value("rope.scaling.factor", old)
    if factors is not None:
        return _llama3_scaling(path, value("rope.freq_base", 10000.0), head_dim, factors)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = value("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise RememError(f"{path} scales RoPE by {kind}: supported are linear, yarn and Llama 3's frequencies")


def _llama3_scaling(path: Path, theta: float, head_dim: int, factors: np.ndarray) -> dict[str, Any]:
    """The Llama 3 rule whose frequency divisors (`[h/2]`) these are; refused where they follow another rule.

    A divisor is 1 for wavelengths under original/high, `factor` over original/low, and blends in between. All published
    Llama 3.1 to 3.3 models have low 1, high 4 and original 8192, so the greatest divisor tells the rest.
    """
    factor, low, high, original = round(float(factors.max()), 4), 1.0, 4.0, 8192
    cycles = original / (2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim))
    share = np.clip((cycles - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - share) / factor + share)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise RememError(f"{path} holds rope_freqs that are not Llama 3's rule (low 1, high 4, 8192): not supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
