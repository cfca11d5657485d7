"""Scores of episodes: the arrays of METHOD 4 and 5 from texts, checked by hand."""

import numpy as np

from remem_jax.agent.loop import Episode, Turn
from remem_jax.agent.reading import Reading
from remem_jax.rl.scoring import Reward, score
from remem_jax.testing import DummyTokenizer

TOKENIZER = DummyTokenizer()


def _turn(number, *, final=False, memory=None, recalled=None, reply="", valid=True):
    one = np.zeros(1, np.float32)
    return Turn(
        turn=number, final=final, prompt_tokens=3, reply_ids=one.astype(np.int32), logprobs=one, sampled_logprobs=one,
        ended=True, reply=reply, recalled_step=-1 if recalled is None else 0, recalled_score=0.0, recalled=recalled,
        valid=valid, reason="" if valid else "no_memory", memory=memory, memory_cut=False, callback=None,
        dropped_words=0, seconds=0.0, lookup_seconds=0.0,
    )  # fmt: skip


def _episode(name, chunks, rollout, turns):
    ids = tuple(np.asarray(TOKENIZER.encode(text), np.int32) for text in chunks)
    return Episode(Reading(name, "who?", (1,), ids, sum(map(len, ids))), rollout, turns)


def _two_questions():
    """A question with two chunks and two rollouts, one with one chunk."""
    chunks = ["Ana Lee met Bo", "Bo left"]
    good = [
        _turn(0, memory="Ana is here"),
        _turn(1, memory="nothing", recalled=None),
        _turn(2, final=True, memory="nothing", recalled="Ana is here", reply="\\boxed{Ana Lee}"),
    ]
    bad = [
        _turn(0, memory=None, valid=False),
        _turn(1, memory="Ana Lee"),
        _turn(2, final=True, memory="Ana Lee", reply="no box", valid=False),
    ]
    short = [[_turn(0, memory="x"), _turn(1, final=True, memory="x", reply="\\boxed{y}")] for _ in range(2)]
    first = [_episode("q0", chunks, 0, good), _episode("q0", chunks, 1, bad)]
    second = [_episode("q1", ["y stands here"], g, turns) for g, turns in enumerate(short)]
    return [first, second], [["Ana Lee"], ["y"]]


def test_scores_of_two_questions_equal_the_hand_computed_ones():
    episodes, answers = _two_questions()
    found = score(episodes, answers, Reward(), TOKENIZER, writes_queries=True)
    np.testing.assert_array_equal(found.outcome, [[1, 0], [1, 1]])
    # [N, T1, G]: rollout 0 of question 0 gains half the answer, then loses it; rollout 1 gains all of it in turn 1.
    np.testing.assert_allclose(found.memory[0], [[0.5, 0], [-0.5, 1], [0, 0]])
    # What turn 1 asked for brings "Ana" back where the memory has nothing and no chunk follows.
    np.testing.assert_allclose(found.callback[0], [[0, 0], [0.5, 0], [0, 0]])
    np.testing.assert_allclose(found.format[0], [[1, 0], [1, 1], [1, 0]])
    np.testing.assert_array_equal(found.mask[1], [[True, True], [False, False], [True, True]])
    np.testing.assert_allclose(found.state[1], [[1, 1], [0, 0], [1, 1]])
    # alpha .8: outcome +-.5; state of turn 0 [1.5, 0], of turn 1 [1, 2], of the final one [1, 0], centred.
    expected = [[0.4 + 0.15, -0.4 - 0.15], [0.4 - 0.1, -0.4 + 0.1], [0.4 + 0.1, -0.4 - 0.1]]
    np.testing.assert_allclose(found.advantages[0], expected, atol=1e-6)
    np.testing.assert_array_equal(found.advantages[1], np.zeros((3, 2)))


def test_a_chunk_read_next_counts_against_the_callback():
    episodes, _ = _two_questions()
    for episode in episodes[0]:
        episode.turns[1].recalled = "Bo"
    found = score(episodes, [["Bo"], ["y"]], Reward(), TOKENIZER, writes_queries=True)
    assert found.callback[0, 0, 0] == 0  # chunk 1 holds Bo, so recalling it after turn 0 adds nothing
    episodes[0][0].turns[2].recalled = "Bo"
    assert score(episodes, [["Bo"], ["y"]], Reward(), TOKENIZER, writes_queries=True).callback[0, 1, 0] == 1


def test_agents_without_queries_earn_no_callback_gain():
    episodes, answers = _two_questions()
    found = score(episodes, answers, Reward(), TOKENIZER, writes_queries=False)
    assert not found.callback.any() and found.memory.any()


def test_weights_scale_parts_and_alpha_one_leaves_the_outcome_alone():
    episodes, answers = _two_questions()
    found = score(episodes, answers, Reward(memory=2, callback=0, format=0.5), TOKENIZER, writes_queries=True)
    np.testing.assert_allclose(found.state[0], [[1.5, 0], [-0.5, 2.5], [0.5, 0]])
    only = score(episodes, answers, Reward(alpha=1.0), TOKENIZER, writes_queries=True).advantages
    np.testing.assert_allclose(only[0], np.tile([0.5, -0.5], (3, 1)))


def test_normalised_advantages_are_divided_by_the_deviation_of_their_group():
    episodes, answers = _two_questions()
    std = score(episodes, answers, Reward(alpha=1.0, normalise="std"), TOKENIZER, writes_queries=True).advantages
    np.testing.assert_allclose(std[0, 0], [0.5**0.5, -(0.5**0.5)], atol=1e-5)
    separate = score(episodes, answers, Reward(normalise="separate"), TOKENIZER, writes_queries=True).advantages
    assert np.isfinite(separate).all() and separate[0, 0, 0] > separate[0, 0, 1]


def test_a_yes_no_question_has_no_gains():
    episodes, _ = _two_questions()
    found = score(episodes, [["yes"], ["y"]], Reward(), TOKENIZER, writes_queries=True)
    assert not found.memory[0].any() and not found.callback[0].any()


def test_shuffling_rollouts_permutes_their_advantages():
    episodes, answers = _two_questions()
    plain = score(episodes, answers, Reward(), TOKENIZER, writes_queries=True)
    turned = score([group[::-1] for group in episodes], answers, Reward(), TOKENIZER, writes_queries=True)
    np.testing.assert_allclose(turned.advantages, plain.advantages[:, :, ::-1])
