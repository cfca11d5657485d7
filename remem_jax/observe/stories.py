"""Trajectories read back from their JSON lines, checked field by field: for the report, the terminal and notebooks.

In a notebook `read_trajectories("runs/demo/seed0/callback")[0]` shows itself, as an `Answer` does. What a line lacks,
as the gold answers in a trace of `remem answer`, is None, never an invented number.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remem_jax.errors import RememError
from remem_jax.eval.metrics import exact_match, f1

if TYPE_CHECKING:
    from remem_jax.agent.api import Answer

TEXT, COUNT, NUMBER, FLAG = "text", "a whole number from 0 on", "a number", "true or false"
NEEDED = ("question", "turn", "final", "reply")
FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("question", "question_id", "chunk", "memory_before", "memory", "recalled", "callback"), TEXT),
    **dict.fromkeys(("recalled_by_query", "reply", "reason", "answer"), TEXT),
    **dict.fromkeys(("turn", "rollout", "step", "recalled_step", "prompt_tokens", "reply_tokens"), COUNT),
    **dict.fromkeys(("recalled_score", "seconds", "outcome", "memory_gain", "callback_gain", "format"), NUMBER),
    **dict.fromkeys(("state_reward", "advantage"), NUMBER),
    **dict.fromkeys(("final", "ended", "valid", "memory_cut"), FLAG),
}
"""Fields of a line that are looked at, with what each holds; null is absence. `answers` is a list of texts."""
LARGEST = 2**53  # of a whole number that every reader of JSON holds exactly
TRAJECTORIES = "trajectories"


@dataclass(frozen=True)
class Trajectory:
    """All turns of one rollout of one question, in order; shows itself in a notebook."""

    source: str
    """Label of the file or run it comes from."""
    turns: tuple[Mapping[str, Any], ...]
    """Lines as `observe.trajectories.turn_record` and `scored_records` write them; absent fields are None."""

    @property
    def question(self) -> str:
        """The question."""
        return self.turns[0]["question"]

    @property
    def question_id(self) -> str:
        """Its id; empty where the lines have none."""
        return self.turns[0]["question_id"] or ""

    @property
    def rollout(self) -> int:
        """Which of the rollouts of its question."""
        return self.turns[0]["rollout"] or 0

    @property
    def step(self) -> int | None:
        """The training step, None outside of training."""
        return self.turns[0]["step"]

    @property
    def answers(self) -> tuple[str, ...] | None:
        """Gold answers; None where they are not known."""
        return self.turns[0]["answers"]

    @property
    def finished(self) -> bool:
        """Whether the final turn is there; a trace that was cut short lacks it."""
        return self.turns[-1]["final"]

    @property
    def answer(self) -> str | None:
        """The answer of the final turn."""
        return self.turns[-1]["answer"] if self.finished else None

    @cached_property
    def exact_match(self) -> float | None:
        """METHOD 8; None without gold answers or without a final turn."""
        return exact_match(self.answer, self.answers) if self.answers and self.finished else None

    @cached_property
    def f1(self) -> float | None:
        """METHOD 8; None without gold answers or without a final turn."""
        return f1(self.answer, self.answers) if self.answers and self.finished else None

    @property
    def calls(self) -> int:
        """Queries written in valid memory turns."""
        return sum(bool(turn["callback"]) and turn["valid"] is not False for turn in self.turns if not turn["final"])

    @property
    def hits(self) -> int:
        """Turns that showed a recalled memory."""
        return sum(turn["recalled_step"] is not None for turn in self.turns)

    @property
    def invalid_turns(self) -> int:
        """Turns whose reply broke the format; of the final turn, that it has not one complete box."""
        return sum(turn["valid"] is False for turn in self.turns)

    @property
    def truncated(self) -> int:
        """Replies that ended at the limit."""
        return sum(turn["ended"] is False for turn in self.turns)

    def total(self, part: str) -> float | None:
        """Sum over turns of a part of the reward, as `memory_gain`; None where no line has it."""
        values = [turn[part] for turn in self.turns if turn[part] is not None]
        return math.fsum(values) if values else None

    def _repr_html_(self) -> str:
        from remem_jax.observe.snippet import trajectory_html

        return trajectory_html(self)


def as_trajectory(answer: "Answer") -> Trajectory:
    """An answer of `LoadedAgent.answer` as a trajectory; it holds no texts of chunks and no gold answers."""
    turns = []
    for turn in answer.turns:
        known = {name: getattr(turn, name, None) for name in FIELDS} | {"question": answer.question, "answers": None}
        known["recalled_step"] = turn.recalled_step if turn.recalled_step >= 0 else None
        known["answer"] = answer.text if turn.final else None
        known["reply_tokens"] = len(turn.reply_ids)
        turns.append(known)
    return Trajectory("answer", tuple(turns))


def read_trajectories(path: str | Path, label: str | None = None, *, limit: int | None = None) -> list[Trajectory]:
    """The trajectories of a trace (`.jsonl`) or of a run's directory, in the order of their first lines.

    Args:
        label: what they are named after; by default the path.
        limit: keep whole questions, the same ones of every file, so that not more trajectories remain (`sample`).

    Raises:
        RememError: nothing there, a line that is no turn, or a turn that comes twice.
    """
    return count_and_read(path, label, limit)[1]


def count_and_read(path: str | Path, label: str | None, limit: int | None) -> tuple[int, list[Trajectory]]:
    """How many trajectories there are, and what `read_trajectories` returns; memory holds little more than these."""
    path = Path(path).expanduser()
    files = sorted((path / TRAJECTORIES).glob("step_*.jsonl")) if path.is_dir() else [path]
    seen: dict[tuple, int] = {}
    kept: dict[tuple, dict[tuple, list[Mapping[str, Any]]]] = {}  # question -> rollout -> turns
    ceiling: tuple | None = None  # questions that come here or later in the order of `sample` are left out
    for file in files:
        for where, turn in _turns(file):
            key = (file, turn["step"], turn["question_id"], turn["question"], turn["rollout"])
            is_new = seen.setdefault(key, len(seen)) == len(seen) - 1
            place = _place(turn)
            if ceiling is not None and place >= ceiling:
                continue
            turns = kept.setdefault(place, {}).setdefault(key, [])
            _check_order(turns, turn, where)
            turns.append(turn)
            while is_new and limit is not None and len(kept) > 1 and sum(map(len, kept.values())) > limit:
                ceiling = max(kept)
                del kept[ceiling]
    if not seen and not path.is_dir():
        raise RememError(f"{path}: expected a turn a line, found none: a trace is written by remem answer --trace")
    found = {seen[key]: turns for of_question in kept.values() for key, turns in of_question.items()}
    return len(seen), [Trajectory(label or str(path), tuple(found[at])) for at in sorted(found)]


def sample(trajectories: Sequence[Trajectory], limit: int) -> list[Trajectory]:
    """Whole questions, with all that is known of them, so that at most `limit` trajectories remain; at least one.

    They come in an order that depends on the questions alone: two agents keep the same ones.
    """
    groups: dict[tuple, list[int]] = {}
    for at, trajectory in enumerate(trajectories):
        groups.setdefault(_place(trajectory.turns[0]), []).append(at)
    kept: list[int] = []
    for place in sorted(groups):
        if kept and len(kept) + len(groups[place]) > limit:
            break
        kept += groups[place]
    return [trajectories[at] for at in sorted(kept)]


def _place(turn: Mapping[str, Any]) -> tuple[int, str, str]:
    """Where a question stands in the order of sampling: by a digest, so that no kind of question comes first."""
    name = turn["question_id"] or "", turn["question"]
    return zlib.crc32("\n".join(name).encode("utf-8", "surrogatepass")), *name


def _check_order(before: Sequence[Mapping[str, Any]], turn: Mapping[str, Any], where: str) -> None:
    if before and (before[-1]["final"] or before[-1]["turn"] >= turn["turn"]):
        raise RememError(
            f"{where}: expected the turns of a rollout in order, each once, found turn {turn['turn']} after turn "
            f"{before[-1]['turn']}: keep the traces of several runs in files of their own"
        )


def _turns(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and turn of each line; a last line that a kill cut short is left out."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path} line {number}"
                if line.strip() and (turn := _turn(line, where)) is not None:
                    yield where, turn
    except OSError as error:
        raise RememError(f"{path} cannot be read: {error.strerror}; give a trace or a run directory") from None


def _turn(line: bytes, where: str) -> dict[str, Any] | None:
    """A line as a turn with every field of `FIELDS`; None for a last line that was cut short."""
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        if not line.endswith(b"\n"):
            return None
        record = None
    if not isinstance(record, dict):
        raise RememError(f"{where}: expected a JSON object, found none: mend or remove the line")
    turn = {name: _checked(record.get(name), name, where) for name in FIELDS}
    recalled = turn["recalled_step"]
    if recalled is not None and recalled >= turn["turn"]:
        raise RememError(f"{where}: recalled_step: expected a turn before turn {turn['turn']}, found {recalled}")
    answers = record.get("answers")
    answers = [answers] if isinstance(answers, str) else answers
    if answers is not None and not (isinstance(answers, list) and all(isinstance(one, str) for one in answers)):
        raise RememError(f"{where}: answers: expected a list of texts, found {_short(answers)}")
    return turn | {"answers": tuple(answers) if answers else None}


def _checked(value: Any, name: str, where: str) -> Any:
    """The value of a field, None where it is absent or no finite number."""
    if value is None and name not in NEEDED:
        return None
    kind = FIELDS[name]
    fits = {
        TEXT: isinstance(value, str),
        COUNT: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST,
        NUMBER: isinstance(value, int | float) and not isinstance(value, bool),
        FLAG: isinstance(value, bool),
    }
    if not fits[kind]:
        raise RememError(f"{where}: {name}: expected {kind}, found {'nothing' if value is None else _short(value)}")
    return None if isinstance(value, int | float) and not -LARGEST < value < LARGEST else value


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."
