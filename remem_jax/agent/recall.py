"""Which earlier memory answers a query (METHOD 3): plain Python on texts, and the same in jnp on padded word ids.

Axes: `...` any leading axes (questions, rollouts), `T` memory turns = history slots, `W` words of a memory, `Q` words
of a query. -1 pads word ids; the order inside a row and repeats in it do not count.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from remem_jax.agent.words import words
from remem_jax.errors import RememError

CANDIDATES = ("not_current", "all")
_BLOCK = 16  # query words compared in one pass; measured on a CPU: 8 to 20 times faster than one word a pass


def recall(a: str, b: str) -> float:
    """Share of the words of `a` that are words of `b`; 0 when `a` has none."""
    of_a = words(a)
    return len(of_a & words(b)) / len(of_a) if of_a else 0.0


def retrieve_reference(history: Sequence[str | None], candidate: Sequence[bool], query: str) -> tuple[int, float]:
    """Slot of the candidate memory with the highest recall of the query, and that recall; `(-1, 0.0)` for none.

    history: one slot a memory turn, None where the turn was invalid. The earliest slot wins a tie.
    """
    asked = words(query)
    best, index = 0, -1
    for slot, (memory, allowed) in enumerate(zip(history, candidate, strict=True)):
        overlap = len(asked & words(memory)) if allowed and memory is not None else 0
        if overlap > best:
            best, index = overlap, slot
    return index, best / len(asked) if best else 0.0


def candidate_mask(written: Bool[Array, "*b T"], current: Int[Array, "*b"], mode: str) -> Bool[Array, "*b T"]:
    """Which slots a look-up may choose from.

    written: slots that hold a record. current: the slot that wrote the memory now shown, -1 while there is none.
    mode: "not_current" leaves that slot out, "all" does not (the paper's equation 3).
    """
    if mode not in CANDIDATES:
        raise RememError(f"candidates must be one of {', '.join(CANDIDATES)}, found {mode!r}")
    if mode == "all":
        return written
    slots = jnp.arange(written.shape[-1], dtype=current.dtype)
    return written & (slots != current[..., None])


def retrieve(
    history: Int[Array, "*b T W"], candidate: Bool[Array, "*b T"], query: Int[Array, "*b Q"]
) -> tuple[Int[Array, "*b"], Float[Array, "*b"]]:
    """The candidate slot that holds most of the query's words, batched; index -1 and score 0 for none.

    Integer overlaps are compared, the earliest slot wins a tie, and the score is overlap / distinct query words in
    float32. One pass over the history takes `_BLOCK` query words, each as one bit of a number, so the largest array
    in flight is as large as the history, and the time follows the longest query that is there, not the padding.
    """
    batch = query.shape[:-1]
    if 0 in history.shape or 0 in query.shape:
        return jnp.full(batch, -1, jnp.int32), jnp.zeros(batch, jnp.float32)
    asked, count = _distinct_first(query)
    bit = jnp.left_shift(jnp.int32(1), jnp.arange(_BLOCK, dtype=jnp.int32))

    def add_block(i, overlap):
        block = jax.lax.dynamic_slice_in_dim(asked, i * _BLOCK, _BLOCK, axis=-1)
        held = jnp.zeros(history.shape, jnp.int32)
        for k in range(_BLOCK):
            held |= jnp.where(history == block[..., k, None, None], jnp.int32(1 << k), 0)
        real = jnp.where(block >= 0, bit, 0).sum(axis=-1, dtype=jnp.int32)
        return overlap + jax.lax.population_count(jnp.bitwise_or.reduce(held, axis=-1) & real[..., None])

    blocks = (count.max() + _BLOCK - 1) // _BLOCK
    overlap = jax.lax.fori_loop(0, blocks, add_block, jnp.zeros(history.shape[:-1], jnp.int32))
    overlap = jnp.where(candidate, overlap, 0)
    best = overlap.max(axis=-1)
    index = jnp.where(best > 0, overlap.argmax(axis=-1).astype(jnp.int32), -1)
    score = best.astype(jnp.float32) / jnp.maximum(count, 1).astype(jnp.float32)
    return index, score


def _distinct_first(query: Int[Array, "*b Q"]) -> tuple[Int[Array, "*b K"], Int[Array, "*b"]]:
    """The query's distinct word ids at the front of each row, then -1, up to whole blocks; and how many there are."""
    ordered = jnp.sort(query, axis=-1)
    repeated = jnp.concatenate(
        [jnp.zeros_like(ordered[..., :1], dtype=bool), ordered[..., 1:] == ordered[..., :-1]], axis=-1
    )
    distinct = jnp.where(repeated | (ordered < 0), -1, ordered)
    fill = [(0, 0)] * (query.ndim - 1) + [(0, -query.shape[-1] % _BLOCK)]
    front = jnp.pad(jnp.sort(distinct, axis=-1, descending=True), fill, constant_values=-1)
    return front, (distinct >= 0).sum(axis=-1, dtype=jnp.int32)
