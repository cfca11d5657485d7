"""Recall and look-up (METHOD 3, 10): hand-computed examples, and jnp against plain Python on random texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remem_jax.agent.recall import candidate_mask, recall, retrieve, retrieve_reference
from remem_jax.agent.words import WordTable
from remem_jax.errors import RememError

T, W, Q = 5, 12, 20
VOCABULARY = ["york", "new", "jersey", "city", "river", "1999", "Ünal", "東京", "_", "a"]
look_up = jax.jit(retrieve)


def by_ids(history, candidate, query, width=W, query_width=Q):
    """The look-up in jnp for texts, one rollout."""
    table = WordTable()
    rows = np.stack([table.ids(memory or "", width)[0] for memory in history])
    index, score = look_up(jnp.array(rows), jnp.array(candidate), jnp.array(table.ids(query, query_width)[0]))
    assert (index.dtype, score.dtype) == (jnp.int32, jnp.float32)
    return int(index), float(score)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("no", "I do not know", 0.0),
        ("York", "york is a city", 1.0),
        ("New York", "New Jersey", 0.5),
        ("new new york", "york", 0.5),
        ("", "anything", 0.0),
        ("anything", "", 0.0),
    ],
)
def test_recall_is_the_share_of_words_found_as_words(a, b, expected):
    assert recall(a, b) == expected


def test_equal_memories_are_two_records_and_the_earliest_slot_wins():
    history = ["york is a city", None, "york is a city"]
    assert retrieve_reference(history, [True] * 3, "York") == (0, 1.0)
    assert by_ids(history, [True] * 3, "York") == (0, 1.0)
    assert by_ids(history, [False, True, True], "York") == (2, 1.0)


def test_the_highest_recall_wins_over_an_earlier_slot():
    history = ["new jersey", "new york city", "york"]
    assert retrieve_reference(history, [True] * 3, "new york") == (1, 1.0)
    assert by_ids(history, [True] * 3, "new york") == (1, 1.0)


@pytest.mark.parametrize(
    ("candidate", "query"), [([True, True], "paris"), ([True, True], " ?"), ([False, False], "york")]
)
def test_no_overlap_or_a_blank_query_or_no_candidates_give_none(candidate, query):
    history = ["york", "new york"]
    assert retrieve_reference(history, candidate, query) == (-1, 0.0)
    assert by_ids(history, candidate, query) == (-1, 0.0)


def test_order_and_repeats_inside_rows_do_not_count():
    history = jnp.array([[7, 7, 7, 7], [-1, 3, -1, 7]], jnp.int32)
    index, score = look_up(history, jnp.array([True, True]), jnp.array([7, -1, 3, 7, 9], jnp.int32))
    assert int(index) == 1 and float(score) == float(np.float32(2 / 3))


def test_padding_never_matches_padding():
    history = jnp.array([[-1, -1], [5, -1]], jnp.int32)
    index, score = look_up(history, jnp.array([True, True]), jnp.array([-1, 4, -1], jnp.int32))
    assert (int(index), float(score)) == (-1, 0.0)


def test_integer_overlaps_are_compared_for_more_query_words_than_one_block():
    query = np.arange(40, dtype=np.int32)
    history = np.stack([np.append(query[:38], -1), np.append(query[1:39], 90), np.append(query[:39], [])])
    index, score = look_up(jnp.array(history, jnp.int32), jnp.ones(3, bool), jnp.array(query))
    assert int(index) == 2 and float(score) == float(np.float32(39 / 40))


def test_leading_axes_are_looked_up_each_for_itself():
    history = np.full((2, 3, T, W), -1, np.int32)
    history[1, 2, 4, 5] = 8
    history[0, 1, 3, 0] = 8
    query = np.full((2, 3, Q), -1, np.int32)
    query[..., 2] = 8
    index, score = look_up(jnp.array(history), jnp.ones((2, 3, T), bool), jnp.array(query))
    assert index.tolist() == [[-1, 3, -1], [-1, -1, 4]]
    assert score.tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("shape", [((2, 0, 4), (2, 3)), ((2, 3, 0), (2, 3)), ((2, 3, 4), (2, 0))])
def test_no_turns_or_no_words_find_nothing(shape):
    history, query = (jnp.zeros(s, jnp.int32) for s in shape)
    index, score = look_up(history, jnp.ones(history.shape[:-1], bool), query)
    assert index.tolist() == [-1, -1] and score.tolist() == [0, 0]


TEXT = st.lists(st.sampled_from(VOCABULARY), max_size=8).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.none() | TEXT, min_size=T, max_size=T), TEXT, st.integers(-1, T - 1), st.booleans())
def test_the_jnp_look_up_equals_the_reference_in_both_modes(history, query, current, leave_current):
    mode = "not_current" if leave_current else "all"
    written = [memory is not None for memory in history]
    allowed = [w and not (leave_current and slot == current) for slot, w in enumerate(written)]
    mask = candidate_mask(jnp.array(written), jnp.int32(current), mode)
    assert mask.tolist() == allowed
    index, score = retrieve_reference(history, allowed, query)
    assert by_ids(history, mask, query) == (index, float(np.float32(score)))


def test_the_slot_of_the_shown_memory_is_left_out_for_each_rollout():
    written = jnp.array([[True, True, False], [True, True, True]])
    current = jnp.array([1, -1], jnp.int32)
    assert candidate_mask(written, current, "not_current").tolist() == [[True, False, False], [True, True, True]]
    assert candidate_mask(written, current, "all").tolist() == written.tolist()


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(RememError, match="not_current, all, found 'some'"):
        candidate_mask(jnp.ones(2, bool), jnp.int32(0), "some")


def test_the_memory_of_a_look_up_is_of_the_size_of_the_history():
    history = jax.ShapeDtypeStruct((16, 256, 1024), jnp.int32)
    mask, query = jax.ShapeDtypeStruct((16, 256), bool), jax.ShapeDtypeStruct((16, 1024), jnp.int32)
    analysis = look_up.lower(history, mask, query).compile().memory_analysis()
    assert analysis is not None and analysis.temp_size_in_bytes <= 1.5 * 16 * 256 * 1024 * 4
