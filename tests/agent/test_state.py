"""Storing, looking up and assembling on the device: by hand, and against plain Python on random histories and prompts.

Axes: `N` questions, `G` rollouts, `T` history slots, `M` memory tokens, `W` words of a memory, `Q` words of a query,
`B` questions in a turn's batch.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from remem_jax.agent.prompts import AGENTS, LOOPLESS, ORDERS, assemble, encode_blocks, load_prompts, prompt_parts
from remem_jax.agent.protocol import Tags
from remem_jax.agent.recall import retrieve_reference
from remem_jax.agent.state import AgentState, assemble_prompts, concatenate, initial_state, look_up, store
from remem_jax.agent.words import WordTable
from remem_jax.model.packing import Ragged, ragged
from remem_jax.testing import DummyTokenizer

N, G, T, M, W, Q = 3, 2, 4, 5, 6, 7
B, QUESTION, CHUNK = 4, 6, 8
PROMPTS = {
    "rules": "R",
    "rules_callback": "K",
    "question": "q{question}",
    "chunk": "c{chunk}.",
    "recalled": "r{recalled}",
    "memory": "m{memory}",
    "cue": "go",
    "final_rules": "F",
    "final_cue": "end",
    "document_rules": "D",
    "document": "d{document}.",
    "no_memory": "none yet",  # longer than M
    "no_recall": "-",
}
SETTINGS = [(agent, final) for agent in AGENTS for final in ((True,) if agent in LOOPLESS else (False, True))]


def copied(state: AgentState) -> AgentState:
    """On the host, of its own memory: `store` takes the state's buffers."""
    return jax.tree.map(lambda x: np.array(x, copy=True), state)


def filled_state(seed: int) -> AgentState:
    """Every array full of numbers that nothing else writes."""
    rng = np.random.default_rng(seed)
    return AgentState(
        current=jnp.asarray(rng.integers(0, T, (N, G), np.int32)),
        tokens=jnp.asarray(rng.integers(100, 200, (N, G, T, M), np.int32)),
        lengths=jnp.asarray(rng.integers(1, M + 1, (N, G, T), np.int32)),
        words=jnp.asarray(rng.integers(0, 50, (N, G, T, W), np.int32)),
        written=jnp.asarray(rng.random((N, G, T)) < 0.5),
        query=jnp.asarray(rng.integers(0, 50, (N, G, Q), np.int32)),
    )


def write(state, turn, active, valid, fill=7, query=9):
    """Store a turn in which every reply wrote M - 1 tokens `fill`, W words `fill` and the query `query`."""
    return store(
        state,
        jnp.int32(turn),
        jnp.array(active),
        jnp.array(valid),
        Ragged(jnp.full((N, G, M), fill, jnp.int32), jnp.full((N, G), M - 1, jnp.int32)),
        jnp.full((N, G, W), fill, jnp.int32),
        jnp.full((N, G, Q), query, jnp.int32),
    )


def test_a_new_state_holds_no_memory_no_record_and_no_query():
    state = initial_state(N, G, turns=T, memory_tokens=M, memory_words=W, query_words=Q)
    assert (state.current == -1).all() and not state.written.any() and (state.lengths == 0).all()
    assert (state.words == -1).all() and (state.query == -1).all()
    assert (state.tokens.shape, state.words.shape, state.query.shape) == ((N, G, T, M), (N, G, T, W), (N, G, Q))


@pytest.mark.parametrize("turn", [0, 2])
def test_storing_writes_everything_of_a_valid_reply_and_nothing_of_any_other(turn):
    state = filled_state(0)
    before = copied(state)
    active = [True, True, False]
    valid = [[True, False], [False, True], [True, True]]
    after = copied(write(state, turn, active, valid))
    others = [t for t in range(T) if t != turn]
    for n, g in np.ndindex(N, G):
        wrote = active[n] and valid[n][g]
        if wrote:
            assert after.current[n, g] == turn and after.written[n, g, turn]
            assert after.tokens[n, g, turn].tolist() == [7] * M and after.lengths[n, g, turn] == M - 1
            assert after.words[n, g, turn].tolist() == [7] * W
        else:
            assert after.current[n, g] == before.current[n, g]
        for name in ("tokens", "lengths", "words", "written"):
            kept = others if wrote else list(range(T))
            np.testing.assert_array_equal(getattr(after, name)[n, g, kept], getattr(before, name)[n, g, kept])
        asked = [9] * Q if active[n] else before.query[n, g].tolist()
        assert after.query[n, g].tolist() == asked


def test_an_invalid_turn_leaves_its_slot_empty_and_the_memory_of_the_turn_before():
    state = initial_state(N, G, turns=T, memory_tokens=M, memory_words=W, query_words=Q)
    everyone, nobody = np.ones((N, G), bool), np.zeros((N, G), bool)
    state = write(state, 0, [True] * N, everyone, fill=3)
    state = write(state, 1, [True] * N, nobody, fill=4, query=-1)
    state = write(state, 2, [True] * N, everyone, fill=5)
    assert state.written[1, 1].tolist() == [True, False, True, False]
    assert state.tokens[1, 1, :, 0].tolist() == [3, 0, 5, 0] and state.lengths[1, 1].tolist() == [M - 1, 0, M - 1, 0]
    assert state.words[1, 1, :, 0].tolist() == [3, -1, 5, -1]
    assert (state.current == 2).all()


def test_ragged_lists_are_concatenated_and_leading_axes_broadcast():
    shared = ragged([[1, 2], []], 4)
    shared = Ragged(shared.ids[:, None], shared.lengths[:, None])
    own = ragged([[[5], [6, 7, 8]], [[], [9]]], 3)
    constant = Ragged(jnp.array([40, 41], jnp.int32), jnp.int32(2))
    joined = concatenate((shared, constant, own), 8)
    assert joined.lengths.tolist() == [[5, 7], [2, 3]]
    assert joined.ids.tolist() == [
        [[1, 2, 40, 41, 5, 0, 0, 0], [1, 2, 40, 41, 6, 7, 8, 0]],
        [[40, 41, 0, 0, 0, 0, 0, 0], [40, 41, 9, 0, 0, 0, 0, 0]],
    ]


def ids_up_to(size):
    return st.lists(st.integers(1, 99), max_size=size)


slots = st.lists(st.integers(-1, T - 1), min_size=N * G, max_size=N * G)


# An example compiles little but takes a second: shrinking a failure would take minutes.
@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    records=st.lists(ids_up_to(M), min_size=N * G * T, max_size=N * G * T),
    current=slots,
    recalled=slots,
    questions=st.lists(ids_up_to(QUESTION), min_size=N, max_size=N),
    chunks=st.lists(ids_up_to(CHUNK), min_size=N, max_size=N),
    batch=st.lists(st.integers(0, N - 1), min_size=B, max_size=B),
    live=st.integers(1, B),
)
def test_prompts_of_every_agent_and_order_equal_the_plain_assembly(
    records, current, recalled, questions, chunks, batch, live
):
    padded = ragged(records, M)
    state = dataclasses.replace(
        initial_state(N, G, turns=T, memory_tokens=M, memory_words=W, query_words=Q),
        tokens=padded.ids.reshape(N, G, T, M),
        lengths=padded.lengths.reshape(N, G, T),
        current=jnp.array(current, jnp.int32).reshape(N, G),
    )
    shown = jnp.array(recalled, jnp.int32).reshape(N, G)
    question, chunk = ragged([questions[n] for n in batch], QUESTION), ragged([chunks[n] for n in batch], CHUNK)
    alive = np.arange(B) < live
    for agent, final in SETTINGS:
        blocks = encode_blocks(load_prompts(PROMPTS), DummyTokenizer(), agent, Tags())

        def record(slot, placeholder, n, g):
            return list(placeholder) if slot < 0 else records[(n * G + g) * T + slot]

        for order in ORDERS:
            prefix, suffix = prompt_parts(blocks, agent, order, final)
            prefixes, suffixes = assemble_prompts(
                state,
                jnp.array(batch),
                jnp.array(alive),
                shown,
                question,
                chunk,
                prefix=prefix,
                suffix=suffix,
                prefix_size=32,
                suffix_size=64,
                no_memory=blocks.no_memory,
                no_recall=blocks.no_recall,
            )
            assert prefixes.ids.shape == (B, 32) and suffixes.ids.shape == (B, G, 64)
            for row, n in enumerate(batch):
                for g in range(G):
                    values = {
                        "question": questions[n],
                        "chunk": chunks[n],
                        "memory": record(current[n * G + g], blocks.no_memory, n, g),
                        "recalled": record(recalled[n * G + g], blocks.no_recall, n, g),
                    }
                    for lists, parts in (((prefixes.ids[row], prefixes.lengths[row]), prefix),
                                         ((suffixes.ids[row, g], suffixes.lengths[row, g]), suffix)):  # fmt: skip
                        ids, length = np.asarray(lists[0]), int(lists[1])
                        expected = assemble(parts, values) if alive[row] else []
                        assert ids[:length].tolist() == expected
                        assert not alive[row] or not ids[length:].any()


def test_blank_placeholders_take_no_tokens():
    blocks = encode_blocks(
        load_prompts(PROMPTS | {"no_memory": "", "no_recall": ""}), DummyTokenizer(), "rememr1", Tags()
    )
    prefix, suffix = prompt_parts(blocks, "rememr1", "section_last", True)
    state = initial_state(1, G, turns=1, memory_tokens=M, memory_words=W, query_words=Q)
    none = jnp.full((1, G), -1, jnp.int32)
    lists = (ragged([[1]]), ragged([[]]))
    sizes = dict(prefix_size=32, suffix_size=32)
    placeholders = dict(no_memory=blocks.no_memory, no_recall=blocks.no_recall)
    _, suffixes = assemble_prompts(
        state, jnp.array([0]), jnp.array([True]), none, *lists, prefix=prefix, suffix=suffix, **sizes, **placeholders
    )
    length = int(suffixes.lengths[0, 1])
    assert DummyTokenizer().decode(suffixes.ids[0, 1, :length].tolist()) == "r\n\nm\n\nend"


VOCABULARY = ["york", "york", "New", "jersey", "Visby", "東京", "1999", "_", ""]
text = st.lists(st.sampled_from(VOCABULARY), max_size=5).map(" ".join)
reply = st.one_of(st.none(), st.tuples(text, text))  # None: invalid; else memory and query


@settings(max_examples=30, deadline=None)
@given(replies=st.lists(st.lists(reply, min_size=G, max_size=G), min_size=1, max_size=T))
def test_what_is_looked_up_after_any_history_equals_the_plain_reference_in_both_modes(replies):
    state = initial_state(1, G, turns=T, memory_tokens=M, memory_words=W, query_words=Q)
    tables, history = [WordTable() for _ in range(G)], [[None] * T for _ in range(G)]
    current, queries = [-1] * G, [""] * G
    for turn, of_turn in enumerate(replies):
        word_ids, query_ids = np.full((1, G, W), -1, np.int32), np.full((1, G, Q), -1, np.int32)
        for g, said in enumerate(of_turn):
            queries[g] = ""
            if said is not None:
                history[g][turn], queries[g] = said
                current[g] = turn
                word_ids[0, g], query_ids[0, g] = (tables[g].ids(t, s)[0] for t, s in zip(said, (W, Q)))
        state = store(
            state,
            jnp.int32(turn),
            jnp.array([True]),
            jnp.array([[said is not None for said in of_turn]]),
            Ragged(jnp.zeros((1, G, M), jnp.int32), jnp.zeros((1, G), jnp.int32)),
            jnp.asarray(word_ids),
            jnp.asarray(query_ids),
        )
    for mode in ("not_current", "all"):
        index, score = look_up(state, candidates=mode)
        for g in range(G):
            candidate = [mode == "all" or slot != current[g] for slot in range(T)]
            slot, expected = retrieve_reference(history[g], candidate, queries[g])
            assert (int(index[0, g]), float(score[0, g])) == (slot, pytest.approx(expected))
