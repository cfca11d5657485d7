"""The decoder: one Linen block for every family, run over packed rows (`forward`) or one token a row (`decode_step`).

Everything but attention sees flat tokens `[M, D]`; the caller's `attend` is all that differs between the two.

Axes: `N` rows (questions), `G` suffixes of a row, `T` tokens of a row, `M` flat tokens, `D` hidden, `F` feed-forward,
`H` query heads, `K` key heads, `h` head size, `V` vocabulary, `L` layers, `P` prefix slot, `S` own cache slots.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Float, Int

from remem_jax.mesh import constrain, per_shard
from remem_jax.model.attention import decode_attention, packed_attention
from remem_jax.model.config import ModelConfig, parameter_specs, rope_frequencies
from remem_jax.model.packing import PackedRows, plain_rows

Params = dict[str, Any]
KeyValue = tuple[jax.Array, jax.Array]
INITIALISERS = {
    "normal": nn.initializers.normal(0.02),
    "ones": nn.initializers.ones_init(),
    "zeros": nn.initializers.zeros_init(),
}


def linear(x: Float[Array, "M I"], w: Float[Array, "O I"], bias: Float[Array, "O"] | None = None):
    """`x @ w.T + bias`; float32 weights multiply at the highest precision."""
    precision = jax.lax.Precision.HIGHEST if w.dtype == jnp.float32 else None
    out = jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())), precision=precision)
    return out if bias is None else out + bias


def rms_norm(x: Float[Array, "*B D"], weight: Float[Array, "D"], eps: float):
    """Root-mean-square norm in float32."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + jnp.float32(eps))
    return wide.astype(x.dtype) * weight


def rope_tables(config: ModelConfig, positions: Int[Array, "M"]) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine `[M, h/2]`, float32, YaRN's factor applied."""
    frequencies, factor = rope_frequencies(config)
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(frequencies)
    return jnp.cos(angles) * jnp.float32(factor), jnp.sin(angles) * jnp.float32(factor)


def rotate(x: Float[Array, "M H h"], cos, sin):
    """Rotary positions, first half paired with second half, in float32."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Block(nn.Module):
    """One decoder layer on flat tokens; its parameters are those `parameter_specs` lists under `layers`.

    A weight `name` with parameters `name_lora_a [r, I]` and `name_lora_b [O, r]` beside it acts as `w + b @ a`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "M D"], cos, sin, attend: Callable) -> tuple[jax.Array, Any]:
        """The layer's output, and what `attend(q [M, H, h], k [M, K, h], v [M, K, h]) -> (out [M, H, h], aux)` adds."""
        c = self.config
        w = {
            path[1]: self.param(path[1], INITIALISERS[spec.init], spec.shape)
            for path, spec in parameter_specs(c).items()
            if len(path) == 2
        }

        def project(x, name: str):
            out = linear(x, w[name], w.get(f"{name}_bias"))
            a, b = (self.get_variable("params", f"{name}_lora_{side}") for side in "ab")
            return out if a is None else out + linear(linear(x, a), b)

        y = rms_norm(x, w["attn_norm"], c.rms_norm_eps)
        q = constrain(project(y, "q").reshape(-1, c.num_heads, c.head_dim), "batch", "heads", None)
        k = constrain(project(y, "k").reshape(-1, c.num_kv_heads, c.head_dim), "batch", "kv", None)
        v = constrain(project(y, "v").reshape(-1, c.num_kv_heads, c.head_dim), "batch", "kv", None)
        if c.qk_norm:
            q, k = rms_norm(q, w["q_norm"], c.rms_norm_eps), rms_norm(k, w["k_norm"], c.rms_norm_eps)
        out, aux = attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        out = constrain(out, "batch", "heads", None)
        x = constrain(x + project(out.reshape(-1, c.num_heads * c.head_dim), "o"), "batch", None)
        y = rms_norm(x, w["mlp_norm"], c.rms_norm_eps)
        wide = constrain(nn.silu(project(y, "gate")) * project(y, "up"), "batch", "ff")
        return constrain(x + project(wide, "down"), "batch", None), aux


def embed(params: Params, tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
    """Rows of the embedding."""
    return jnp.take(params["embed"], tokens, axis=0, mode="clip")


def head_logits(params: Params, hidden: Float[Array, "M D"]) -> Float[Array, "M V"]:
    """Logits in float32 of final hidden states."""
    weight = params.get("head", params["embed"])
    precision = jax.lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None
    dims = (((1,), (1,)), ((), ()))
    out = jax.lax.dot_general(hidden, weight, dims, precision=precision, preferred_element_type=jnp.float32)
    return constrain(out, "batch", "vocab")


def forward(
    params: Params, config: ModelConfig, rows: PackedRows, *, backend: str | None = None, return_kv: bool = False
) -> tuple[Float[Array, "N T D"], list[KeyValue] | None]:
    """Final hidden states of packed rows, and each layer's keys and values `[N, T, K, h]` when asked for.

    Layers given as a tuple are unrolled; layers stacked in `[L, ...]` arrays are scanned with rematerialisation, which
    is the form for training.
    """
    n, t = rows.tokens.shape
    x = constrain(embed(params, rows.tokens.reshape(-1)), "batch", None)
    cos, sin = rope_tables(config, rows.positions.reshape(-1))

    def attend(q, k, v):
        q, k, v = (a.reshape(n, t, *a.shape[1:]) for a in (q, k, v))
        out = packed_attention(
            q, k, v, rows.start, rows.valid, prefix_slot=rows.prefix_slot, band=rows.band, backend=backend
        )
        return out.reshape(n * t, *out.shape[2:]), ((k, v) if return_kv else None)

    def layer(x, weights):
        return Block(config).apply({"params": weights}, x, cos, sin, attend)

    if isinstance(params["layers"], dict):
        x, stacked = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        kv = [(k, v) for k, v in zip(*stacked, strict=True)] if return_kv else None
    else:
        kv = []
        for weights in params["layers"]:
            x, own = layer(x, weights)
            kv.append(own)
    x = rms_norm(x, params["norm"], config.rms_norm_eps)
    return x.reshape(n, t, -1), (kv if return_kv else None)


@struct.dataclass
class Cache:
    """Keys and values for decoding, in two parts, one buffer a layer.

    Attributes:
        prefix: a layer's `(k, v)`, each `[N, K, P, h]`, shared by a group; an empty tuple when there is no prefix.
        prefix_lengths: `[N]` int32.
        own: a layer's `(k, v)`, each `[N, G, K, S, h]`; suffixes end at one slot, so that all rows write the same slot.
        first: `[N, G]` int32, first own slot in use (what lies before it is padding).
    """

    prefix: tuple[KeyValue, ...]
    prefix_lengths: Int[Array, "N"]
    own: tuple[KeyValue, ...]
    first: Int[Array, "N G"]


def decode_step(
    params: Params,
    config: ModelConfig,
    cache: Cache,
    tokens: Int[Array, "N G"],
    positions: Int[Array, "N G"],
    slot: Int[Array, ""],
) -> tuple[Float[Array, "N G V"], Cache]:
    """Logits after one more token of every row, written to own slot `slot` of the cache."""
    n, g = tokens.shape
    x = constrain(embed(params, tokens.reshape(-1)), "batch", None)
    cos, sin = rope_tables(config, positions.reshape(-1))
    slots = jnp.arange(cache.own[0][0].shape[3], dtype=jnp.int32)
    mask = (slots >= cache.first[..., None]) & (slots <= slot)  # [N, G, S]
    written = []
    for i, weights in enumerate(params["layers"]):
        attend = functools.partial(_attend_cache, cache, i, mask, slot)
        x, own = Block(config).apply({"params": weights}, x, cos, sin, attend)
        written.append(own)
    x = rms_norm(x, params["norm"], config.rms_norm_eps)
    return head_logits(params, x).reshape(n, g, -1), dataclasses.replace(cache, own=tuple(written))


def _attend_cache(cache: Cache, layer: int, mask, slot, q, k, v):
    """Attention `[N * G, H, h]` and the layer's own part with the new keys and values written.

    On a mesh each device does both for its own rows and key heads. Left to the compiler, the new keys of all rows would
    be gathered to be written, and where tensor does not divide the key heads, half of the cache copied at every step.
    """
    n, g = mask.shape[:2]
    k, v = (a.reshape(n, g, *a.shape[1:]) for a in (k, v))
    q = q.reshape(n, g, k.shape[2], -1, q.shape[-1])  # by key head, as the cache lies
    prefix = cache.prefix[layer] if cache.prefix else ()
    by_head, own_part, prefix_part = ("batch", None, "kv", None), ("batch", None, "kv", None, None), ("batch", "kv")
    attend = per_shard(
        _write_and_attend,
        [own_part, by_head, by_head, own_part, own_part, ("batch", None, None), (), ("batch",)]
        + [(*prefix_part, None, None)] * len(prefix),
        [own_part] * 3,
    )
    out, *own = attend(q, k, v, *cache.own[layer], mask, slot, cache.prefix_lengths, *prefix)
    return out.reshape(n * g, -1, out.shape[-1]), tuple(own)


def _write_and_attend(q, k, v, own_k, own_v, mask, slot, prefix_lengths, *prefix):
    # A scatter that names row and head indices is written in place. A dynamic_update_slice that is both attended to and
    # carried on is copied whole, with the cache, at every step by XLA's CPU compiler.
    rows, members, heads = jnp.meshgrid(*(jnp.arange(size, dtype=jnp.int32) for size in k.shape[:3]), indexing="ij")

    def write(buffer, new):
        at = buffer.at[rows, members, heads, jnp.full_like(rows, slot)]
        return at.set(new, unique_indices=True, indices_are_sorted=True, mode="promise_in_bounds")

    own = write(own_k, k), write(own_v, v)
    flat = q.reshape(*q.shape[:2], -1, q.shape[-1])
    return decode_attention(flat, own, mask, prefix or None, prefix_lengths).reshape(q.shape), *own


def logits(model, tokens: Int[Array, "B T"], lengths: Int[Array, "B"]) -> Float[Array, "B T V"]:
    """Logits of right-padded sequences, float32; those after a sequence's length are meaningless."""
    return _logits(model.params, model.config, jnp.asarray(tokens), jnp.asarray(lengths))


@functools.partial(jax.jit, static_argnames="config")
def _logits(params, config, tokens, lengths):
    hidden, _ = forward(params, config, plain_rows(tokens, lengths))
    return head_logits(params, hidden.reshape(-1, hidden.shape[-1])).reshape(*tokens.shape, -1)
