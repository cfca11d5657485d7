"""How sure a measured mean is: bootstrap intervals over questions, for one agent and for two agents on the same ones.

Everything is seeded and in the unit of the scores, so a table made twice from the same results is the same table.

Axes: `n` questions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from remem_jax.errors import RememError

_DRAWS_AT_ONCE = 2**20  # resampled scores held at a time: [resamples, n] at once would not fit for large sets


class Interval(NamedTuple):
    """A mean of scores, or of differences, and its interval.

    Attributes:
        mean: of the scores, unrounded.
        low, high: ends of the interval.
        n: questions.
    """

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half of the interval's length: the number behind the ± of a table."""
        return (self.high - self.low) / 2


def bootstrap_interval(
    scores: Sequence[float] | Float[np.ndarray, "n"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `scores`, resampling questions.

    Scores that are all equal give an interval without width: the bootstrap cannot see what it never drew.

    Args:
        scores: `[n]`, one a question.
        level: share of resampled means inside the interval.
        resamples: number of resampled means.
        seed: same scores and seed, same interval.

    Returns:
        Lower and upper end, unrounded.

    Raises:
        RememError: no scores.
    """
    values = np.asarray(scores, np.float64)
    if values.size == 0:
        raise RememError("expected the score of at least one question, found none: nothing was evaluated")
    draw = np.random.default_rng(seed)
    at_once = max(1, _DRAWS_AT_ONCE // values.size)
    means = [
        values[draw.integers(0, values.size, (min(at_once, resamples - done), values.size))].mean(axis=1)
        for done in range(0, resamples, at_once)
    ]
    return _percentiles(np.concatenate(means), level)


def mean_interval(
    scores: Sequence[float] | Float[np.ndarray, "n"], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Mean of `scores` with its `bootstrap_interval`."""
    low, high = bootstrap_interval(scores, level=level, resamples=resamples, seed=seed)
    return Interval(float(np.mean(scores)), low, high, len(scores))


def share_interval(share: float, n: int, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """The interval of a share of right answers where only the share and `n` are known.

    Resampling `n` scores of 0 and 1 gives a binomial count, so this is `mean_interval` of the scores themselves.

    Raises:
        RememError: a share outside 0..1, or no questions.
    """
    if not 0 <= share <= 1 or n < 1:
        raise RememError(f"expected a share from 0 to 1 of at least one question, found {share} of {n}")
    low, high = _percentiles(np.random.default_rng(seed).binomial(n, share, resamples) / n, level)
    return Interval(float(share), low, high, n)


def paired_interval(
    first: Mapping[str, float],
    second: Mapping[str, float],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Mean of `first - second`, question by question, with its interval.

    Whole pairs are resampled, so what makes a question hard for both agents cancels.

    Args:
        first, second: scores by question id; the order of the questions does not matter.

    Raises:
        RememError: the two are not of the same questions.
    """
    if first.keys() != second.keys():
        only = sorted(first.keys() ^ second.keys())
        raise RememError(
            f"expected two agents' scores on the same questions, found {len(only)} that only one of them has "
            f"({only[0]!r} first): evaluate both on one set"
        )
    differences = [first[name] - second[name] for name in sorted(first)]
    return mean_interval(differences, level=level, resamples=resamples, seed=seed)


def unpaired_interval(first: Interval, second: Interval) -> Interval:
    """Difference of two independent means, `first - second`, from their own intervals (Newcombe's square-and-add).

        low  = d - sqrt((first.mean - first.low)^2  + (second.high - second.mean)^2)
        high = d + sqrt((first.high - first.mean)^2 + (second.mean - second.low)^2)

    Wider than the paired interval where the questions are the same; `n` is the smaller of the two.
    """
    difference = first.mean - second.mean
    low = difference - math.hypot(first.mean - first.low, second.high - second.mean)
    high = difference + math.hypot(first.high - first.mean, second.mean - second.low)
    return Interval(difference, low, high, min(first.n, second.n))


def _percentiles(means: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
