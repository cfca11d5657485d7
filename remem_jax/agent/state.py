"""What an agent remembers between turns, as padded arrays; storing, looking up and assembling prompts are jitted.

Axes: `N` questions, `G` rollouts, `T` history slots (one a memory turn), `M` memory tokens, `W` words of a memory,
`Q` words of a query, `B` questions in a turn's batch, `P` prefix tokens, `S` suffix tokens.
"""

import functools

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from remem_jax.agent.prompts import Parts
from remem_jax.agent.recall import candidate_mask, retrieve
from remem_jax.model.packing import Ragged


@struct.dataclass
class AgentState:
    """Memory and history of every rollout.

    Attributes:
        current: slot that wrote the memory now shown, -1 while there is none; the memory is that slot's record.
        tokens: ids of every record; 0 where the slot is empty.
        lengths: ids of each record.
        words: word ids of every record, padded with -1.
        written: slots that hold a record; an invalid turn leaves its slot empty.
        query: word ids of the query that the next look-up asks, padded with -1; all -1 is no query.
    """

    current: Int[Array, "N G"]
    tokens: Int[Array, "N G T M"]
    lengths: Int[Array, "N G T"]
    words: Int[Array, "N G T W"]
    written: Bool[Array, "N G T"]
    query: Int[Array, "N G Q"]


def initial_state(
    questions: int, rollouts: int, *, turns: int, memory_tokens: int, memory_words: int, query_words: int
) -> AgentState:
    """No memory, no query: `m_0` and `q_0` are empty."""
    n, g, t = questions, rollouts, turns
    return AgentState(
        current=jnp.full((n, g), -1, jnp.int32),
        tokens=jnp.zeros((n, g, t, memory_tokens), jnp.int32),
        lengths=jnp.zeros((n, g, t), jnp.int32),
        words=jnp.full((n, g, t, memory_words), -1, jnp.int32),
        written=jnp.zeros((n, g, t), bool),
        query=jnp.full((n, g, query_words), -1, jnp.int32),
    )


@functools.partial(jax.jit, donate_argnames="state")
def store(
    state: AgentState,
    turn: Int[Array, ""],
    active: Bool[Array, "N"],
    valid: Bool[Array, "N G"],
    memory: Ragged,
    words: Int[Array, "N G W"],
    query: Int[Array, "N G Q"],
) -> AgentState:
    """Write what a memory turn's replies said: all or nothing.

    A valid reply's memory becomes the current one and the record of slot `turn`; an invalid one changes neither.
    `query` is what the next look-up asks, all -1 for nothing. Questions that did not take part (`active` False) stay
    as they are.
    """
    wrote = valid & active[:, None]

    def slot(array, value):
        old = jax.lax.dynamic_index_in_dim(array, turn, axis=2, keepdims=False)
        keep = wrote.reshape(*wrote.shape, *[1] * (old.ndim - 2))
        return jax.lax.dynamic_update_index_in_dim(array, jnp.where(keep, value, old), turn, axis=2)

    return AgentState(
        current=jnp.where(wrote, turn, state.current),
        tokens=slot(state.tokens, memory.ids),
        lengths=slot(state.lengths, memory.lengths),
        words=slot(state.words, words),
        written=slot(state.written, jnp.ones_like(wrote)),
        query=jnp.where(active[:, None, None], query, state.query),
    )


@functools.partial(jax.jit, static_argnames="candidates")
def look_up(state: AgentState, *, candidates: str) -> tuple[Int[Array, "N G"], Float[Array, "N G"]]:
    """Slot of the memory that the query recalls, -1 for none, and its score (METHOD 3)."""
    return retrieve(state.words, candidate_mask(state.written, state.current, candidates), state.query)


def concatenate(parts: tuple[Ragged, ...], size: int) -> Ragged:
    """Ragged lists end to end, by gather; leading axes broadcast, the result has `size` slots."""
    shape = jnp.broadcast_shapes(*(part.lengths.shape for part in parts))
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*shape, size))
    out, offset = jnp.zeros((*shape, size), jnp.int32), jnp.zeros(shape, jnp.int32)
    for ids, lengths in parts:
        local = index - offset[..., None]
        here = (local >= 0) & (local < lengths[..., None])
        wide = jnp.broadcast_to(ids, (*shape, ids.shape[-1]))
        value = jnp.take_along_axis(wide, jnp.clip(local, 0, ids.shape[-1] - 1), axis=-1)
        out, offset = jnp.where(here, value, out), offset + lengths
    return Ragged(out, offset)


@functools.partial(
    jax.jit, static_argnames=("prefix", "suffix", "prefix_size", "suffix_size", "no_memory", "no_recall")
)
def assemble_prompts(
    state: AgentState,
    batch: Int[Array, "B"],
    live: Bool[Array, "B"],
    recalled: Int[Array, "N G"],
    question: Ragged,
    chunk: Ragged,
    *,
    prefix: Parts,
    suffix: Parts,
    prefix_size: int,
    suffix_size: int,
    no_memory: tuple[int, ...],
    no_recall: tuple[int, ...],
) -> tuple[Ragged, Ragged]:
    """Prompts of one turn: prefixes `[B, P]` and suffixes `[B, G, S]`; the same tokens for training and answering.

    Args:
        batch: which questions take part; `live` False makes a row that only fills the batch (length 0).
        recalled: slot shown as recalled memory, -1 for the placeholder `no_recall`.
        question, chunk: `[B, ...]`.
        prefix, suffix: segments of `prompt_parts`, constants and the names of sources.
    """
    taken = jax.tree.map(lambda x: x[batch], state)
    sources = {
        "question": Ragged(question.ids[:, None], question.lengths[:, None]),
        "chunk": Ragged(chunk.ids[:, None], chunk.lengths[:, None]),
        "memory": _record(taken, taken.current, no_memory),
        "recalled": _record(taken, recalled[batch], no_recall),
    }

    def part(segment) -> Ragged:
        return sources[segment] if isinstance(segment, str) else _constant(segment)

    def masked(lists: Ragged) -> Ragged:
        return Ragged(lists.ids, jnp.where(live.reshape(-1, *[1] * (lists.lengths.ndim - 1)), lists.lengths, 0))

    empty = Ragged(jnp.zeros((batch.shape[0], 1, 1), jnp.int32), jnp.zeros((batch.shape[0], 1), jnp.int32))
    shared = concatenate((empty, *map(part, prefix)), prefix_size)
    own = concatenate((*map(part, suffix), _rows(taken)), suffix_size)
    return masked(Ragged(shared.ids[:, 0], shared.lengths[:, 0])), masked(own)


def _constant(ids: tuple[int, ...]) -> Ragged:
    return Ragged(jnp.asarray(ids or (0,), jnp.int32), jnp.int32(len(ids)))


def _rows(taken: AgentState) -> Ragged:
    """Nothing, with the axes `B` and `G`: a suffix without a source of its own still has one row a rollout."""
    b, g = taken.current.shape
    return Ragged(jnp.zeros((b, g, 1), jnp.int32), jnp.zeros((b, g), jnp.int32))


def _record(state: AgentState, slot: Int[Array, "B G"], placeholder: tuple[int, ...]) -> Ragged:
    """Ids of each row's record in `slot`; the placeholder where it is -1."""
    at = jnp.maximum(slot, 0)[..., None]
    ids = jnp.take_along_axis(state.tokens, at[..., None], axis=2)[:, :, 0]
    lengths = jnp.take_along_axis(state.lengths, at, axis=2)[..., 0]
    none = slot < 0
    size = max(ids.shape[-1], len(placeholder))
    instead = jnp.zeros(size, jnp.int32).at[: len(placeholder)].set(jnp.asarray(placeholder or (0,), jnp.int32)[:size])
    ids = jnp.pad(ids, ((0, 0), (0, 0), (0, size - ids.shape[-1])))
    return Ragged(jnp.where(none[..., None], instead, ids), jnp.where(none, len(placeholder), lengths))
