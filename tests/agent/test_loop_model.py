"""The loop with a real (tiny, random) model: what it samples depends on the question, the rollout and the turn alone.

Tags without memory marks make any reply that is not blank a memory, so that memories and look-ups really happen.
"""

import numpy as np
import pytest

from remem_jax.agent.loop import Agent
from remem_jax.agent.protocol import Tags
from remem_jax.config import AgentConfig, Sampling
from remem_jax.rollout.buckets import compilations
from remem_jax.testing import tiny_model
from tests.agent.test_loop import PROMPTS, kept_ids, reading

CONFIG = AgentConfig(
    agent="rule_callback",
    prompt_order="section_first",
    tags=Tags(memory=None),
    memory_tokens=8,
    max_reply_tokens=6,
    prompts=PROMPTS,
    sampling=Sampling(temperature=1.0, top_p=0.95),
)
LETTERS = " ".join("abcdefghijklmnop")  # a question that recalls any memory that holds one of them as a word
# Of one size class, so that few programs are compiled: prefixes of 44 to 54 tokens, suffixes of at most 32.
READINGS = [reading("none", LETTERS), reading("one", LETTERS, "sun"), reading("three", LETTERS, "moon", "rain", "sea")]


@pytest.fixture(scope="module")
def agent():
    return Agent(tiny_model(num_layers=1), CONFIG)


@pytest.fixture(scope="module")
def together(agent):
    return agent.run(READINGS, rollouts=2, seed=5, questions_in_flight=3, keep_prompts=True)


def assert_equal(episode, other):
    assert (episode.reading.id, episode.rollout) == (other.reading.id, other.rollout)
    assert len(episode.turns) == len(other.turns)
    for a, b in zip(episode.turns, other.turns):
        for name in ("reply_ids", "prefix_ids", "suffix_ids"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()
        for name in ("turn", "final", "reply", "memory", "recalled_step", "recalled_score", "valid", "prompt_tokens"):
            assert getattr(a, name) == getattr(b, name)
        for name in ("logprobs", "sampled_logprobs"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-4)


def test_one_question_at_a_time_in_any_order_gives_what_all_together_give(agent, together):
    alone = agent.run(READINGS[::-1], rollouts=2, seed=5, questions_in_flight=1, keep_prompts=True)[::-1]
    assert [len(e.turns) for e, _ in together] == [1, 2, 4]
    for of_question, others in zip(together, alone, strict=True):
        for episode, other in zip(of_question, others, strict=True):
            assert_equal(episode, other)


def test_memories_were_written_and_recalled_so_that_these_tests_can_fail(together):
    turns = [turn for of_question in together for episode in of_question for turn in episode.turns]
    assert any(turn.memory for turn in turns) and any(turn.recalled_step >= 0 for turn in turns)
    assert all(len(turn.logprobs) == len(turn.sampled_logprobs) == len(turn.reply_ids) <= 6 for turn in turns)
    assert all((turn.logprobs <= 0).all() and (turn.sampled_logprobs >= turn.logprobs).all() for turn in turns)


def test_rollouts_seeds_steps_and_turns_draw_different_numbers(agent, together):
    first, second = together[1]
    assert kept_ids(first.turns[0]) == kept_ids(second.turns[0])
    assert first.turns[0].reply_ids.tolist() != second.turns[0].reply_ids.tolist()
    replies = {first.turns[0].reply}
    for seed, step in ((6, 0), (5, 1)):
        [[other, _]] = agent.run(READINGS[1:2], rollouts=2, seed=seed, step=step, questions_in_flight=1)
        replies.add(other.turns[0].reply)
    assert len(replies) == 3


def test_a_second_question_of_the_same_size_class_compiles_nothing(agent):
    agent.run([reading("x", LETTERS[:21], "the moon", "and the sea")], rollouts=2)
    before = compilations()
    agent.run([reading("y", LETTERS[:23], "another sky", "hour")], rollouts=2, seed=1)
    assert compilations() == before > 0


def test_a_run_can_be_stopped_between_two_visits_of_the_device(agent):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent.run(READINGS[1:2], rollouts=2, between=stop)


def test_no_questions_give_no_episodes(agent):
    assert agent.run([]) == []
