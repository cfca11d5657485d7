"""Is the callback alive, are memories and replies sound: numbers of one rollout batch that rewards alone do not show.

A share of nothing (of the queries where none was written) is nan, which metrics files hold as null.

Axes: `N` questions, `T1` turns (`T` memory turns and, last, the final one), `G` rollouts of a question.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from remem_jax.agent.loop import Episode, Turn
from remem_jax.agent.words import split_words, words
from remem_jax.eval.metrics import Answers, as_answers
from remem_jax.rl.rewards import is_yes_no
from remem_jax.rl.scoring import Scores, place
from remem_jax.tokenizer import Tokenizer

INVALID = (
    "thinking_mark",
    "no_memory",
    "unclosed_memory",
    "two_memories",
    "two_callbacks",
    "stray_mark",
    "nested",
    "blank_memory",
)  # the reasons of `agent.protocol.Reply`: each is logged also where it did not occur


class _Live(NamedTuple):
    """A live turn, where it stands in `Scores`, and the turn that followed it."""

    question: int
    place: int
    rollout: int
    turn: Turn
    after: Turn | None


def health_metrics(
    episodes: Sequence[Sequence[Episode]],
    scores: Scores,
    *,
    tokenizer: Tokenizer,
    answers: Sequence[Answers],
    prompt_texts: Iterable[str] = (),
) -> dict[str, float]:
    """METHOD 10's watch on the agent, by name.

    Queries, of live memory turns:

    - `call_rate`: share that wrote a query that is not blank.
    - `hit_rate`, `callback_gain`, `useful_call_rate`: of the queries written, the share that found a memory, the mean
      callback gain (unweighted; `reward/callback` is the mean over turns), and the share with a gain above 0.
    - `query_from_prompt`: of the queries written, the share that says nothing of its own: its words are the question's
      words, as sets, or it stands word for word in one of `prompt_texts`, as an example query does.
    - `recalled_rate`, `recalled_distance`: of the live turns after the first, the final one included, the share that
      showed a recalled memory; how many turns before these it was written, on average (1 is the turn before).

    Memories, of live memory turns:

    - `memory_tokens`, `memory_tokens_max`: length of the memory after the turn; 0 while there is none.
    - `distinct_words`: distinct words / words of a memory written, on average; falls where it repeats itself.
    - `answer_words_missed`: of the gold answers' words in the chunk, the share that the memory after the turn lacks;
      questions of yes or no are left out.
    - `memory_cut`: share whose memory was cut to its limit. `dropped_words`: words that look-up had no room for, a sum.
    - `invalid`, `invalid_<reason>`: share of invalid replies, of each reason.

    Replies, of all live turns: `reply_tokens`, `reply_tokens_max`; `truncated`, the share that ended at the limit;
    `no_single_box`, of the live final turns the share without exactly one complete box.

    Args:
        episodes: `[N][G]`.
        scores: of these episodes; turns outside its mask are left out.
        answers: gold answers of each question.
        prompt_texts: the agent's constant prompt texts, such as `agent.prompts.Prompts.texts().values()`.
    """
    live = _live_turns(episodes, scores)
    memory_turns = [one for one in live if not one.turn.final]
    questions = [group[0].reading.question for group in episodes]
    metrics = _queries(live, memory_turns, scores, questions, prompt_texts)
    metrics |= _memories(memory_turns)
    metrics["answer_words_missed"] = _missed(memory_turns, episodes, tokenizer, answers)
    metrics |= _replies(live, memory_turns)
    return {f"health/{name}": value for name, value in metrics.items()}


def _live_turns(episodes: Sequence[Sequence[Episode]], scores: Scores) -> list[_Live]:
    turns = scores.mask.shape[1] - 1
    every = (
        _Live(n, place(turn.turn, turn.final, turns), g, turn, after)
        for n, group in enumerate(episodes)
        for g, episode in enumerate(group)
        for turn, after in zip(episode.turns, [*episode.turns[1:], None])
    )
    return [one for one in every if scores.mask[one.question, one.place, one.rollout]]


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(np.mean(values)) if values else float("nan")


def _queries(
    live: list[_Live],
    memory_turns: list[_Live],
    scores: Scores,
    questions: list[str],
    prompt_texts: Iterable[str],
) -> dict[str, float]:
    calls = [one for one in memory_turns if one.turn.callback]
    gains = [float(scores.callback[one.question, one.place, one.rollout]) for one in calls]
    written = [(one.question, one.turn.callback or "") for one in calls]
    texts = [_spaced(text) for text in prompt_texts]
    copied = {(n, query): _says_nothing_new(query, questions[n], texts) for n, query in set(written)}
    later = [one.turn for one in live if one.turn.turn > 0]
    showing = [turn for turn in later if turn.recalled_step >= 0]
    return {
        "call_rate": _mean(bool(one.turn.callback) for one in memory_turns),
        "hit_rate": _mean(one.after is not None and one.after.recalled_step >= 0 for one in calls),
        "callback_gain": _mean(gains),
        "useful_call_rate": _mean(gain > 0 for gain in gains),
        "query_from_prompt": _mean(copied[one] for one in written),
        "recalled_rate": len(showing) / len(later) if later else float("nan"),
        "recalled_distance": _mean(turn.turn - turn.recalled_step for turn in showing),
    }


def _spaced(text: str) -> str:
    """The words of a text with a space before and after each, so that whole words can be searched for."""
    return f" {' '.join(split_words(text))} "


def _says_nothing_new(query: str, question: str, texts: list[str]) -> bool:
    asked = words(query)
    return bool(asked) and (asked == words(question) or any(_spaced(query) in text for text in texts))


def _memories(memory_turns: list[_Live]) -> dict[str, float]:
    turns = [one.turn for one in memory_turns]
    tokens = [turn.memory_tokens for turn in turns]
    written = [split_words(turn.memory) for turn in turns if turn.valid and turn.memory]
    return {
        "memory_tokens": _mean(tokens),
        "memory_tokens_max": float(max(tokens, default=0)),
        "distinct_words": _mean(len(set(one)) / len(one) for one in written if one),
        "memory_cut": _mean(turn.memory_cut for turn in turns),
        "dropped_words": float(sum(turn.dropped_words for turn in turns)),
    }


def _missed(
    memory_turns: list[_Live],
    episodes: Sequence[Sequence[Episode]],
    tokenizer: Tokenizer,
    answers: Sequence[Answers],
) -> float:
    """Answer words of the chunks read that the memories written with them lack, as a share."""
    sought = [
        frozenset[str]() if is_yes_no(gold) else frozenset().union(*map(words, as_answers(gold))) for gold in answers
    ]
    there: dict[tuple[int, int], frozenset[str]] = {}  # question, turn -> answer words in the chunk, for all rollouts
    held: dict[str, frozenset[str]] = {}
    present = missed = 0
    for one in memory_turns:
        at = one.question, one.turn.turn
        if at not in there:
            chunk = episodes[one.question][0].reading.chunks[one.turn.turn]
            wanted = sought[one.question]
            there[at] = wanted & words(tokenizer.decode(chunk.tolist())) if wanted else wanted
        if there[at]:
            memory = one.turn.memory or ""
            if memory not in held:
                held[memory] = words(memory)
            present += len(there[at])
            missed += len(there[at] - held[memory])
    return missed / present if present else float("nan")


def _replies(live: list[_Live], memory_turns: list[_Live]) -> dict[str, float]:
    lengths = [len(one.turn.reply_ids) for one in live]
    reasons = Counter(one.turn.reason for one in memory_turns if not one.turn.valid)
    count = len(memory_turns) or float("nan")
    return {
        "invalid": reasons.total() / count,
        **{f"invalid_{name}": reasons[name] / count for name in dict.fromkeys((*INVALID, *sorted(reasons)))},
        "no_single_box": _mean(not one.turn.valid for one in live if one.turn.final),
        "reply_tokens": _mean(lengths),
        "reply_tokens_max": float(max(lengths, default=0)),
        "truncated": _mean(not one.turn.ended for one in live),
    }
