"""Runs an agent over questions with gold answers and scores every one, through the loop that training uses.

A result is one plain record a question, named by the question's id, so that two agents can be compared pair by pair.

Axes: `N` questions.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from remem_jax.agent.loop import QUERY_WORDS, Agent, Episode, Progress
from remem_jax.agent.prompts import LOOPLESS
from remem_jax.agent.state import initial_state
from remem_jax.data.documents import json_lines
from remem_jax.data.pipeline import Example
from remem_jax.errors import RememError
from remem_jax.eval.intervals import mean_interval
from remem_jax.eval.metrics import exact_match, f1, sub_exact_match, sub_exact_match_published
from remem_jax.rollout.buckets import power_of_two


@dataclasses.dataclass(frozen=True)
class Result:
    """What an agent did with one question; the metrics are those of METHOD 8.

    Fields with a default are missing in files of earlier versions.
    """

    id: str
    """Of the question: the same for every agent."""
    prediction: str | None
    """The answer in the last complete box; None where there is none, which counts as wrong."""
    answers: tuple[str, ...]
    """Gold answers."""
    exact_match: float
    f1: float
    sub_exact_match: float
    turns: int
    """Memory turns and the final one."""
    calls: int
    """Queries written in valid memory turns."""
    hits: int
    """Turns whose prompt showed a recalled memory, the final one included."""
    recalled_distance: float | None
    """Turns between writing a recalled memory and showing it, mean over `hits`; None without any."""
    reply_tokens: int
    """Of all replies."""
    invalid_turns: int
    """Memory turns whose reply broke the format."""
    truncated: int
    """Replies that ran to the limit without an end."""
    seconds: float
    """Wall time of its turns; questions of a wave share theirs."""
    lookup_seconds: float
    """Part of `seconds` spent on look-up."""
    sub_exact_match_published: float = 0.0
    """For comparison with published tables only."""
    seconds_share: float = 0.0
    """Its part of `seconds`: those of each turn divided by the questions that took it. Sums to the time of a wave."""
    document_tokens: int = 0
    """Of the whole document, also those that were cut."""
    cut_tokens: int = 0
    """Of the document that it was not shown."""
    prompt_tokens: int = 0
    """Of all prompts."""
    history_bytes: int = 0
    """Of its history, ids and words of every memory, padding included."""
    error: str | None = None
    """Why there was no reply: the question failed, which counts as wrong."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, one JSON object a question."""
        return dataclasses.asdict(self) | {"answers": list(self.answers)}


def evaluate(
    agent: Agent,
    examples: Sequence[Example],
    *,
    seed: int = 0,
    step: int = 0,
    questions_in_flight: int = 64,
    on_turn: Callable[[Progress], None] | None = None,
    between: Callable[[], None] | None = None,
) -> list[Result]:
    """Answer every question once, at the agent's own sampling settings; results in the order of `examples`.

    Args:
        seed, step: folded into every random number with the question's id, so that neither the order of the questions
            nor `questions_in_flight` changes a result.
        questions_in_flight: questions that advance together.
        on_turn: called after every turn.
        between: called whenever the host is visited; may raise to stop.

    Raises:
        RememError: no questions, or two with one id.
    """
    if not examples:
        raise RememError("expected at least one question to evaluate, found none")
    seen: set[str] = set()
    for example in examples:
        if example.record.id in seen:
            raise RememError(f"expected every question once, found the id {example.record.id!r} again: make it unique")
        seen.add(example.record.id)
    shares: dict[str, Share] = {}

    def listen(progress: Progress) -> None:
        if progress.turn == progress.turns:
            shares.update(_shares(agent, [of_question[0] for of_question in progress.episodes]))
        if on_turn is not None:
            on_turn(progress)

    episodes = agent.run(
        [example.reading for example in examples],
        seed=seed,
        step=step,
        questions_in_flight=questions_in_flight,
        on_turn=listen,
        between=between,
    )
    return [
        result_of(of_question[0], example.record.id, example.record.answers, shares[example.record.id])
        for example, of_question in zip(examples, episodes, strict=True)
    ]


class Share(NamedTuple):
    """What a question took of its wave."""

    seconds: float = 0.0
    history_bytes: int = 0


def _shares(agent: Agent, wave: Sequence[Episode]) -> dict[str, Share]:
    """Time and memory of each question of a wave: a turn's seconds are divided by those that took it."""
    took = Counter((turn.final, turn.turn if not turn.final else -1) for episode in wave for turn in episode.turns)
    longest = max(len(episode.turns) for episode in wave) - 1
    size = 0 if agent.config.agent in LOOPLESS else history_bytes(longest, agent.config.memory_tokens)
    return {
        episode.reading.id: Share(
            sum(turn.seconds / took[turn.final, turn.turn if not turn.final else -1] for turn in episode.turns), size
        )
        for episode in wave
    }


def history_bytes(turns: int, memory_tokens: int) -> int:
    """Bytes of one question's history of so many memory turns as the loop holds it: ids and words, padding included."""
    state = jax.eval_shape(
        lambda: initial_state(
            1, 1, turns=power_of_two(max(turns, 1)), memory_tokens=memory_tokens, memory_words=memory_tokens,
            query_words=QUERY_WORDS,
        )
    )  # fmt: skip
    return sum(array.size * array.dtype.itemsize for array in (state.tokens, state.words))


def failed_result(name: str, answers: Sequence[str], error: str) -> Result:
    """The result of a question that could not be answered: wrong in every metric."""
    return Result(
        id=name, prediction=None, answers=tuple(answers), exact_match=0.0, f1=0.0, sub_exact_match=0.0, turns=0,
        calls=0, hits=0, recalled_distance=None, reply_tokens=0, invalid_turns=0, truncated=0, seconds=0.0,
        lookup_seconds=0.0, error=error,
    )  # fmt: skip


def result_of(episode: Episode, name: str, answers: Sequence[str], share: Share | None = None) -> Result:
    """The result of a finished episode of the question called `name`."""
    share = share or Share()
    turns, prediction = episode.turns, episode.answer
    memory_turns = [turn for turn in turns if not turn.final]
    distances = [turn.turn - turn.recalled_step for turn in turns if turn.recalled_step >= 0]
    return Result(
        id=name,
        prediction=prediction,
        answers=tuple(answers),
        exact_match=exact_match(prediction, answers),
        f1=f1(prediction, answers),
        sub_exact_match=sub_exact_match(prediction, answers),
        turns=len(turns),
        calls=sum(turn.valid and bool(turn.callback) for turn in memory_turns),
        hits=len(distances),
        recalled_distance=float(np.mean(distances)) if distances else None,
        reply_tokens=sum(len(turn.reply_ids) for turn in turns),
        invalid_turns=sum(not turn.valid for turn in memory_turns),
        truncated=sum(not turn.ended for turn in turns),
        seconds=round(sum(turn.seconds for turn in turns), 4),
        lookup_seconds=round(sum(turn.lookup_seconds for turn in turns), 6),
        sub_exact_match_published=sub_exact_match_published(prediction, answers),
        seconds_share=round(share.seconds, 4),
        document_tokens=episode.reading.document_tokens,
        cut_tokens=episode.reading.cut_tokens,
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        history_bytes=share.history_bytes,
    )


def summary(results: Sequence[Result], *, seed: int = 0) -> dict[str, float]:
    """Means over questions by name, flat, for a line of metrics.

    `n` questions; `no_answer` the share without a box; `call_rate` and `invalid_rate` a memory turn; `recalled_rate`
    the share of turns that showed a recalled memory; `hit_rate` recalled memories a call; `truncated_rate` and
    `reply_tokens` a reply. A rate of nothing (an agent without memory turns or calls) is left out.

    Args:
        seed: of the bootstrap interval `exact_match_low` to `exact_match_high`.

    Raises:
        RememError: no results.
    """
    matches = mean_interval([result.exact_match for result in results], seed=seed)
    turns, calls, hits = (sum(getattr(result, name) for result in results) for name in ("turns", "calls", "hits"))
    memory_turns = turns - sum(result.turns > 0 for result in results)  # a failed question has none at all
    distance = sum(result.hits * result.recalled_distance for result in results if result.recalled_distance is not None)
    rates = {
        "call_rate": (calls, memory_turns),
        "invalid_rate": (sum(result.invalid_turns for result in results), memory_turns),
        "hit_rate": (hits, calls),
        "recalled_rate": (hits, turns),
        "recalled_distance": (distance, hits),
        "truncated_rate": (sum(result.truncated for result in results), turns),
        "no_answer": (sum(result.prediction is None for result in results), len(results)),
        "reply_tokens": (sum(result.reply_tokens for result in results), turns),
        "f1": (sum(result.f1 for result in results), len(results)),
        "sub_exact_match": (sum(result.sub_exact_match for result in results), len(results)),
        "turns": (turns, len(results)),
    }
    return {
        "exact_match": matches.mean,
        "exact_match_low": matches.low,
        "exact_match_high": matches.high,
        "n": float(matches.n),
        **{name: float(total / count) for name, (total, count) in rates.items() if count},
    }


def write_results(path: str | Path, results: Iterable[Result]) -> None:
    """Results as JSON lines.

    Raises:
        RememError: the file cannot be written.
    """
    lines = [json.dumps(result.to_dict(), ensure_ascii=False) + "\n" for result in results]
    try:
        Path(path).write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise RememError(f"results: {path} cannot be written: {error.strerror}; give another path") from None


def read_results(path: str | Path) -> list[Result]:
    """Results out of a file of `write_results`, in its order.

    Raises:
        RememError: a line that is no result, named.
    """
    names = {field.name for field in dataclasses.fields(Result)}
    needed = {field.name for field in dataclasses.fields(Result) if field.default is dataclasses.MISSING}
    results = []
    for place, value in json_lines(path):
        if not needed <= value.keys() <= names:
            differing = ", ".join(sorted((needed - value.keys()) | (value.keys() - names)))
            raise RememError(f"{place}: expected the fields of a result, found a line that differs in {differing}")
        fields: dict[str, Any] = value | {"answers": tuple(value["answers"])}
        results.append(Result(**fields))
    return results
