"""Exact match of a relay agent on fresh questions: a file of results for each order of evidence and count of documents.

A cell that is there already is not answered again. `--scripted` answers the same questions by scripts: what an agent
with and without callbacks can reach at all.

    python examples/relay_evaluate.py runs/demo/seed0/callback/model runs/demo/evaluation/seed0/callback
    python examples/relay_evaluate.py --scripted runs/demo/evaluation/scripted.json
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from relay_layout import cell_file, cells, questions

from remem_jax.agent.api import LoadedAgent, load_agent
from remem_jax.data.pipeline import make_example
from remem_jax.data.records import Record
from remem_jax.data.relay_policies import (
    CALLBACK_ORACLE,
    NEWEST_FIRST,
    NOISY_CALLBACK,
    NOISY_MEMAGENT,
    OLDEST_FIRST,
    scripted_accuracy,
)
from remem_jax.eval.harness import Result, evaluate, write_results

POLICIES = {
    "callback oracle": CALLBACK_ORACLE,
    "MemAgent, oldest facts first": OLDEST_FIRST,
    "MemAgent, newest facts first": NEWEST_FIRST,
    "callback demonstrator": NOISY_CALLBACK,
    "MemAgent demonstrator": NOISY_MEMAGENT,
}


def answer_cell(loaded: LoadedAgent, records: list[Record], seed: int) -> list[Result]:
    """The agent's results on these questions, at its own sampling settings."""
    agent = loaded.agent
    context = agent.model.config.max_positions
    assert agent.model.tokenizer is not None
    examples = [make_example(record, agent.model.tokenizer, loaded.config, agent.blocks, context) for record in records]
    return evaluate(agent, examples, seed=seed, questions_in_flight=len(examples))


def whole(path: Path, count: int) -> bool:
    """Whether a cell's file is there with so many results."""
    return path.is_file() and len(path.read_text(encoding="utf-8").splitlines()) == count


def evaluate_model(model: Path, folder: Path, documents: list[int], count: int, seed: int) -> None:
    """Fill every cell that is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    every = cells(documents)
    missing = [cell for cell in every if not whole(cell_file(folder, *cell), count)]
    loaded = load_agent(model) if missing else None
    for order, size in missing:
        assert loaded is not None
        results = answer_cell(loaded, questions(order, size, count), seed)
        path = cell_file(folder, order, size)
        part = path.with_name(path.name + ".part")
        write_results(part, results)
        part.replace(path)
        right = sum(result.exact_match for result in results) / count
        print(f"cell {every.index((order, size)) + 1} of {len(every)}: {order} {size}, EM {right:.2f}", flush=True)


def evaluate_scripts(path: Path, documents: list[int], count: int) -> None:
    """Accuracies of all scripted policies in one file."""
    bounds = [
        {
            "agent": name,
            "order": order,
            "documents": size,
            "accuracy": scripted_accuracy(questions(order, size, count), policy),
            "n": count,
        }
        for name, policy in POLICIES.items()
        for order, size in cells(documents)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(bounds, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Exact match of a relay agent on fresh questions.")
    parser.add_argument("model", nargs="?", type=Path, help="exported model; not with --scripted")
    parser.add_argument("out", type=Path, help="folder of result files; with --scripted a .json file")
    parser.add_argument("--scripted", action="store_true", help="scripted policies in place of a model")
    parser.add_argument("--questions", type=int, default=200, help="of a cell")
    parser.add_argument("--documents", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    given = parser.parse_args()
    if given.scripted == (given.model is not None):
        parser.error("expected a model and a folder, or --scripted and a file")
    if given.scripted:
        evaluate_scripts(given.out, given.documents, given.questions)
    else:
        evaluate_model(given.model, given.out, given.documents, given.questions, given.seed)


if __name__ == "__main__":
    main()
