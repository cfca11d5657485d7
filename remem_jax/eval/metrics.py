"""Answer metrics, each the best over all gold answers, in `[0, 1]` and unrounded; summaries that name n and interval.

A prediction of None (no box in the reply, a failed or missing reply) scores 0 in every metric.

Axes: `n` questions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from remem_jax.errors import RememError
from remem_jax.eval.intervals import bootstrap_interval
from remem_jax.eval.normalise import fold, normalise

__all__ = [
    "Summary",
    "accuracy",
    "as_answers",
    "bootstrap_interval",
    "exact_match",
    "f1",
    "fold",
    "normalise",
    "paired_difference",
    "sub_exact_match",
    "sub_exact_match_published",
]

Answers = Sequence[str] | str
CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def as_answers(answers: Answers) -> list[str]:
    """Gold answers as a list; one bare string is one answer.

    Raises:
        RememError: there is no gold answer.
    """
    answers = [answers] if isinstance(answers, str) else list(answers)
    if not answers:
        raise RememError("expected at least one gold answer, found none: give every question an answer or leave it out")
    return answers


def exact_match(prediction: str | None, answers: Answers) -> float:
    """1 if the prediction equals a gold answer after normalisation, else 0."""
    return _best(prediction, answers, lambda one, gold: float(normalise(one) == normalise(gold)))


def f1(prediction: str | None, answers: Answers) -> float:
    """Harmonic mean of precision and recall over the words of the normal forms, counted with repeats.

    `2 * common / (words of the prediction + words of the answer)`; 0 when either side is yes, no or noanswer and they
    differ. Symmetric in prediction and answer.
    """
    return _best(prediction, answers, _f1)


def sub_exact_match(prediction: str | None, answers: Answers) -> float:
    """1 if the words of a normalised gold answer stand in the prediction, whole and one after another, else 0."""
    return _best(prediction, answers, _contains_words)


def sub_exact_match_published(prediction: str | None, answers: Answers) -> float:
    """1 if either normalised string contains the other as characters, else 0.

    Only for comparison with published tables: it takes "no" for "Norway", and an empty box for every answer.
    """
    return _best(prediction, answers, _contains_characters)


def _best(prediction: str | None, answers: Answers, score: Callable[[str, str], float]) -> float:
    golds = as_answers(answers)
    return 0.0 if prediction is None else max(score(prediction, gold) for gold in golds)


def _f1(prediction: str, gold: str) -> float:
    left, right = fold(prediction), fold(gold)
    if not left or not right or ({left, right} & CLOSED_ANSWERS):
        return float(normalise(prediction) == normalise(gold))
    left, right = left.split(), right.split()
    common = (Counter(left) & Counter(right)).total()
    return 2 * common / (len(left) + len(right))


def _contains_words(prediction: str, gold: str) -> float:
    if not fold(gold):
        return float(gold.strip() != "" and normalise(prediction) == normalise(gold))
    return float(f" {fold(gold)} " in f" {fold(prediction)} ")


def _contains_characters(prediction: str, gold: str) -> float:
    left, right = normalise(prediction), normalise(gold)
    return float(left in right or right in left)


class Summary(NamedTuple):
    """A mean score in percent. `str()` of it is the line to print: it always tells n, interval and failures.

    Attributes:
        percent: mean score times 100.
        n: questions, failed ones among them.
        failed: questions without a reply; they count as wrong.
        low: lower end of the bootstrap interval, in percent.
        high: upper end.
    """

    percent: float
    n: int
    failed: int
    low: float
    high: float

    def __str__(self) -> str:
        failures = f"; {self.failed} failed, counted as wrong" if self.failed else ""
        return f"{self.percent:.2f} [{self.low:.2f}, {self.high:.2f}] (n={self.n}{failures})"


def accuracy(scores: Sequence[float | None], *, level: float = 0.95, seed: int = 0) -> Summary:
    """Mean of one metric over questions; None stands for a question that failed and counts as 0.

    Raises:
        RememError: no scores.
    """
    failed = sum(score is None for score in scores)
    values = [0.0 if score is None else score for score in scores]
    low, high = bootstrap_interval(values, level=level, seed=seed)
    return Summary(100 * float(np.mean(values)), len(values), failed, 100 * low, 100 * high)


def paired_difference(
    first: Sequence[float | None], second: Sequence[float | None], *, level: float = 0.95, seed: int = 0
) -> Summary:
    """Mean of `first - second` over the same questions in the same order, with its interval, in percentage points.

    Whole pairs are resampled, so what makes a question hard for both agents cancels. `failed` counts the questions
    that failed for either agent.

    Raises:
        RememError: the two lists are not of the same questions.
    """
    if len(first) != len(second):
        raise RememError(
            f"expected two agents' scores on the same questions, found {len(first)} and {len(second)}: "
            "evaluate both on one set"
        )
    failed = sum(one is None or other is None for one, other in zip(first, second, strict=True))
    values = [(one or 0.0) - (other or 0.0) for one, other in zip(first, second, strict=True)]
    return accuracy(values, level=level, seed=seed)._replace(failed=failed)
