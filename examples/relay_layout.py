"""Where the relay experiment keeps what, and which questions it asks: shared by its driver, evaluation and report.

A folder of the experiment:

    relay.json                                   its settings
    seed0/data/, seed0/practice/, seed0/callback-warm/, seed0/callback/ ...     data and runs of `remem train`
    evaluation/seed0/callback/distant_16.jsonl   a cell: results of an agent on an order and a number of documents
    evaluation/scripted.json                     accuracies of scripted policies on the same questions
    results.md, results.json, curve.png, accuracy.png, trace.jsonl, logs/
"""

from collections.abc import Sequence
from pathlib import Path

from remem_jax.data.records import Record
from remem_jax.data.relay_task import ORDERS, make_records

SETTINGS = "relay.json"
AGENTS = {"callback": "rememr1", "memagent": "memagent"}
"""Names of runs, and the agents they train."""
QUESTIONS_SEED = "evaluation"  # training, validation and demonstrations draw from seeds of other names


def run_folder(out: Path, seed: int, name: str) -> Path:
    """The directory of a run of `remem train`: practice, callback-warm, callback ..."""
    return out / f"seed{seed}" / name


def cells(documents: Sequence[int]) -> list[tuple[str, int]]:
    """Every order of evidence with every number of documents."""
    return [(order, count) for order in ORDERS for count in documents]


def cell_folder(out: Path, seed: int, name: str) -> Path:
    """Where the results of one trained agent lie."""
    return out / "evaluation" / f"seed{seed}" / name


def cell_file(folder: Path, order: str, documents: int) -> Path:
    """The results of a cell."""
    return folder / f"{order}_{documents}.jsonl"


def scripted_file(out: Path) -> Path:
    """The accuracies of scripted policies."""
    return out / "evaluation" / "scripted.json"


def questions(order: str, documents: int, count: int) -> list[Record]:
    """The questions of a cell, the same for every agent and seed."""
    return make_records(documents, count, QUESTIONS_SEED, (order,))
