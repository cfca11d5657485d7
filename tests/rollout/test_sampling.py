"""Sampling: what may be drawn, how often, with which log-probabilities, and from whose key.

Axes: `M` rows, `V` vocabulary.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# NumPy arrays are handed to functions of jax arrays throughout: making them costs no compilation.

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.config import Sampling
from remem_jax.rollout.sampling import _draw, _nucleus_threshold, question_digest, row_keys, sample

ROWS, VOCABULARY = 20000, 300


@functools.partial(jax.jit, static_argnames="sampling")
def draw_rows(logits, seed, sampling):
    """A token for each row of `logits [V]` repeated `ROWS` times, each with a key of its own."""
    keys = jax.random.split(jax.random.key(seed), ROWS)
    return sample(jnp.broadcast_to(logits, (ROWS, logits.shape[0])), keys, sampling)


def kept_by_sorting(logits, temperature, top_p, top_k):
    """Probability of each token of one row after top-k and then top-p, in float64; the reference."""
    p = np.exp(np.asarray(logits, np.float64) / temperature)
    p /= p.sum()
    if top_k:
        p = np.where(p >= np.sort(p)[::-1][min(top_k, len(p)) - 1], p, 0)
        p /= p.sum()
    if top_p < 1:
        falling = np.sort(p)[::-1]
        last = falling[np.argmax(np.cumsum(falling) >= top_p * (1 - 1e-6))]
        p = np.where(p >= last, p, 0)
        p /= p.sum()
    return p


CASES = [Sampling(1.0, 1.0), Sampling(0.7, 0.95), Sampling(1.5, 1.0, 5), Sampling(0.8, 0.6, 40)]


@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_tokens_are_drawn_as_often_as_their_probability_says(sampling):
    logits = np.random.default_rng(0).normal(size=VOCABULARY).astype(np.float32) * 2
    tokens, logprobs, sampled = map(np.asarray, draw_rows(logits, 1, sampling))
    p = kept_by_sorting(logits, sampling.temperature, sampling.top_p, sampling.top_k)
    counts = np.bincount(tokens, minlength=VOCABULARY)
    assert not counts[p == 0].any()
    expected = ROWS * p
    rare = (expected < 5) & (p > 0)
    groups = [(counts[i], expected[i]) for i in np.flatnonzero(expected >= 5)]
    if rare.any():
        groups.append((counts[rare].sum(), expected[rare].sum()))
    observed, expected = np.array(groups, np.float64).T
    freedom = len(expected) - 1
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)  # four standard deviations above its mean

    full = kept_by_sorting(logits, sampling.temperature, 1.0, 0)
    np.testing.assert_allclose(logprobs, np.log(full[tokens]), atol=2e-5)
    np.testing.assert_allclose(sampled, np.log(p[tokens]), atol=2e-5)


def test_greedy_takes_the_first_of_the_most_likely_and_reports_its_logprob_at_temperature_1():
    logits = np.log([[1.0, 5.0, 5.0, 1.0], [8.0, 2.0, 1.0, 1.0]]).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 2)
    tokens, logprobs, sampled = sample(logits, keys, Sampling(temperature=0.0, top_p=0.1, top_k=1))
    assert tokens.tolist() == [1, 0]
    np.testing.assert_allclose(np.exp(logprobs), [5 / 12, 8 / 12], rtol=1e-6)
    assert sampled.tolist() == [0, 0]


def test_top_p_keeps_what_is_as_likely_as_the_last_token_of_the_nucleus():
    """Of 0.4, 0.2, 0.2, 0.1, 0.1 a half needs one of the two 0.2: both stay, 0.8 in all."""
    logits = np.log([0.1, 0.2, 0.4, 0.1, 0.2]).astype(np.float32)
    tokens, _, sampled = map(np.asarray, draw_rows(logits, 0, Sampling(1.0, 0.5)))
    assert set(tokens.tolist()) == {1, 2, 4}
    np.testing.assert_allclose(np.exp(sampled[tokens == 2]), 0.5, rtol=1e-5)
    np.testing.assert_allclose(np.exp(sampled[tokens == 1]), 0.25, rtol=1e-5)


def test_a_top_p_that_the_most_likely_token_meets_leaves_only_that_one():
    logits = np.log([0.1, 0.6, 0.3]).astype(np.float32)
    tokens, logprobs, sampled = map(np.asarray, draw_rows(logits, 0, Sampling(1.0, 0.05)))
    assert set(tokens.tolist()) == {1}
    np.testing.assert_allclose(np.exp(logprobs), 0.6, rtol=1e-5)
    np.testing.assert_allclose(sampled, 0, atol=1e-6)


def test_the_threshold_of_the_nucleus_is_that_of_a_sort_also_with_ties():
    """Weights in eighths add up exactly in any order, so the threshold must be equal and not only close."""
    numbers = np.random.default_rng(0)
    weights = numbers.integers(0, 9, (500, 33)).astype(np.float32) / 8
    weights[:, 0] = 1
    find = jax.jit(_nucleus_threshold, static_argnums=1)
    for top_p in (0.25, 0.5, 0.75, 0.9375):
        falling = -np.sort(-weights, axis=1)
        enough = np.cumsum(falling, axis=1) >= np.float32(top_p) * weights.sum(axis=1, keepdims=True)
        expected = np.take_along_axis(falling, enough.argmax(axis=1)[:, None], axis=1)
        np.testing.assert_array_equal(find(weights, top_p), expected)


def test_a_draw_inverts_the_sum_of_the_weights_across_blocks_and_never_takes_a_weight_of_0():
    """Weights 1 at 5, 255, 256 and 600: quarters of the unit interval; just below 1 rounding may find nothing above."""
    weights = np.zeros((6, 700), np.float32)
    weights[:, [5, 255, 256, 600]] = 1
    uniform = np.array([0.0, 0.24, 0.25, 0.51, 0.76, np.nextafter(np.float32(1), np.float32(0))], np.float32)
    assert jax.jit(_draw)(weights, uniform).tolist() == [5, 5, 255, 256, 600, 600]
    small = np.random.default_rng(0).exponential(size=(2000, 700)).astype(np.float32) ** 8
    small[:, 300:] = 0
    almost_one = np.full(2000, uniform[-1])
    tokens = np.asarray(jax.jit(_draw)(small, almost_one))
    assert (np.take_along_axis(small, tokens[:, None], axis=1) > 0).all()


def test_a_row_is_drawn_by_its_own_key_whoever_shares_the_batch():
    logits = np.random.default_rng(0).normal(size=(5, VOCABULARY)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 5)
    run = jax.jit(sample, static_argnums=2)
    together = run(logits, keys, Sampling())[0].tolist()
    backwards = run(logits[::-1], keys[::-1], Sampling())[0].tolist()
    alone = [run(logits[i : i + 1], keys[i : i + 1], Sampling())[0].item() for i in range(5)]
    assert together == backwards[::-1] == alone


def numbers_of(keys):
    return np.asarray(jax.random.key_data(keys)).tolist()


def test_keys_depend_on_seed_step_question_rollout_and_turn_alone():
    digests, rollouts, turns = np.array([3, 9], np.uint32), np.array([0, 1, 2]), np.array([4, 7])
    make = jax.jit(row_keys)
    found = numbers_of(make(1, 2, digests, rollouts, turns))
    assert found == numbers_of(make(1, 2, digests, rollouts, turns))
    swapped = numbers_of(make(1, 2, digests[::-1], rollouts[::-1], turns[::-1]))
    assert [row[::-1] for row in swapped[::-1]] == found
    assert numbers_of(make(1, 2, digests[1:], rollouts[1:2], turns[1:])) == [[found[1][1]]]
    others = [make(seed, step, digests, rollouts, turns) for seed, step in ((0, 2), (1, 0), (2, 1))]
    others.append(make(1, 2, digests, rollouts, turns + 1))
    everything = [found, *map(numbers_of, others)]
    assert len({tuple(key) for keys in everything for row in keys for key in row}) == 5 * 6


def test_the_digest_of_a_question_is_the_first_four_bytes_of_its_sha256_lowest_first():
    assert question_digest("abc") == 0xBF1678BA  # SHA-256 of abc begins ba 78 16 bf
    assert 0 <= question_digest("\ud800") < 2**32


def test_keys_take_any_32_bit_seed_and_differ_between_seeds():
    digests, turns, rollouts = jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.int32), jnp.arange(2, dtype=jnp.uint32)
    largest, other = (row_keys(seed, 0, digests, rollouts, turns) for seed in (2**32 - 1, 2**31))
    assert not (jax.random.key_data(largest) == jax.random.key_data(other)).all()
