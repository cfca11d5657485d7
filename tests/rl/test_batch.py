"""From a scored rollout batch to mini-batches: weights and totals by hand, ids as sampled, order kept.

Question 0 has one memory turn, question 1 has two; two rollouts each. Reply tokens, rollout by rollout:
question 0: memory 2, 1; final 3, 3. Question 1: memory 4, 2 then 1, 1; final 2, 4.
"""

from typing import Any

import numpy as np
import pytest

from remem_jax.agent.loop import Episode
from remem_jax.agent.reading import Reading
from remem_jax.config import AgentConfig
from remem_jax.rl.batch import MiniBatch, mini_batch, rescored, sampler_gap, shuffled
from remem_jax.rl.config import Loss
from remem_jax.rl.scoring import Scores
from tests.made_turns import made_turn

AGENT = AgentConfig(max_reply_tokens=5)
LENGTHS = [[(2, 1), (3, 3)], [(4, 2), (1, 1), (2, 4)]]  # question -> turn -> rollout


def made_episodes() -> list[list[Episode]]:
    episodes = []
    for n, turns in enumerate(LENGTHS):
        chunks = tuple(np.arange(3, dtype=np.int32) for _ in turns[1:])
        reading = Reading(f"q{n}", "Who?", (1,), chunks, 3 * len(chunks))
        group = []
        for g in range(2):
            made = []
            for t, lengths in enumerate(turns):
                first = 1000 * n + 100 * t + 10 * g
                ids = np.arange(first, first + lengths[g], dtype=np.int32)
                made.append(
                    made_turn(
                        t,
                        final=t == len(turns) - 1,
                        reply_ids=ids,
                        logprobs=-0.001 * ids.astype(np.float32),
                        sampled_logprobs=-0.0005 * ids.astype(np.float32),
                        prefix_ids=np.array([7, n, t], np.int32),
                        suffix_ids=np.full(g + 1, 90 + g, np.int32),
                    )
                )
            group.append(Episode(reading, g, made))
        episodes.append(group)
    return episodes


def made_scores() -> Scores:
    """Advantage `n + t / 10 + g / 100` at turn `t` of `T1` 3; question 0 lacks turn 1."""
    n, t, g = np.meshgrid(np.arange(2), np.arange(3), np.arange(2), indexing="ij")
    mask = ~((n == 0) & (t == 1))
    nothing = np.zeros(mask.shape, np.float32)
    advantages = (n + t / 10 + g / 100).astype(np.float32) * mask
    return Scores(np.zeros((2, 2), np.float32), nothing, nothing, nothing, nothing, mask, advantages)


def batch_of(questions: list[int], **loss: Any) -> MiniBatch:
    return mini_batch(made_episodes(), made_scores(), np.array(questions), Loss(**loss), AGENT)


def weights_of(batch: MiniBatch) -> list[list[list[float]]]:
    return [[reply.weights.tolist() for reply in group.replies] for group in batch.groups]


def test_a_group_is_a_turn_with_its_prefix_once_and_every_rollout_of_the_question():
    batch = batch_of([1, 0])
    assert [group.prefix_ids.tolist() for group in batch.groups] == [
        [7, 1, 0],
        [7, 1, 1],
        [7, 1, 2],
        [7, 0, 0],
        [7, 0, 1],
    ]
    final = batch.groups[2].replies
    assert [reply.suffix_ids.tolist() for reply in final] == [[90], [91, 91]]
    assert [reply.reply_ids.tolist() for reply in final] == [[1200, 1201], [1210, 1211, 1212, 1213]]
    # The final turn of either question is the last of T1, so its advantage ends in .2.
    found = [[reply.advantage for reply in group.replies] for group in batch.groups]
    expected = [[1.0, 1.01], [1.1, 1.11], [1.2, 1.21], [0.0, 0.01], [0.2, 0.21]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_policy_of_the_sampler_stands_beside_each_token():
    plain, corrected = batch_of([0]), batch_of([0], importance_sampling=True)
    (_, reply), (_, other) = (batch.groups[1].replies for batch in (plain, corrected))
    assert reply.logp_old is not None and other.sampled_logp is not None
    np.testing.assert_allclose(reply.logp_old, [-0.11, -0.111, -0.112], atol=1e-7)
    assert reply.sampled_logp is None and reply.logp_ref is None
    np.testing.assert_allclose(other.sampled_logp, [-0.055, -0.0555, -0.056], atol=1e-7)


def test_state_mean_counts_every_question_the_same_then_rollout_then_turn():
    batch = batch_of([0, 1])
    assert batch.total == 2
    # 1 / (tokens of the turn * turns of the rollout * 2 rollouts); question 0 has two turns, question 1 three.
    expected = [[[1 / 8] * 2, [1 / 4]], [[1 / 12] * 3, [1 / 12] * 3]]
    expected += [[[1 / 24] * 4, [1 / 12] * 2], [[1 / 6], [1 / 6]], [[1 / 12] * 2, [1 / 24] * 4]]
    for found, wanted in zip(weights_of(batch), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert one == pytest.approx(other)
    assert sum(w for group in weights_of(batch) for reply in group for w in reply) == pytest.approx(2)


def test_a_mini_batch_of_one_question_is_a_batch_of_its_own():
    (alone,), both = [batch_of([1])], batch_of([0, 1])
    assert alone.total == 1
    assert weights_of(alone) == weights_of(both)[2:]
    # Under token_mean the total is the tokens of exactly these questions.
    assert (batch_of([0], average="token_mean").total, batch_of([1], average="token_mean").total) == (9, 14)


def test_token_mean_and_constant_weigh_every_token_by_one():
    for average, divisor, total in (
        ("token_mean", None, 23),
        ("constant", None, 2 * (2 * 3 * 5)),  # questions * (rollouts * turns * longest reply)
        ("constant", 40.0, 80),
    ):
        batch = batch_of([0, 1], average=average, divisor=divisor)
        assert batch.total == total
        assert {w for group in weights_of(batch) for reply in group for w in reply} == {1.0}


def test_shuffled_holds_each_question_once_and_depends_on_seed_and_step_alone():
    batches = shuffled(12, 4, seed=1, step=5)
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert sorted(np.concatenate(batches).tolist()) == list(range(12))
    orders = {tuple(np.concatenate(shuffled(12, 4, seed, step))) for seed, step in ((1, 5), (1, 5), (1, 6), (2, 5))}
    assert len(orders) == 3


def test_rescored_gives_every_token_its_own_value_whatever_the_packing():
    batch = batch_of([1, 0])
    seen = []

    def of_rows(rows) -> np.ndarray:  # 0.25 for each unit of the token's id, to tell tokens apart
        seen.append(rows.targets.shape[0])
        return 0.25 * np.asarray(rows.targets, np.float32)

    for token_budget, row_tokens, calls in ((4096, None, 1), (64, 32, 5)):
        seen.clear()
        found = rescored(batch, of_rows, "logp_ref", token_budget=token_budget, row_tokens=row_tokens)
        assert len(seen) >= calls and found.total == batch.total
        for mine, given in zip(found.groups, batch.groups, strict=True):
            assert mine.prefix_ids is given.prefix_ids
            for one, other in zip(mine.replies, given.replies, strict=True):
                assert one.reply_ids is other.reply_ids and one.advantage == other.advantage
                np.testing.assert_array_equal(one.logp_ref, 0.25 * other.reply_ids.astype(np.float32))
                np.testing.assert_array_equal(one.logp_old, other.logp_old)
                assert other.logp_ref is None


def test_the_gap_is_the_mean_and_the_largest_difference_over_all_tokens():
    before = [batch_of([0]), batch_of([1])]

    def as_given(rows) -> np.ndarray:
        return -0.001 * np.asarray(rows.targets, np.float32)

    after = [rescored(batch, as_given, "logp_old", token_budget=4096, row_tokens=None) for batch in before]
    last = after[1].groups[-1].replies[-1]
    assert last.logp_old is not None
    last.logp_old[2] += 0.46  # one of 23 tokens
    assert sampler_gap(before, after) == pytest.approx({"gap_abs": 0.02, "gap_max": 0.46}, abs=1e-5)
