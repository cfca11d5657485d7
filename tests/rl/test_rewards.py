"""Rewards: hand-computed values of every part, and that padding and dead turns earn nothing."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remem_jax.errors import RememError
from remem_jax.rl.rewards import (
    answer_hits,
    answer_mask,
    best,
    callback_gain,
    format_reward,
    is_yes_no,
    memory_gain,
    outcome_reward,
    state_parts,
    state_reward,
)

ANSWERS = ["New York City", "NYC"]
NOTHING = np.zeros((2, 3), bool)


def hits(text):
    return answer_hits(text, ANSWERS)


def test_hits_are_whole_words_of_each_answer_in_sorted_order():
    assert hits("a new city, not York-shire").tolist() == [[True, True, True], [False, False, False]]
    assert hits("Yorkshire; renewed").tolist() == NOTHING.tolist()
    assert hits("nyc").tolist() == [[False, False, False], [True, False, False]]
    assert answer_hits({"new", "york"}, ANSWERS).tolist() == [[False, True, True], [False, False, False]]


def test_a_bare_string_is_one_answer_and_repeated_words_count_once():
    assert answer_hits("york", "New York").tolist() == [[False, True]]
    assert answer_hits("no", ["no no no"]).tolist() == [[True]]
    with pytest.raises(RememError, match="at least one gold answer"):
        answer_hits("york", [])


def test_hits_and_mask_pad_to_a_given_shape_and_refuse_one_too_small():
    assert answer_hits("york", "New York", (2, 3)).tolist() == [[False, True, False], [False] * 3]
    assert answer_mask("New York", (2, 3)).tolist() == [[True, True, False], [False] * 3]
    assert answer_mask(ANSWERS).tolist() == [[True, True, True], [True, False, False]]
    with pytest.raises(ValueError, match=r"at least \(2, 3\)"):
        answer_hits("york", ANSWERS, (2, 2))


def test_only_a_question_whose_answers_are_all_yes_or_no_has_an_empty_mask():
    assert is_yes_no("Yes.") and is_yes_no(["no", "No!"])
    assert not is_yes_no(["no", "none"])
    assert not answer_mask(["Yes.", "no"]).any()
    assert answer_mask(["no", "none"]).all()


@pytest.mark.parametrize(
    ("text", "share"), [("York", 1 / 3), ("New York", 2 / 3), ("nyc", 1.0), ("new nyc", 1.0), ("", 0.0)]
)
def test_best_is_the_largest_share_over_the_answers_not_the_mean(text, share):
    assert best(hits(text)[None], answer_mask(ANSWERS)[None])[0] == pytest.approx(share)


def test_recall_examples_hold_for_answers_too():
    for text, answer, share in [
        ("I do not know", "nobody", 0.0),
        ("york is a city", "York", 1.0),
        ("New Jersey", "New York", 0.5),
    ]:
        assert best(answer_hits(text, answer)[None], answer_mask(answer)[None])[0] == share


def test_outcome_is_exact_match_and_a_missing_answer_is_wrong():
    rewards = outcome_reward([["the NYC!", None], ["Paris", "yes"]], [ANSWERS, "yes"])
    assert rewards.tolist() == [[1.0, 0.0], [0.0, 1.0]] and rewards.dtype == np.float32
    assert outcome_reward([], []).shape == (0, 0)
    with pytest.raises(ValueError, match=r"sizes \[1, 2\]"):
        outcome_reward([["a"], ["a", "b"]], ["a", "b"])
    with pytest.raises(ValueError, match="1 groups"):
        outcome_reward([["a"]], ["a", "b"])


def trajectory():
    """One question, three turns, two rollouts: what the memories, the recalled memories and the chunks hold."""
    memories = [["", ""], ["new", "new york city"], ["new york", "york"], ["new york city", "york"]]
    recalled = [["", "new"], ["city", "new york city"], ["", "new york city"]]
    chunks = ["york", "city", ""]  # read after turns 0, 1; nothing follows turn 2
    return {
        "hits_memory": np.array([[[hits(text) for text in turn] for turn in memories]]),
        "hits_recalled": np.array([[[hits(text) for text in turn] for turn in recalled]]),
        "hits_next_chunk": np.array([[hits(text) for text in chunks]]),
        "answer_mask": answer_mask(ANSWERS)[None],
        "turn_mask": np.ones((1, 3, 2), bool),
    }


def test_memory_gain_is_credited_to_the_writing_turn_and_can_be_negative():
    episode = trajectory()
    gain = memory_gain(episode["hits_memory"], episode["answer_mask"], episode["turn_mask"])
    np.testing.assert_allclose(gain[0], [[1 / 3, 1.0], [1 / 3, -2 / 3], [1 / 3, 0.0]], atol=1e-6)


def test_callback_gain_counts_only_what_neither_the_new_memory_nor_the_next_chunk_holds():
    # Rollout 0: turn 1 recalls "city", which the next chunk holds. Rollout 1: turn 1 recalls "new" and "city" beside
    # "york", and the chunk holds "city": only "new" is gained. Turn 2: two words, no chunk follows.
    np.testing.assert_allclose(callback_gain(**trajectory())[0], [[0.0, 0.0], [0.0, 1 / 3], [0.0, 2 / 3]], atol=1e-6)


def test_callback_gain_unites_words_answer_by_answer():
    # Two answers of two words, one word of each known: a recalled word completes only its own answer.
    mask = np.ones((1, 2, 2), bool)
    known = np.array([[True, False], [True, False]])
    recalled = np.array([[False, False], [False, True]])
    memory = np.stack([np.zeros((2, 2), bool), known])[None, :, None]
    gain = callback_gain(
        recalled[None, None, None], memory, np.zeros((1, 1, 2, 2), bool), mask, np.ones((1, 1, 1), bool)
    )
    assert gain.tolist() == [[[0.5]]]


def test_yes_no_questions_have_no_gains():
    episode = trajectory() | {"answer_mask": np.zeros((1, 2, 3), bool)}
    assert not np.any(callback_gain(**episode))
    assert not np.any(memory_gain(episode["hits_memory"], episode["answer_mask"], episode["turn_mask"]))


def test_state_reward_adds_weighted_parts_and_the_final_turn_has_format_alone():
    memory, callback = np.full((1, 2, 1), 0.5, np.float32), np.full((1, 2, 1), 0.25, np.float32)
    format = format_reward(np.array([[[True], [False], [True]]]))
    assert format.tolist() == [[[1.0], [0.0], [1.0]]]
    assert state_reward(memory, callback, format).tolist() == [[[1.75], [0.75], [1.0]]]
    weighted = state_reward(memory, callback, format, memory_weight=2, callback_weight=4, format_weight=0)
    assert weighted.tolist() == [[[2.0], [2.0], [0.0]]]
    assert state_parts(memory, callback, format)["callback"].tolist() == [[[0.25], [0.25], [0.0]]]


def random_episode(seed):
    draw = np.random.default_rng(seed)
    n, t, g, y, a = 2, 3, 2, 2, 3

    def coin(*shape):
        return draw.random(shape) < 0.5

    return {
        "hits_memory": coin(n, t + 1, g, y, a),
        "hits_recalled": coin(n, t, g, y, a),
        "hits_next_chunk": coin(n, t, y, a),
        "answer_mask": coin(n, y, a),
        "turn_mask": coin(n, t, g),
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_gains_are_bounded_callback_gain_is_never_negative_and_masked_turns_earn_nothing(seed):
    episode = random_episode(seed)
    memory = memory_gain(episode["hits_memory"], episode["answer_mask"], episode["turn_mask"])
    callback = callback_gain(**episode)
    assert np.all(callback >= 0) and np.all(callback <= 1) and np.all(abs(memory) <= 1)
    assert not np.any(memory[~episode["turn_mask"]]) and not np.any(callback[~episode["turn_mask"]])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_more_turns_answers_and_words_of_padding_change_no_gain(seed):
    episode = random_episode(seed)
    junk = np.random.default_rng(seed + 1)

    def pad(name, turns, fill):
        array = episode[name]
        wide = [(0, 0)] * (array.ndim - 2) + [(0, 1), (0, 2)] if name != "turn_mask" else [(0, 0)] * array.ndim
        wide[1] = (0, turns) if name != "answer_mask" else (0, 1)
        padding = np.pad(np.ones_like(array), wide) == 0
        return np.where(padding, fill(padding.shape), np.pad(array, wide))

    padded = {
        name: pad(name, 2, np.zeros if name.endswith("mask") else lambda shape: junk.random(shape) < 0.5).astype(bool)
        for name in episode
    }
    for gain, names in [
        (memory_gain, ["hits_memory", "answer_mask", "turn_mask"]),
        (callback_gain, list(episode)),
    ]:
        plain = gain(**{name: episode[name] for name in names})
        long = jax.jit(gain)(**{name: padded[name] for name in names})
        np.testing.assert_array_equal(long[:, :3], plain)
        assert not np.any(long[:, 3:])
