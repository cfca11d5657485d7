"""Small question files and corpora for tests of built sets, and what a folder holds."""

import hashlib
import json
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from remem_jax.data.builder import BuiltSet, SetOptions, build_set

SIZES = (4, 7, 12, 30)


def question(name: str, **changes) -> dict:
    """A question with two evidence paragraphs and a third, which only it has."""
    own = [{"title": f"{part} of {name}", "text": f"{part} text of {name}."} for part in ("First", "Second", "Third")]
    return {
        "id": name,
        "question": f"Who knows {name}?",
        "answers": ["x", "y"],
        "supporting_titles": [f"First of {name}", f"Second of {name}"],
        "paragraphs": own,
        "type": "compositional",
        "level": None,
    } | changes


QUESTIONS = [question(f"q{i}") for i in range(8)]
CORPUS = [{"title": f"T{i}", "text": f"A text about {i}."} for i in range(40)] + [
    {"title": "FIRST OF Q1", "text": "A distractor that has a title of question q1."},
    QUESTIONS[2]["paragraphs"][2],
]


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def build_small(folder: Path, questions=QUESTIONS, corpus=CORPUS, *, out: str = "out", options=(), **more) -> BuiltSet:
    """Build `folder/out` of these questions; `options` are of `SetOptions`, the others of `build_set`."""
    source, pool = write_lines(folder / "questions.jsonl", questions), write_lines(folder / "corpus.jsonl", corpus)
    settings = SetOptions(**({"documents": SIZES, "split": "dev"} | dict(options)))
    return build_set([source], [pool], folder / out, settings, **more)


def table_of(folder: Path, name: str) -> Any:
    """Rows of a built set's table as a user of TFDS gets them."""
    builder: Any = tfds.builder_from_directory(folder / name)
    return builder.as_data_source(split="dev")


def bytes_of(folder: Path) -> dict[str, str]:
    """Every file of a folder by its SHA-256."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def is_subsequence(small, large) -> bool:
    rest = iter(large)
    return all(item in rest for item in small)
