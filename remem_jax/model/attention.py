"""Attention: `packed_attention` over packed rows and `decode_attention` on a two-part cache, with named back ends.

The only code that knows that suffixes share a prefix; no back end falls back to another, `why_not` gives the reason.

Axes: `N` rows, `T` tokens of a row, `H` query heads, `K` key heads, `h` head size, `G` suffixes, `P` prefix slot,
`W` band (longest suffix), `S` own cache slots. The rule, for token i of a row and an earlier token k:

    i sees k  iff  k <= i  and  (k < P  or  k >= start[i])  and  valid[i] == valid[k]

    prefix of 3 (P 3), suffixes a a and b b b     k: p p p a a b b b
                                          i = p      x
                                          i = a      x x x x
                                          i = b2     x x x . . x x
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from remem_jax.errors import RememError
from remem_jax.model.splash import splash_attention

BACKENDS = ("blocked", "dense", "splash", "splash_interpret", "cudnn")
QUERIES = 128  # queries of a block whose scores exist at one time
MASKED = -1e30  # finite, so that a row without any visible key gives numbers and not NaN


def default_backend() -> str:
    """The back end for the platform jax runs on: `splash` (TPU), `cudnn` (GPU), `blocked` (CPU)."""
    return {"tpu": "splash", "gpu": "cudnn"}.get(jax.default_backend(), "blocked")


def why_not(backend: str, *, tokens: int, dtype) -> str | None:
    """Why `backend` cannot serve rows of `tokens` tokens in `dtype`; None when it can."""
    if backend not in BACKENDS:
        return f"attention back end {backend!r} is unknown; choose one of {', '.join(BACKENDS)}"
    if backend.startswith("splash") and tokens % 128:
        return f"splash attention needs rows of a multiple of 128 tokens, found {tokens}; pad the row"
    if backend.startswith("splash") and tokens >= 2**16:
        return f"splash attention packs indices into 16 bits, found rows of {tokens} tokens; use rows under 65,536"
    if backend == "cudnn" and dtype == jnp.float32:
        return "cuDNN attention takes bfloat16 or float16, found float32; choose attention=blocked or dtype=bfloat16"
    return None


def not_here(backend: str) -> str | None:
    """Why the devices of this process cannot run `backend`; None when they can."""
    wanted = {"splash": "tpu", "cudnn": "gpu"}.get(backend, jax.default_backend())
    if wanted == jax.default_backend():
        return None
    return f"{backend} runs on a {wanted.upper()}, found {jax.default_backend()}; leave it out, or take blocked"


def visible(start, valid_q, valid_k, index_q, index_k, prefix_slot: int) -> Bool[Array, "N Q T"]:
    """The mask of the module's rule for some queries and keys of a row, given by their indices `[Q]`, `[T]`."""
    q, k = index_q[None, :, None], index_k[None, None, :]
    return (k <= q) & ((k < prefix_slot) | (k >= start[:, :, None])) & (valid_q[:, :, None] == valid_k[:, None, :])


def packed_attention(
    q: Float[Array, "N T H h"],
    k: Float[Array, "N T K h"],
    v: Float[Array, "N T K h"],
    start: Int[Array, "N T"],
    valid: Bool[Array, "N T"],
    *,
    prefix_slot: int,
    band: int,
    backend: str | None = None,
) -> Float[Array, "N T H h"]:
    """Attention of every token over the tokens it may see; rows are as `PackedRows` describes them.

    Queries are scaled by `h ** -0.5`; scores and softmax are float32. Raises `RememError` when the named back end
    cannot serve the shape.
    """
    backend = backend or default_backend()
    reason = why_not(backend, tokens=q.shape[1], dtype=q.dtype)
    if reason:
        raise RememError(reason)
    if backend.startswith("splash"):
        interpret = backend == "splash_interpret"
        return splash_attention(q, k, v, start, valid, prefix_slot=prefix_slot, band=band, interpret=interpret)
    if backend == "dense":
        index = jnp.arange(q.shape[1], dtype=jnp.int32)
        return _heads_last(_attend(*_heads_first(q, k, v), visible(start, valid, valid, index, index, prefix_slot)))
    core = _cudnn if backend == "cudnn" else _attend
    return _heads_last(_blocked(*_heads_first(q, k, v), start, valid, prefix_slot, band, core=core))


def _heads_first(q, k, v):
    """q `[N, T, H, h]` to `[N, K, H/K, T, h]`; k and v `[N, T, K, h]` to `[N, K, T, h]`: once a layer."""
    n, tokens, _, size = q.shape
    q = q.reshape(n, tokens, k.shape[2], -1, size)
    return jnp.transpose(q, (0, 2, 3, 1, 4)), jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)


def _heads_last(out):
    """`[N, K, H/K, T, h]` to `[N, T, H, h]`."""
    n, kv_heads, ratio, tokens, size = out.shape
    return jnp.transpose(out, (0, 3, 1, 2, 4)).reshape(n, tokens, kv_heads * ratio, size)


def _attend(q, k, v, mask):
    """Grouped-query softmax attention, q `[N, K, H/K, Q, h]`, k and v `[N, K, T, h]`, mask `[N, Q, T]`."""
    n, kv_heads, ratio, queries, size = q.shape
    rows = q.reshape(n, kv_heads, ratio * queries, size)
    scores = jnp.einsum("nkqh,nksh->nkqs", rows, k, preferred_element_type=jnp.float32, precision=_precision(q))
    scores = scores.reshape(n, kv_heads, ratio, queries, -1)
    scores = jnp.where(mask[:, None, None], scores * jnp.float32(size**-0.5), MASKED).reshape(
        n, kv_heads, ratio * queries, -1
    )
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    out = jnp.einsum(
        "nkqs,nksh->nkqh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32, precision=_precision(q)
    )
    return (out / weights.sum(axis=-1, keepdims=True)).astype(q.dtype).reshape(q.shape)


def _cudnn(q, k, v, mask):
    n, kv_heads, ratio, queries, size = q.shape
    q = _heads_last(q)
    k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    out = jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="cudnn")
    return jnp.transpose(out.reshape(n, queries, kv_heads, ratio, size), (0, 2, 3, 1, 4))


def _precision(x):
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None


def _blocked(q, k, v, start, valid, prefix_slot, band, *, core):
    """Query blocks against only the keys they can see, so that no `[T, T]` scores exist; heads first.

    Up to `P + W` the visible keys grow with the block; beyond, every block sees the prefix and one window of the
    same size, so those blocks are one loop.
    """
    tokens = q.shape[3]
    grow_to = min(tokens, prefix_slot + band)
    block = max(256, 128 * math.ceil(grow_to / (8 * 128)))
    outs = []
    for begin in range(0, grow_to, block):
        end = min(begin + block, grow_to)
        outs.append(_growing_block(q, k, v, start, valid, prefix_slot, slice(begin, end), core))
    if grow_to < tokens:
        outs.append(_window_blocks(q, k, v, start, valid, prefix_slot, band, grow_to, core))
    return jnp.concatenate(outs, axis=3) if len(outs) > 1 else outs[0]


def _growing_block(q, k, v, start, valid, prefix_slot, rows: slice, core):
    """The queries `rows` against all keys up to the last of them.

    Scores are made for few queries at a time, in a loop, and stay in cache; and independent pieces of one program XLA
    schedules side by side, with the scores of all of them alive at once. cuDNN keeps no scores and takes the block
    whole.
    """
    index = jnp.arange(rows.stop, dtype=jnp.int32)
    k, v, valid_k = k[:, :, : rows.stop], v[:, :, : rows.stop], valid[:, : rows.stop]
    queries = (q[:, :, :, rows], start[:, rows], valid[:, rows], index[rows])

    def attend(q, start, valid_q, index_q):
        return core(q, k, v, visible(start, valid_q, valid_k, index_q, index, prefix_slot))

    length = rows.stop - rows.start
    count = length // QUERIES if core is _attend else 1
    if count < 2:
        return attend(*queries)
    whole = count * QUERIES

    def pieces(x, axis):  # [..., Q, ...] -> [count, ..., QUERIES, ...]
        x = jax.lax.slice_in_dim(x, 0, whole, axis=axis)
        return jnp.moveaxis(x.reshape(*x.shape[:axis], count, QUERIES, *x.shape[axis + 1 :]), axis, 0)

    split = tuple(pieces(x, axis) for x, axis in zip(queries, (3, 1, 1, 0), strict=True))
    out = jax.lax.map(jax.checkpoint(lambda args: attend(*args)), split)
    out = jnp.moveaxis(out, 0, 3).reshape(*q.shape[:3], whole, q.shape[4])
    if whole == length:
        return out
    rest = attend(queries[0][:, :, :, whole:], queries[1][:, whole:], queries[2][:, whole:], queries[3][whole:])
    return jnp.concatenate([out, rest], axis=3)


def _window_blocks(q, k, v, start, valid, prefix_slot, band, begin, core):
    """The blocks from `begin` on: each sees the prefix and the `band + block` keys that end with it."""
    tokens = q.shape[3]
    block = min(QUERIES, tokens - begin)
    count = math.ceil((tokens - begin) / block)
    pad = begin + count * block - tokens
    window = band + block
    q, k, v = (_padded(x, pad, axis=x.ndim - 2) for x in (q, k, v))
    start, valid = _padded(start, pad, axis=1), _padded(valid, pad, axis=1)

    @jax.checkpoint
    def one(first_query):
        first_key = first_query + block - window  # never below the prefix: begin = P + W

        def queries(x, axis):
            return jax.lax.dynamic_slice_in_dim(x, first_query, block, axis=axis)

        def keys(x, axis):
            own = jax.lax.dynamic_slice_in_dim(x, first_key, window, axis=axis)
            head = jax.lax.slice_in_dim(x, 0, prefix_slot, axis=axis)
            return jnp.concatenate([head, own], axis=axis) if prefix_slot else own

        index_q = first_query + jnp.arange(block, dtype=jnp.int32)
        own_k = first_key + jnp.arange(window, dtype=jnp.int32)
        index_k = jnp.concatenate([jnp.arange(prefix_slot, dtype=jnp.int32), own_k])
        mask = visible(queries(start, 1), queries(valid, 1), keys(valid, 1), index_q, index_k, prefix_slot)
        return core(queries(q, 3), keys(k, 2), keys(v, 2), mask)

    firsts = begin + block * jnp.arange(count, dtype=jnp.int32)
    outs = jax.lax.map(one, firsts)  # [count, N, K, H/K, block, h]
    out = jnp.moveaxis(outs, 0, 3).reshape(*q.shape[:3], count * block, q.shape[4])
    return out[:, :, :, : tokens - begin]


def _padded(x, pad: int, *, axis: int):
    return jnp.pad(x, [(0, pad if i == axis else 0) for i in range(x.ndim)]) if pad else x


def decode_attention(
    q: Float[Array, "N G H h"],
    own: tuple[Float[Array, "N G K S h"], Float[Array, "N G K S h"]],
    own_mask: Bool[Array, "N G S"],
    prefix: tuple[Float[Array, "N K P h"], Float[Array, "N K P h"]] | None = None,
    prefix_lengths: Int[Array, "N"] | None = None,
) -> Float[Array, "N G H h"]:
    """One new token of every row over its group's prefix and its own cache.

    Each part has its own maximum and sum and is merged at the end, so that every cache byte is read once and the
    prefix is read once a group. `prefix` None is plain one-part decoding.
    """
    n, g, heads, size = q.shape
    kv_heads = own[0].shape[2]
    ratio = heads // kv_heads
    grouped = q.reshape(n, g, kv_heads, ratio, size)
    # Keys times queries, not queries times keys: three times faster on a CPU for a few query heads a key head.
    scores = jnp.einsum(
        "ngksh,ngkrh->ngksr", own[0], grouped, preferred_element_type=jnp.float32, precision=_precision(q)
    )
    scores = jnp.swapaxes(scores, -1, -2) * jnp.float32(size**-0.5)
    top, weights = _weights(scores, own_mask[:, :, None, None])
    out = jnp.einsum(
        "ngkrs,ngksh->ngkrh",
        weights.astype(own[1].dtype),
        own[1],
        preferred_element_type=jnp.float32,
        precision=_precision(q),
    )
    total = weights.sum(axis=-1)
    if prefix is not None:
        assert prefix_lengths is not None
        slots = jnp.arange(prefix[0].shape[2], dtype=jnp.int32)
        mask = (slots[None] < prefix_lengths[:, None])[:, None, None]  # [N, 1, 1, P]
        rows = jnp.moveaxis(grouped, 1, 2).reshape(n, kv_heads, g * ratio, size)
        scores = jnp.einsum(
            "nkqh,nkph->nkqp", rows, prefix[0], preferred_element_type=jnp.float32, precision=_precision(q)
        )
        top_p, weights_p = _weights(scores * jnp.float32(size**-0.5), mask)
        out_p = jnp.einsum(
            "nkqp,nkph->nkqh",
            weights_p.astype(prefix[1].dtype),
            prefix[1],
            preferred_element_type=jnp.float32,
            precision=_precision(q),
        )

        def per_row(x):
            return jnp.moveaxis(x.reshape(n, kv_heads, g, ratio, *x.shape[3:]), 2, 1)

        top_p, total_p, out_p = per_row(top_p), per_row(weights_p.sum(axis=-1)), per_row(out_p)
        both = jnp.maximum(top, top_p)
        scale, scale_p = jnp.exp(top - both), jnp.exp(top_p - both)
        out = out * scale[..., None] + out_p * scale_p[..., None]
        total = total * scale + total_p * scale_p
    return (out / total[..., None]).astype(q.dtype).reshape(n, g, heads, size)


def _weights(scores, mask):
    """Maximum over the visible keys and `exp(score - maximum)`, zero where masked."""
    scores = jnp.where(mask, scores, MASKED)
    top = scores.max(axis=-1)
    return top, jnp.where(mask, jnp.exp(scores - top[..., None]), 0.0)
