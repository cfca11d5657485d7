"""Writes all that the relay experiment trains on: starting weights, practice, a demonstrator's turns, and questions.

    python -m remem_jax.data.relay --out DIR [--agent rememr1|memagent] [--seed 0]

Everything is a function of the arguments. `DIR/start` is a model directory like any other.
"""

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from remem_jax.data.records import Record
from remem_jax.data.relay_demos import practice_lines, warm_lines
from remem_jax.data.relay_start import write_start
from remem_jax.data.relay_task import agent_settings, make_records
from remem_jax.errors import RememError

AGENTS = ("rememr1", "memagent")
START, PRACTICE, WARM = "start", "practice.jsonl", "warm.jsonl"
TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is written."""

    practice: int = 16_000
    """Texts of reading practice."""
    warm: int = 38_400
    """Turns of the demonstrator."""
    train: int = 1_920
    """Questions for reinforcement learning."""
    validation: int = 256
    """Questions that choose the best checkpoint."""
    documents: int = 8
    """Of a training and a validation question."""


def write_relay(out: Path, agent: str, seed: int, sizes: Sizes = Sizes()) -> None:
    """Write the folder `out`; `validation.jsonl`, the last file, is only there when all the others are."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / VALIDATION).unlink(missing_ok=True)
        if (out / START).exists():
            shutil.rmtree(out / START)
        write_start(out / START, agent_settings(agent), seed)
        write_lines(out / PRACTICE, practice_lines(sizes.practice, seed))
        write_lines(out / WARM, warm_lines(agent, sizes.warm, seed))
        for name, count in ((TRAIN, sizes.train), (VALIDATION, sizes.validation)):
            records = make_records(sizes.documents, count, f"{Path(name).stem}-{seed}")
            write_lines(out / name, map(record_line, records))
    except OSError as error:
        raise RememError(f"{out}: cannot be written ({error.strerror or error}): give another folder") from None


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """JSON lines, all or nothing."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    part.replace(path)


def record_line(record: Record) -> dict[str, Any]:
    """A record as its line of JSON."""
    return {name: value for name, value in dataclasses.asdict(record).items() if value is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the folder; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m remem_jax.data.relay", description="Write the relay task's files.")
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    parser.add_argument(
        "--agent", default="rememr1", choices=AGENTS, help="whom the demonstrator shows (default: %(default)s)"
    )
    parser.add_argument("--seed", default=0, type=int, help="of everything (default: %(default)s)")
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", default=field.default, type=int, help="how many (default: %(default)s)")
    given = parser.parse_args(arguments)
    sizes = Sizes(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Sizes)})
    try:
        write_relay(given.out, given.agent, given.seed, sizes)
    except RememError as error:
        print(f"remem: error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {given.out}: {START}, {PRACTICE}, {WARM}, {TRAIN}, {VALIDATION}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
