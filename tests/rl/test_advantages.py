"""Advantages: hand-computed groups, the limits of alpha, and what must change nothing."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remem_jax.rl.advantages import centre, decoupled_advantages, multi_level_advantages

SEEDS = given(seed=st.integers(0, 10**6))
FEW = settings(max_examples=25, deadline=None)
KINDS = {
    "plain": jax.jit(multi_level_advantages),
    "std": jax.jit(partial(multi_level_advantages, std=True)),
    "decoupled": jax.jit(lambda outcome, state, mask: decoupled_advantages(outcome, {"a": state, "b": state**2}, mask)),
}
ALL = np.ones((1, 2, 4), bool)
ONE_OF_FOUR = np.array([1.0, 0, 0, 0])
TWO = np.array([[1.0, 0]])


def close(found, expected, atol=1e-6):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=atol)


def batch(seed, n=3, t=3, g=4):
    """Outcome, state and a mask with dead rollouts, dead turns in between, and junk at every masked place."""
    draw = np.random.default_rng(seed)
    mask = draw.random((n, t + 1, g)) < 0.8
    mask &= mask[:, -1:]
    outcome = np.where(mask[:, -1], draw.integers(0, 2, (n, g)), np.nan).astype(np.float32)
    state = np.where(mask, draw.normal(size=mask.shape), np.inf).astype(np.float32)
    return outcome, state, mask


def test_one_right_answer_of_four_gives_three_quarters_and_minus_a_quarter():
    close(centre(ONE_OF_FOUR, np.ones(4, bool)), [0.75, -0.25, -0.25, -0.25])


def test_equal_rewards_give_exact_zeros_also_where_their_mean_rounds_and_with_std():
    values = np.full(7, 0.1, np.float32)
    for std in (False, True):
        assert not np.any(centre(values, np.ones(7, bool), std=std))


def test_std_divides_by_the_deviation_of_a_sample():
    close(centre(ONE_OF_FOUR, np.ones(4, bool), std=True), [1.5, -0.5, -0.5, -0.5], atol=1e-5)  # deviation 0.5


def test_the_two_levels_are_mixed_by_alpha_each_turn_being_its_own_group():
    state = np.array([[[2.0, 0, 0, 0], [1.0, 1, 0, 0]]])
    advantages = multi_level_advantages(ONE_OF_FOUR[None], state, ALL, 0.8)
    # Outcome (.75, -.25, ...); turn 0 (1.5, -.5, ...); final turn (.5, .5, -.5, -.5).
    close(advantages[0, 0], [0.9, -0.3, -0.3, -0.3])
    close(advantages[0, 1], [0.7, -0.1, -0.3, -0.3])


def test_dead_members_are_outside_the_mean_and_get_zero():
    mask = np.array([[[True, True, False, True], [True, True, False, True]]])
    advantages = multi_level_advantages(
        np.array([[1.0, 0, 9, 0]]), np.array([[[3.0, 0, 9, 0], [0.0, 0, 9, 0]]]), mask, 0.5
    )
    # Outcome over three (2/3, -1/3, ., -1/3); turn 0 (2, -1, ., -1); final turn all equal.
    close(advantages, [[[4 / 3, -2 / 3, 0, -2 / 3], [1 / 3, -1 / 6, 0, -1 / 6]]])


def test_a_turn_that_one_rollout_alone_has_gets_its_outcome_only():
    mask = np.array([[[True, False], [True, True]]])
    close(multi_level_advantages(TWO, np.array([[[5.0, 7], [0.0, 2]]]), mask, 0.5), [[[0.25, 0], [-0.25, 0.25]]])


def test_a_group_of_one_gives_zero_whether_alone_or_left_alone():
    alone = multi_level_advantages(np.ones((2, 1)), np.ones((2, 3, 1)), np.ones((2, 3, 1), bool))
    left = multi_level_advantages(TWO, np.array([[[5.0, 7], [4.0, 2]]]), np.array([[[True, False]] * 2]))
    assert alone.shape == (2, 3, 1) and not np.any(alone) and not np.any(left)


@FEW
@SEEDS
def test_alpha_one_is_the_outcome_alone_and_alpha_zero_the_state_alone(seed):
    outcome, state, mask = batch(seed)
    expected = np.where(mask, np.asarray(centre(outcome, mask[:, -1]))[:, None], 0)
    close(multi_level_advantages(outcome, state, mask, 1.0), expected)
    close(multi_level_advantages(outcome, state, mask, 0.0), centre(state, mask))


@FEW
@SEEDS
@pytest.mark.parametrize("std", [False, True])
def test_shuffling_rollouts_permutes_advantages(std, seed):
    outcome, state, mask = batch(seed)
    order = np.random.default_rng(seed).permutation(outcome.shape[1])
    plain = multi_level_advantages(outcome, state, mask, std=std)
    close(
        multi_level_advantages(outcome[:, order], state[..., order], mask[..., order], std=std), plain[..., order], 1e-5
    )


def grow(outcome, state, mask, places, junk=np.nan):
    """The same batch with dead questions, turns before the final one, and rollouts, at the given numbers."""
    questions, turns, rollouts = places
    outcome = np.pad(outcome, ((0, questions), (0, rollouts)), constant_values=junk)
    state, mask = (np.insert(one, [one.shape[1] - 1] * turns, fill, axis=1) for one, fill in ((state, junk), (mask, 0)))
    wide = ((0, questions), (0, 0), (0, rollouts))
    return outcome, np.pad(state, wide, constant_values=junk), np.pad(mask, wide)


@FEW
@SEEDS
@pytest.mark.parametrize("kind", list(KINDS))
def test_dead_questions_turns_and_rollouts_change_nothing(kind, seed):
    advantages = KINDS[kind]
    outcome, state, mask = batch(seed)
    n, turns, g = mask.shape
    big = np.asarray(advantages(*grow(outcome, state, mask, (2, 3, 1))))
    kept = np.concatenate([big[:n, : turns - 1, :g], big[:n, -1:, :g]], axis=1)
    close(kept, advantages(outcome, state, mask), 1e-5)
    assert not np.any(big[n:]) and not np.any(big[..., g:]) and not np.any(big[:, turns - 1 : -1])


@FEW
@SEEDS
def test_without_std_centring_the_mixed_reward_is_mixing_the_centred_rewards(seed):
    draw = np.random.default_rng(seed)
    outcome, state = draw.normal(size=(3, 4)), draw.normal(size=(3, 2, 4))
    mixed = 0.3 * outcome[:, None] + 0.7 * state
    expected = mixed - mixed.mean(-1, keepdims=True)
    close(multi_level_advantages(outcome, state, np.ones((3, 2, 4), bool), 0.3), expected, 1e-5)


@FEW
@SEEDS
def test_a_reward_common_to_a_group_changes_nothing_and_live_advantages_of_a_group_sum_to_zero(seed):
    outcome, state, mask = batch(seed)
    plain = multi_level_advantages(outcome, state, mask)
    shifted = multi_level_advantages(outcome + 2, state - 3, mask)
    close(shifted, plain, 1e-5)
    close(multi_level_advantages(outcome, state, mask, 0.0).sum(-1), 0, 1e-5)


def test_decoupled_parts_have_an_equal_say_whatever_their_scale():
    # Part a alone would give (1, -1, 0, 0) in direction, b (0, 0, 1, -1): after normalising by itself, both alike.
    parts = {"a": np.array([[[100.0, -100, 0, 0]] * 2]), "b": np.array([[[0.0, 0, 1, -1]] * 2])}
    outcome = np.zeros((1, 4))
    # Each deviation leaves ±1.2247; the sum has root mean square 1.2247, which the batch scale removes.
    close(decoupled_advantages(outcome, parts, ALL, 0.0), [[[1, -1, 1, -1]] * 2], 1e-4)
    weighted = decoupled_advantages(outcome, parts, ALL, 0.0, weights={"b": 0})
    close(weighted, [[[2**0.5, -(2**0.5), 0, 0]] * 2], 1e-4)
    close(decoupled_advantages(ONE_OF_FOUR[None], parts, ALL, 1.0)[0, 0], [3**0.5, *[-(3**-0.5)] * 3], 1e-4)
    with pytest.raises(ValueError, match=r"\['a', 'b'\], found one of \['c'\]"):
        decoupled_advantages(outcome, parts, ALL, weights={"c": 1})
