"""Trajectories as JSON lines: one object a turn, complete enough to follow the agent and to check what it was shown.

A turn's lines go out in one unbuffered write when it ends, so that a kill loses nothing but the turn in flight.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remem_jax.agent.loop import Episode, Progress, Turn
from remem_jax.errors import RememError


def turn_record(episode: Episode, turn: Turn) -> dict[str, Any]:
    """One turn as plain values; `recalled_step` is the memory turn that wrote the recalled memory, null for none."""
    record = {
        "question_id": episode.reading.id,
        "question": episode.reading.question,
        "rollout": episode.rollout,
        "turn": turn.turn,
        "final": turn.final,
        "prompt_tokens": turn.prompt_tokens,
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

    def __init__(self, path: str | Path):
        self.path = check_trace(path)
        try:
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise _unwritable(self.path, error.strerror) from None

    def __call__(self, progress: Progress) -> None:
        lines = [
            json.dumps(turn_record(episode, episode.turns[-1]), ensure_ascii=False) + "\n"
            for of_question in progress.episodes
            for episode in of_question
            if episode.turns and _is_new(episode, progress)
        ]
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
