"""Packed rows: a prefix once, then the suffixes of its group back to back, at starts known only at run time.

One form serves training, log-prob passes, prefill and ordinary packing (`prefix_slot` 0); all of it can be jitted.

Axes: `N` rows (questions), `G` suffixes of a row, `T` tokens of a row, `P` prefix slot, `S` longest suffix.

    slot      0 ........ P-1 | P ...                              T-1
    row       prefix     pad | suffix 0 | suffix 1 | ... | pad
    positions 0 1 2 ... p-1    p p+1 ..   p p+1 ..
    start     0              | a a a      b b b
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int


class Ragged(NamedTuple):
    """Id lists padded on the right: `ids [..., S]` int32 and their `lengths [...]` int32."""

    ids: Int[Array, "*B S"]
    lengths: Int[Array, "*B"]


@struct.dataclass
class PackedRows:
    """A batch of packed rows.

    Attributes:
        tokens: `[N, T]` int32 ids.
        positions: `[N, T]` int32; a suffix continues at the real length of its prefix, not at the slot.
        start: `[N, T]` int32, first index of the token's own sequence (0 inside the prefix).
        valid: `[N, T]` bool, False for padding.
        prefix_slot: static, slots kept for the prefix; tokens there are seen by every suffix of the row.
        band: static, no suffix is longer than this.
    """

    tokens: Int[Array, "N T"]
    positions: Int[Array, "N T"]
    start: Int[Array, "N T"]
    valid: Bool[Array, "N T"]
    prefix_slot: int = struct.field(pytree_node=False, default=0)
    band: int = struct.field(pytree_node=False, default=0)


def ragged(lists: list, size: int | None = None) -> Ragged:
    """Nested lists of ids (one or two levels) to a padded array on the host; `size` is the padded length."""
    nested = bool(lists) and len(lists[0]) > 0 and not isinstance(lists[0][0], (int, np.integer))
    flat = [ids for group in lists for ids in group] if nested else lists
    lengths = np.array([len(ids) for ids in flat], np.int32)
    size = max(int(lengths.max(initial=0)), 1) if size is None else size
    padded = np.zeros((len(flat), size), np.int32)
    for row, ids in zip(padded, flat, strict=True):
        row[: len(ids)] = ids
    shape = (len(lists), len(lists[0])) if nested else (len(lists),)
    return Ragged(padded.reshape(*shape, size), lengths.reshape(shape))  # pyright: ignore[reportArgumentType]


def suffix_starts(lengths: Int[Array, "N G"], prefix_slot: int) -> Int[Array, "N G"]:
    """Index in the row at which each suffix begins."""
    return prefix_slot + jnp.cumsum(lengths, axis=1) - lengths


def pack_groups(prefixes: Ragged, suffixes: Ragged, *, row_tokens: int) -> PackedRows:
    """Lay out each group in one row.

    Args:
        prefixes: ids `[N, P]`, lengths `[N]`; `P` becomes the prefix slot and may be 0.
        suffixes: ids `[N, G, S]`, lengths `[N, G]`; a length of 0 is a dead row and takes no room.
        row_tokens: `T`, at least `P` plus the longest sum of suffix lengths of a group.
    """
    slot, band = prefixes.ids.shape[1], suffixes.ids.shape[2]
    starts = suffix_starts(suffixes.lengths, slot)  # [N, G]
    index = jnp.arange(slot, row_tokens, dtype=jnp.int32)  # [T - P]
    # The last suffix that begins at or before the slot; of empty ones with the same start the last is the live one.
    owner = jnp.sum(index[None, :, None] >= starts[:, None, :], axis=-1, dtype=jnp.int32) - 1  # [N, T - P]
    own_start = jnp.take_along_axis(starts, owner, axis=1)
    offset = index - own_start
    inside = offset < jnp.take_along_axis(suffixes.lengths, owner, axis=1)
    flat = suffixes.ids.reshape(suffixes.ids.shape[0], -1)
    ids = jnp.take_along_axis(flat, owner * band + jnp.minimum(offset, band - 1), axis=1)
    head = jnp.broadcast_to(jnp.arange(slot, dtype=jnp.int32), prefixes.ids.shape)
    return PackedRows(
        tokens=jnp.concatenate([prefixes.ids, jnp.where(inside, ids, 0)], axis=1),
        positions=jnp.concatenate([head, jnp.where(inside, prefixes.lengths[:, None] + offset, 0)], axis=1),
        start=jnp.concatenate([jnp.zeros_like(head), jnp.where(inside, own_start, index)], axis=1),
        valid=jnp.concatenate([head < prefixes.lengths[:, None], inside], axis=1),
        prefix_slot=slot,
        band=min(band, row_tokens - slot),
    )


def plain_rows(tokens: Int[Array, "N T"], lengths: Int[Array, "N"]) -> PackedRows:
    """Ordinary right-padded sequences as rows: no prefix, one suffix that begins at 0."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return PackedRows(
        tokens=tokens,
        positions=positions,
        start=jnp.zeros_like(positions),
        valid=positions < lengths[:, None],
        prefix_slot=0,
        band=tokens.shape[1],
    )
