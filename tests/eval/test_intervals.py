"""Intervals against exact distributions: resamples listed by hand, the binomial, and coverage of a known truth."""

import itertools

import numpy as np
import pytest

from remem_jax.errors import RememError
from remem_jax.eval import intervals
from remem_jax.eval.intervals import (
    Interval,
    bootstrap_interval,
    mean_interval,
    paired_interval,
    share_interval,
    unpaired_interval,
)


def test_equal_scores_have_an_interval_without_width():
    assert mean_interval([0.25] * 7) == Interval(0.25, 0.25, 0.25, 7)
    assert mean_interval([1.0]).half_width == 0.0


def test_the_resampled_means_of_three_scores_are_the_27_that_can_be_listed(monkeypatch):
    scores = [0.0, 0.5, 2.0]
    every = sorted(np.mean(drawn) for drawn in itertools.product(scores, repeat=3))
    found: list[np.ndarray] = []
    monkeypatch.setattr(intervals, "_percentiles", lambda means, level: found.append(means) or (0.0, 0.0))
    bootstrap_interval(scores, resamples=20000)
    values, counts = np.unique(np.round(found[0], 9), return_counts=True)
    expected, ways = np.unique(np.round(every, 9), return_counts=True)
    assert values.tolist() == expected.tolist()
    # Each of the 27 draws has chance 1/27; four standard errors of a share of 20,000 are below .015.
    assert counts / 20000 == pytest.approx(ways / 27, abs=0.015)


def test_an_interval_does_not_depend_on_how_many_resamples_are_held_at_a_time(monkeypatch):
    scores = np.random.default_rng(0).random(50)
    whole = bootstrap_interval(scores, resamples=101)
    monkeypatch.setattr(intervals, "_DRAWS_AT_ONCE", 350)  # 7 resamples at a time, 3 in the last
    assert bootstrap_interval(scores, resamples=101) == whole


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        low, high = bootstrap_interval((draw.random(120) < 0.3).astype(float), resamples=400)
        covered += low <= 0.3 <= high
    # .95 nominal, a little less for a percentile interval of 120 scores; the standard error of the share is .011.
    assert 0.91 <= covered / 400 <= 0.98


def test_a_share_has_the_interval_of_its_zeros_and_ones():
    by_scores = mean_interval([1.0] * 212 + [0.0] * 188, resamples=20000)
    by_share = share_interval(0.53, 400, resamples=20000)
    assert by_share.mean == by_scores.mean == 0.53 and by_share.n == 400
    # Standard error sqrt(.53 * .47 / 400) = .02496, 1.96 of them .0489.
    for found in (by_scores, by_share):
        assert (found.low, found.high) == pytest.approx((0.53 - 0.0489, 0.53 + 0.0489), abs=0.003)
    for share, n in [(1.2, 10), (-0.1, 10), (0.5, 0)]:
        with pytest.raises(RememError, match="share from 0 to 1 of at least one question"):
            share_interval(share, n)


def test_pairs_are_found_by_question_and_what_is_hard_for_both_cancels():
    second = {str(i): float(i % 2) for i in range(100)}
    first = dict(reversed([(name, score + 0.25) for name, score in second.items()]))
    assert paired_interval(first, second) == Interval(0.25, 0.25, 0.25, 100)
    assert paired_interval(second, first).mean == -0.25


def test_agents_that_answered_different_questions_are_not_compared():
    with pytest.raises(RememError, match=r"found 2 that only one of them has .'b' first"):
        paired_interval({"a": 1.0, "b": 0.0}, {"a": 1.0, "c": 0.0})


def test_independent_means_differ_by_a_root_of_squares():
    first, second = Interval(0.5, 0.46, 0.53, 900), Interval(0.2, 0.17, 0.24, 1000)
    difference = unpaired_interval(first, second)
    # .04 down and .04 up make .0566; .03 up and .03 down make .0424.
    assert difference == pytest.approx((0.3, 0.3 - 0.04 * 2**0.5, 0.3 + 0.03 * 2**0.5, 900))
    assert unpaired_interval(second, first) == pytest.approx((-0.3, -0.3 - 0.03 * 2**0.5, -0.3 + 0.04 * 2**0.5, 900))
