"""Rotary positions: their settings read from and written to Hugging Face dictionaries, and the frequencies they give.

Axes: h head size.
"""

import math
from dataclasses import dataclass

import numpy as np

from remem_jax.errors import RememError


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pre-training."""

    kind: str
    """`linear`, `llama3` or `yarn`."""
    factor: float
    """By how much the context is stretched."""
    original_positions: int = 0
    """Context of pre-training (llama3, yarn)."""
    low_freq_factor: float = 1.0
    """llama3: wave lengths above original_positions / this are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: wave lengths below original_positions / this stay."""
    beta_fast: float = 32.0
    """yarn: frequencies that turn more often than this within original_positions stay."""
    beta_slow: float = 1.0
    """yarn: frequencies that turn less often than this are stretched in full."""
    attention_factor: float | None = None
    """yarn: multiplies cosine and sine; None means 0.1 ln(factor) + 1."""
    truncate: bool = True
    """yarn: round the borders of the ramp outwards to whole dimensions."""


def from_hf(d: dict, *, default_positions: int) -> tuple[float, RopeScaling | None, int]:
    """Base, scaling and context limit, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4).

    The limit is max_position_embeddings; with YaRN it is at least original * factor, since Qwen's instructions add the
    scaling to config.json and leave max_position_embeddings at the original.
    """
    positions = d.get("max_position_embeddings") or default_positions
    rope = {k: v for k, v in (d.get("rope_parameters") or d.get("rope_scaling") or {}).items() if v is not None}
    if any(isinstance(value, dict) for value in rope.values()):
        raise RememError(f"unsupported rotary settings that differ by layer: {', '.join(sorted(rope))}")
    theta = float(rope.get("rope_theta") or d.get("rope_theta") or 10000.0)
    partial = rope.get("partial_rotary_factor") or d.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise RememError(f"unsupported partial rotary positions: partial_rotary_factor must be 1, found {partial}")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None, positions
    if kind not in ("linear", "llama3", "yarn"):
        raise RememError(f"unsupported rotary scaling {kind}: supported are default, linear, llama3, yarn")
    original = rope.get("original_max_position_embeddings") or d.get("original_max_position_embeddings") or positions
    factor = rope.get("factor") or (positions / original if kind == "yarn" else None)
    if factor is None:
        raise RememError(f"rotary scaling {kind}: expected a factor, found none; add it to rope_scaling in config.json")
    if kind == "linear":
        return theta, RopeScaling(kind, float(factor)), positions
    if kind == "llama3":
        low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
        return theta, RopeScaling(kind, float(factor), int(original), low, high), positions
    scaling = RopeScaling(
        kind,
        float(factor),
        int(original),
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        attention_factor=_yarn_attention_factor(rope, factor),
        truncate=bool(rope.get("truncate", True)),
    )
    return theta, scaling, max(positions, int(original * factor))


def _yarn_attention_factor(rope: dict, factor: float) -> float | None:
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return _yarn_mscale(factor, rope["mscale"]) / _yarn_mscale(factor, rope["mscale_all_dim"])
    return None


def _yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def to_hf(scaling: RopeScaling) -> dict:
    d: dict = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return d
    d["original_max_position_embeddings"] = scaling.original_positions
    if scaling.kind == "llama3":
        return d | {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    d |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
    return d if scaling.attention_factor is None else d | {"attention_factor": scaling.attention_factor}


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> tuple[np.ndarray, float]:
    """Rotary angle per position, float32 `[h/2]`, and the factor on cosine and sine (1 but for YaRN).

    Computed in float32 as transformers does: at position 100,000 the last bit of a frequency is visible.

    References: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071) section 3; Llama 3.1's published scaling rule.
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    period = np.float32(theta) ** exponent
    inv_freq = np.float32(1.0) / period
    if scaling is None:
        return inv_freq, 1.0
    stretched = inv_freq / np.float32(scaling.factor)
    if scaling.kind == "linear":
        return stretched, 1.0
    if scaling.kind == "llama3":
        turns = np.float32(scaling.original_positions) * inv_freq / np.float32(2 * math.pi)
        keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        keep = np.clip(keep, 0, 1).astype(np.float32)
        return (1 - keep) * stretched + keep * inv_freq, 1.0
    keep = _yarn_keep(head_dim, theta, scaling)
    scale = scaling.attention_factor if scaling.attention_factor is not None else _yarn_mscale(scaling.factor)
    return (1 - keep) * stretched + keep * inv_freq, scale


def _yarn_keep(head_dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """Share of each frequency that stays, float32 `[h/2]`: 1 for fast dimensions, 0 for slow ones, a ramp between."""

    def dimension(turns: float) -> float:
        """The dimension that turns this often within the original context."""
        ratio = scaling.original_positions / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(width)
    return np.float32(1) - np.clip(ramp, 0, 1)
