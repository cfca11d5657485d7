"""Training rows: groups of replies packed with their prompt's prefix once, and what the loss needs of each reply token.

Host work in NumPy, no loop over tokens. A group is one turn of one question: the prefix that its rollouts share, and
each one's own suffix and reply. Row sizes come from short ladders, micro-batches from a budget of tokens.

Axes: `N` rows, `T` tokens of a row, `M` reply tokens of a row, `R` tokens of one reply, `P` prefix slot.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from remem_jax.model.packing import PackedRows
from remem_jax.rollout.buckets import bucket, power_of_two


@dataclasses.dataclass(frozen=True)
class Reply:
    """One sampled reply and what its loss is made of; arrays are `[R]`."""

    suffix_ids: np.ndarray
    """The prompt after the prefix; at least one id, whose logits predict the reply's first token."""
    reply_ids: np.ndarray
    weights: np.ndarray
    """Of `token_weights`; 0 is no loss."""
    advantage: float = 1.0
    logp_old: np.ndarray | None = None
    """None for replies that were given and not sampled."""
    sampled_logp: np.ndarray | None = None
    logp_ref: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Group:
    """Replies to prompts with one prefix."""

    prefix_ids: np.ndarray
    replies: tuple[Reply, ...]

    @property
    def suffix_tokens(self) -> int:
        """Tokens of all suffixes and replies."""
        return sum(len(r.suffix_ids) + len(r.reply_ids) for r in self.replies)

    @property
    def longest(self) -> int:
        """Tokens of the longest suffix with its reply."""
        return max(len(r.suffix_ids) + len(r.reply_ids) for r in self.replies)


@struct.dataclass
class TrainRows:
    """A micro-batch: packed rows, and for every reply token its place and its loss data, `[N, M]`, weight 0 padding."""

    rows: PackedRows
    index: Int[Array, "N M"]
    """Place in the row whose hidden state predicts the token."""
    targets: Int[Array, "N M"]
    weights: Float[Array, "N M"]
    advantages: Float[Array, "N M"]
    logp_old: Float[Array, "N M"]
    sampled_logp: Float[Array, "N M"] | None
    logp_ref: Float[Array, "N M"] | None


def split_group(group: Group, row_tokens: int) -> list[Group]:
    """The group in pieces that fit rows of `row_tokens`, each repeating the prefix; one piece where it fits."""
    pieces: list[list[Reply]] = [[]]
    slot, _ = row_size(len(group.prefix_ids), 0)
    used = slot
    for reply in group.replies:
        size = len(reply.suffix_ids) + len(reply.reply_ids)
        if pieces[-1] and used + size > row_tokens:
            pieces.append([])
            used = slot
        pieces[-1].append(reply)
        used += size
    return [Group(group.prefix_ids, tuple(piece)) for piece in pieces]


def micro_batches(groups: Sequence[Group], *, token_budget: int, row_tokens: int | None = None) -> list[list[Group]]:
    """Groups in lists whose padded rows hold at most `token_budget` tokens (one row always makes a list).

    Groups that exceed the budget by themselves, or `row_tokens`, are split. Sorted by prefix and longest suffix, so
    that the rows of a list are of one size class. A list fills at least 3/4 of the rows it will be padded to.
    """
    limit = token_budget if row_tokens is None else min(token_budget, row_tokens)
    pieces = [piece for group in groups for piece in split_group(group, limit)]
    keys = [(bucket(len(piece.prefix_ids)), piece.longest, piece.suffix_tokens) for piece in pieces]
    lists: list[list[Group]] = []
    prefix = suffixes = 0
    for i in sorted(range(len(pieces)), key=keys.__getitem__):
        prefix, suffixes = max(prefix, len(pieces[i].prefix_ids)), max(suffixes, keys[i][2])
        if lists and power_of_two(len(lists[-1]) + 1) * row_size(prefix, suffixes)[1] <= token_budget:
            lists[-1].append(pieces[i])
        else:
            lists.append([pieces[i]])
            prefix, suffixes = len(pieces[i].prefix_ids), keys[i][2]
    return [part for one in lists for part in _well_filled(one)]


def _well_filled(groups: list[Group]) -> list[list[Group]]:
    """Cut at powers of two where padding to the next one would be more than a quarter."""
    size = power_of_two(len(groups))
    if 4 * len(groups) >= 3 * size:
        return [groups]
    return [groups[: size // 2], *_well_filled(groups[size // 2 :])]


def row_size(prefix: int, suffixes: int) -> tuple[int, int]:
    """Prefix slot, and tokens of a row, for the longest prefix and the most suffix tokens that it must hold.

    Slot and suffixes go up the ladder together or apart, whichever is shorter; then to whole blocks of 128.
    """
    slot = bucket(prefix) if prefix else 0
    tokens = min(slot + bucket(suffixes), bucket(slot + suffixes))
    return slot, (-(-tokens // 128) * 128 if tokens > 128 else tokens)


def pack_rows(groups: Sequence[Group], *, shards: int = 1) -> TrainRows:
    """One row a group, padded to a power of two of rows a shard; NumPy arrays, laid out as `pack_groups` does."""
    replies = [reply for group in groups for reply in group.replies]
    row_of = np.repeat(np.arange(len(groups)), [len(group.replies) for group in groups])
    suffix_lengths = np.array([len(reply.suffix_ids) for reply in replies])
    reply_lengths = np.array([len(reply.reply_ids) for reply in replies])
    lengths = suffix_lengths + reply_lengths
    prefix_lengths = np.array([len(group.prefix_ids) for group in groups])
    slot, tokens = row_size(int(prefix_lengths.max()), int(np.bincount(row_of, lengths).max()))
    starts = slot + _before_in_row(lengths, row_of)
    rows = _empty_rows(shards * power_of_two(-(-len(groups) // shards)), tokens, slot, bucket(int(lengths.max())))

    row, at = _runs(prefix_lengths)
    rows.tokens[row, at] = np.concatenate([group.prefix_ids for group in groups])
    rows.valid[row, at] = True
    owner, offset = _runs(lengths)
    place = row_of[owner], starts[owner] + offset
    rows.tokens[place] = np.concatenate([ids for reply in replies for ids in (reply.suffix_ids, reply.reply_ids)])
    rows.positions[place] = prefix_lengths[row_of[owner]] + offset
    rows.start[place] = starts[owner]
    rows.valid[place] = True
    return _with_replies(rows, replies, row_of, reply_lengths, starts + suffix_lengths)


def _empty_rows(n: int, tokens: int, slot: int, band: int) -> PackedRows:
    index = np.broadcast_to(np.arange(tokens, dtype=np.int32), (n, tokens))
    arrays: dict[str, Any] = {
        "tokens": np.zeros((n, tokens), np.int32),
        "positions": np.where(index < slot, index, 0),
        "start": np.where(index < slot, 0, index),
        "valid": np.zeros((n, tokens), bool),
    }
    return PackedRows(**arrays, prefix_slot=slot, band=min(band, tokens - slot))


def _with_replies(rows: PackedRows, replies: list[Reply], row_of, lengths, starts) -> TrainRows:
    """`rows` with what the loss needs of each reply token; `starts` is where in its row a reply begins."""
    n = rows.tokens.shape[0]
    shape = (n, bucket(int(np.bincount(row_of, lengths).max())))
    owner, offset = _runs(lengths)
    place = row_of[owner], _before_in_row(lengths, row_of)[owner] + offset

    def spread(values: np.ndarray, dtype) -> np.ndarray:
        out = np.zeros(shape, dtype)
        out[place] = values
        return out

    def of_tokens(name: str) -> np.ndarray | None:
        values = [getattr(reply, name) for reply in replies]
        return None if values[0] is None else spread(np.concatenate(values), np.float32)

    arrays: dict[str, Any] = {
        "index": spread(starts[owner] + offset - 1, np.int32),
        "targets": spread(np.concatenate([reply.reply_ids for reply in replies]), np.int32),
        "advantages": spread(np.array([reply.advantage for reply in replies])[owner], np.float32),
    }
    arrays |= {name: of_tokens(name) for name in ("weights", "logp_old", "sampled_logp", "logp_ref")}
    if arrays["logp_old"] is None:
        arrays["logp_old"] = np.zeros(shape, np.float32)
    return TrainRows(rows=rows, **arrays)


def _runs(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For sequences of `lengths` end to end: each token's sequence, and its place in it."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]


def _before_in_row(lengths: np.ndarray, row_of: np.ndarray) -> np.ndarray:
    """How many tokens of earlier sequences share the row; `row_of` ascends."""
    before = np.cumsum(lengths) - lengths
    return before - before[np.searchsorted(row_of, row_of)]
