"""Training rows: groups of replies packed with their prompt's prefix once, and what the loss needs of each reply token.

Host work in NumPy. A group is one turn of one question: the prefix that its rollouts share, and each one's own suffix
and reply. Row sizes come from short ladders, micro-batches from a budget of tokens.

Axes: `N` rows, `T` tokens of a row, `M` reply tokens of a row, `R` tokens of one reply, `P` prefix slot.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from remem_jax.model.packing import PackedRows, Ragged, pack_groups, ragged
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
    room = row_tokens - len(group.prefix_ids)
    used = 0
    for reply in group.replies:
        size = len(reply.suffix_ids) + len(reply.reply_ids)
        if pieces[-1] and used + size > room:
            pieces.append([])
            used = 0
        pieces[-1].append(reply)
        used += size
    return [Group(group.prefix_ids, tuple(piece)) for piece in pieces]


def micro_batches(groups: Sequence[Group], *, token_budget: int) -> list[list[Group]]:
    """Groups in lists whose padded rows hold at most `token_budget` tokens (one group always makes a list).

    Groups that exceed the budget by themselves are split. Sorted by prefix and longest suffix, so that the rows of a
    list are of one size class.
    """
    pieces = [piece for group in groups for piece in split_group(group, token_budget)]
    pieces.sort(key=lambda g: (bucket(len(g.prefix_ids)), g.longest, g.suffix_tokens))
    lists: list[list[Group]] = []
    for piece in pieces:
        if lists and power_of_two(len(lists[-1]) + 1) * sum(row_size([*lists[-1], piece])) <= token_budget:
            lists[-1].append(piece)
        else:
            lists.append([piece])
    return lists


def row_size(groups: Sequence[Group]) -> tuple[int, int]:
    """Prefix slot and suffix slots of rows that hold any of `groups`."""
    prefix = max(len(g.prefix_ids) for g in groups)
    return (bucket(prefix) if prefix else 0), bucket(max(g.suffix_tokens for g in groups))


def pack_rows(groups: Sequence[Group]) -> TrainRows:
    """One row a group, padded to a power of two of rows."""
    n = power_of_two(len(groups))
    slot, own = row_size(groups)
    tokens = slot + own
    tokens = -(-tokens // 128) * 128 if tokens > 128 else tokens
    members = power_of_two(max(len(g.replies) for g in groups))
    nobody: list[list[int]] = [[]]
    prefixes = [g.prefix_ids.tolist() for g in groups] + nobody * (n - len(groups))
    sequences = [[[*r.suffix_ids.tolist(), *r.reply_ids.tolist()] for r in g.replies] for g in groups]
    sequences = [s + nobody * (members - len(s)) for s in sequences] + [nobody * members] * (n - len(groups))
    suffixes = _suffixes(sequences, bucket(max(g.longest for g in groups)))
    rows = pack_groups(ragged(prefixes, slot), suffixes, row_tokens=tokens)
    return _with_replies(groups, rows, n, slot)


def _suffixes(sequences: list[list[list[int]]], size: int) -> Ragged:
    flat = ragged([ids for group in sequences for ids in group], size)
    shape = (len(sequences), len(sequences[0]))
    return Ragged(flat.ids.reshape(*shape, size), flat.lengths.reshape(shape))


def _with_replies(groups: Sequence[Group], rows: PackedRows, n: int, slot: int) -> TrainRows:
    m = bucket(max(sum(len(r.reply_ids) for r in g.replies) for g in groups))
    index, targets = np.zeros((n, m), np.int32), np.zeros((n, m), np.int32)
    names = ["weights", "advantages", "logp_old"]
    names += [name for name in ("sampled_logp", "logp_ref") if getattr(groups[0].replies[0], name) is not None]
    values = {name: np.zeros((n, m), np.float32) for name in names}
    for row, group in enumerate(groups):
        at, start = 0, slot
        for reply in group.replies:
            length = len(reply.reply_ids)
            here = slice(at, at + length)
            index[row, here] = start + len(reply.suffix_ids) - 1 + np.arange(length)
            targets[row, here] = reply.reply_ids
            for name in names:
                values[name][row, here] = reply.advantage if name == "advantages" else getattr(reply, name)
            at, start = at + length, start + len(reply.suffix_ids) + length
    arrays = {name: jnp.asarray(value) for name, value in values.items()}
    return TrainRows(
        rows=rows,
        index=jnp.asarray(index),
        targets=jnp.asarray(targets),
        weights=arrays["weights"],
        advantages=arrays["advantages"],
        logp_old=arrays["logp_old"],
        sampled_logp=arrays.get("sampled_logp"),
        logp_ref=arrays.get("logp_ref"),
    )
