"""Pallas splash attention for packed rows on TPU, the mask taken from the integer that the kernel streams per token.

It replaces `q_sequence` inside the kernel object, which is not documented API: all of that is here, and a test holds it
to the dense mask in the interpreter, forward and backward.

Axes: `N` rows, `T` tokens, `H` query heads, `K` key heads, `h` head size.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from remem_jax.mesh import RULES


@functools.lru_cache(maxsize=64)
def _mask_function(prefix_slot: int):
    """One cached function per prefix slot: the kernel holds it as a static argument."""

    def mask(q, k):
        # q packs start << 16 | index; no division here, which a CPU host cannot lower ahead of time.
        return (k <= (q & 0xFFFF)) & ((k < prefix_slot) | (k >= ((q >> 16) & 0xFFFF)))

    return mask


@functools.lru_cache(maxsize=64)
def _kernel(tokens: int, heads: int, prefix_slot: int, band: int, interpret: bool):
    """The kernel for rows of a size, its block tables built from everything that some choice of starts may show."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    class Superset(masks._ComputableMask):
        def __init__(self):
            super().__init__(
                (tokens, tokens), lambda q, k: (k <= q) & ((k < prefix_slot) | (q - k < band)), shard_count=1
            )

        def __eq__(self, other):
            return isinstance(other, Superset)

        def __hash__(self):
            return hash((tokens, prefix_slot, band))

    block = next(size for size in (512, 384, 256, 128) if tokens % size == 0)
    sizes = kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    with jax.ensure_compile_time_eval():
        built = kernel.make_splash_mha(
            masks.MultiHeadMask([Superset()] * heads),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=1,
            interpret=interpret,
        )
        # Concrete NumPy tables: a cached kernel must not hold values of one trace or one device.
        infos = [
            None if info is None else jax.tree.map(np.asarray, info)
            for info in (built.fwd_mask_info, built.dq_mask_info, built.dkv_mask_info)
        ]
    kwargs = dict(built.kwargs, mask_function=_mask_function(prefix_slot))
    return infos, kwargs


def splash_attention(q, k, v, start, valid, *, prefix_slot: int, band: int, interpret: bool):
    """Attention of `packed_attention`; q `[N, T, H, h]`, k and v `[N, T, K, h]`, start and valid `[N, T]`.

    The compiler cannot split a kernel over a mesh. On one, every device runs it on its own rows and heads, as far as
    the mesh divides them; what it does not divide, each device computes whole.
    """
    attend = functools.partial(_local_attention, prefix_slot=prefix_slot, band=band, interpret=interpret)
    mesh = jax.typeof(q).sharding.mesh  # of the parameters, known while tracing; empty on one device
    if mesh.size > 1:
        rows, heads = _axes_that_divide(mesh, "batch", q.shape[0]), _axes_that_divide(mesh, "kv", k.shape[2])
        per_token, per_head = PartitionSpec(rows), PartitionSpec(rows, None, heads)
        places = (per_head, per_head, per_head, per_token, per_token)
        attend = jax.shard_map(attend, mesh=mesh, in_specs=places, out_specs=per_head, check_vma=False)
    return attend(q, k, v, start, valid)


def _axes_that_divide(mesh, axis: str, size: int) -> tuple[str, ...] | None:
    names = RULES[axis]
    return names if size % math.prod(mesh.shape[name] for name in names) == 0 else None


def _local_attention(q, k, v, start, valid, *, prefix_slot: int, band: int, interpret: bool):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    tokens, heads, size = q.shape[1:]
    infos, kwargs = _kernel(tokens, heads, prefix_slot, band, interpret)

    def one_row(q, k, v, start, valid):
        index = jnp.arange(tokens, dtype=jnp.uint32)
        packed = jax.lax.bitcast_convert_type((start.astype(jnp.uint32) << jnp.uint32(16)) | index, jnp.int32)
        row_infos: list[Any] = [
            None if info is None else jax.tree.map(jnp.asarray, info)._replace(q_sequence=packed) for info in infos
        ]
        run: Any = kernel.SplashAttentionKernel(*row_infos, **kwargs)
        ids = valid.astype(jnp.int32)
        heads_first = [jnp.swapaxes(x, 0, 1) for x in (q * jnp.asarray(size**-0.5, q.dtype), k, v)]
        out = run(*heads_first, segment_ids=kernel.SegmentIds(q=ids, kv=ids))
        return jnp.swapaxes(out, 0, 1)

    return jax.vmap(one_row)(q, k, v, start, valid).astype(q.dtype)
