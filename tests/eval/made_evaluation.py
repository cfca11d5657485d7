"""A small evaluation for tests: the model of `tests.relay_run`, three agents, relay questions of 4 to 8 documents."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from remem_jax.data.relay_questions import write_questions
from remem_jax.eval.config import EvalConfig
from remem_jax.settings import from_mapping
from tests.relay_run import write_start

TIMED = ("seconds", "seconds_share", "lookup_seconds")


def write_evaluation(folder: Path, documents: tuple[int, ...] = (4, 8), questions: int = 5) -> Path:
    """`folder` with `start` (the model) and `data` (a file for each size)."""
    write_start(folder)
    write_questions(folder / "data", documents, questions, ("distant",))
    return folder


def values(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings as a file of them would have: 5 questions, 2 at a time, so waves of 2, 2 and 1."""
    return {
        "out": str(folder / "out"),
        "models": {"tiny": str(folder / "start")},
        "agents": {"rememr1": {}, "memagent": {}, "retrieval": {"retrieval_paragraphs": 1}},
        "datasets": {"relay": {"path": str(folder / "data" / "distant_{documents}.jsonl"), "documents": [4, 8]}},
        "questions": 5,
        "questions_in_flight": 2,
        "dtype": "float32",
        "metric": "exact_match",
        **changes,
    }


def settings(folder: Path, **changes: Any) -> EvalConfig:
    return from_mapping(EvalConfig, values(folder, **changes))


def result_files(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Lines of every file of results by its name, without what no two runs share."""
    return {
        str(path.relative_to(out)): [
            {name: value for name, value in json.loads(line).items() if name not in TIMED}
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        for path in sorted((out / "results").rglob("*.jsonl"))
    }


def untimed_report(out: Path) -> dict[str, Any]:
    """results.json without timings."""
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    for cell in found["cells"]:
        for name in ("seconds", "lookup"):
            del cell[name]
    return found


def replaced(config: EvalConfig, **changes: Any) -> EvalConfig:
    return dataclasses.replace(config, **changes)
