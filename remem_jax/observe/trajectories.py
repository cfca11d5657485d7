"""Trajectories as JSON lines: one object a turn, complete enough to check what the agent was shown and what it earned.

A line holds the fields of a demonstration too, so that a dumped trace can be trained on. While an agent reads, a turn's
lines go out in one unbuffered write when it ends, so that a kill loses nothing but the turn in flight.

Axes: `N` questions, `G` rollouts of a question.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from remem_jax.agent.loop import Episode, Progress, Turn
from remem_jax.agent.reading import Reading
from remem_jax.errors import RememError
from remem_jax.eval.metrics import Answers, as_answers
from remem_jax.rl.scoring import Reward, Scores, place
from remem_jax.tokenizer import Tokenizer


def turn_record(episode: Episode, turn: Turn, chunk: str | None) -> dict[str, Any]:
    """One turn as plain values; `recalled_step` is the memory turn that wrote the recalled memory, null for none.

    `chunk` is the text of the chunk in its prompt (`chunk_text`). Ids of a chunk need not come back from its text where
    chunks are cut inside a word.
    """
    before = [other.memory for other in episode.turns if other.turn < turn.turn]
    record = {
        "question_id": episode.reading.id,
        "question": episode.reading.question,
        "rollout": episode.rollout,
        "turn": turn.turn,
        "final": turn.final,
        "prompt_tokens": turn.prompt_tokens,
        "chunk": chunk,
        "memory_before": before[-1] if before else None,
        "recalled_step": turn.recalled_step if turn.recalled_step >= 0 else None,
        "recalled_score": turn.recalled_score,
        "recalled": turn.recalled,
        "reply": turn.reply,
        "reply_tokens": len(turn.reply_ids),
        "ended": turn.ended,
        "valid": turn.valid,
        "reason": turn.reason,
        "callback": turn.callback,
        "memory": turn.memory,
        "memory_cut": turn.memory_cut,
        "dropped_words": turn.dropped_words,
        "seconds": round(turn.seconds, 4),
        "lookup_seconds": round(turn.lookup_seconds, 6),
    }
    return record | ({"answer": episode.answer} if turn.final else {})


def chunk_text(reading: Reading, turn: int, tokenizer: Tokenizer) -> str | None:
    """The text shown as the chunk of a turn by number; None where there is none, as in the final turn of a loop."""
    return tokenizer.decode(reading.chunks[turn].tolist()) if turn < len(reading.chunks) else None


def scored_records(
    episodes: Sequence[Sequence[Episode]],
    scores: Scores,
    answers: Sequence[Answers],
    reward: Reward,
    tokenizer: Tokenizer,
    *,
    step: int,
) -> Iterator[dict[str, Any]]:
    """The lines of `[N][G]` episodes with their rewards: rollout by rollout, each with its turns in order.

    To `turn_record` it adds the gold answers, `recalled_by_query` (what this turn's query found, shown in the next
    turn), the parts of the reward, the settings they were weighted with and the advantage. With the line that follows
    (its `chunk` is the next one) every reward can be computed again, and from all rollouts of a question every
    advantage; with `normalise: separate` from those of the whole batch.
    """
    settings = dataclasses.asdict(reward)
    turns = scores.mask.shape[1] - 1
    for n, (group, gold) in enumerate(zip(episodes, answers, strict=True)):
        memory_turns = range(len(group[0].turns))
        chunks = [chunk_text(group[0].reading, turn, tokenizer) for turn in memory_turns]
        for g, episode in enumerate(group):
            for turn, after in zip(episode.turns, [*episode.turns[1:], None]):
                at = (n, place(turn.turn, turn.final, turns), g)
                yield {
                    "step": step,
                    **turn_record(episode, turn, chunks[turn.turn]),
                    "answers": list(as_answers(gold)),
                    "recalled_by_query": after.recalled if after is not None and turn.callback else None,
                    "outcome": float(scores.outcome[n, g]),
                    "memory_gain": float(scores.memory[at]),
                    "callback_gain": float(scores.callback[at]),
                    "format": float(scores.format[at]),
                    "state_reward": float(scores.state[at]),
                    "advantage": float(scores.advantages[at]),
                    "live": bool(scores.mask[at]),
                    "reward_settings": settings,
                }


def write_records(path: str | Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """A file of these lines and nothing else, made with its directory; it appears whole or not at all."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(_line(record) for record in records)
        os.replace(part, path)
    except OSError as error:
        raise RememError(f"{path} cannot be written: {error.strerror}; make room or give another place") from None
    return path


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def check_trace(path: str | Path, inputs: Sequence[str | Path] = ()) -> Path:
    """The path, if a trace could be written there and is none of `inputs`, which it would overwrite.

    Nothing is made, so an old trace stays until a run begins.
    """
    path = Path(path)
    if any(path.exists() and Path(other).exists() and path.samefile(other) for other in inputs):
        raise _unwritable(path, "it is read in this run")
    if not path.parent.is_dir():
        raise RememError(f"trace: the directory {path.parent} does not exist; make it first")
    if path.is_dir():
        raise _unwritable(path, "it is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, "permission denied")
    return path


def _unwritable(path: Path, reason: str | None) -> RememError:
    return RememError(f"trace: {path} cannot be written: {reason}; give another path")


class TraceWriter:
    """Writes every new turn of the episodes that `Progress` shows to a file, and flushes."""

    def __init__(self, path: str | Path, tokenizer: Tokenizer):
        self.path, self.tokenizer = check_trace(path), tokenizer
        try:
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise _unwritable(self.path, error.strerror) from None

    def __call__(self, progress: Progress) -> None:
        lines = []
        for of_question in progress.episodes:
            new = [episode for episode in of_question if episode.turns and _is_new(episode, progress)]
            if new:
                chunk = chunk_text(new[0].reading, new[0].turns[-1].turn, self.tokenizer)
                lines += [_line(turn_record(episode, episode.turns[-1], chunk)) for episode in new]
        rest = memoryview("".join(lines).encode())
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _unwritable(self.path, error.strerror) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_new(episode: Episode, progress: Progress) -> bool:
    """Whether the episode's last turn was played in the step that `progress` tells of."""
    last = episode.turns[-1]
    return last.final if progress.turn == progress.turns else not last.final and last.turn == progress.turn - 1
