"""What the relay runs of a folder have shown: tables, learning curve, behaviour and bars, as text, files and pictures.

It reads what is there and trains nothing, so it can be made again at any time.

    python examples/relay_report.py runs/demo
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relay_layout import SETTINGS, cell_file, cell_folder, cells, run_folder, scripted_file

from remem_jax.errors import RememError
from remem_jax.eval.harness import read_results, summary
from remem_jax.eval.plots import accuracy_plot, learning_curve
from remem_jax.eval.tables import Cell, Table, comparison_table, difference_table, measured, seed_table, share
from remem_jax.observe.metrics import read_metrics

LABELS = {
    "callback": "callback",
    "memagent": "MemAgent",
    "callback-warm": "callback, warm start",
    "memagent-warm": "MemAgent, warm start",
}
"""Folders of results and the agents' names in tables: after GRPO, and before it."""
MEMAGENT_SCRIPTS = ("MemAgent, oldest facts first", "MemAgent, newest facts first")
BEST_SCRIPTED = "MemAgent, best script"
PAIRS = (
    ("callback", "MemAgent"),
    ("callback", "callback, warm start"),
    ("MemAgent", "MemAgent, warm start"),
    ("callback", BEST_SCRIPTED),
)
BEHAVIOUR = {
    "reward/outcome": "exact match",
    "health/call_rate": "calls a turn",
    "health/useful_call_rate": "useful ones",
    "reward/callback": "callback gain",
    "reward/memory": "memory gain",
    "reward/format": "valid replies",
    "health/reply_tokens": "reply tokens",
}
CLAIMS = (
    ("GRPO lifts callback, distant 8, by", 0.25, ("callback", "distant", 8), ("callback, warm start", "distant", 8)),
    ("callback, distant 16", 0.40, ("callback", "distant", 16)),
    ("callback - MemAgent, distant 16", 0.12, ("callback", "distant", 16), ("MemAgent", "distant", 16)),
    ("callback - MemAgent, forward 8", -0.12, ("callback", "forward", 8), ("MemAgent", "forward", 8)),
    (
        "aim: callback - best script, distant 16",
        0.0,
        ("callback", "distant", 16),
        (BEST_SCRIPTED, "distant", 16),
    ),
    (
        "aim: callback - best script, distant 32",
        0.0,
        ("callback", "distant", 32),
        (BEST_SCRIPTED, "distant", 32),
    ),
)
"""What the method promises on this task: a text, the least value, a cell, and the cell that is subtracted from it."""
CURVE_POINTS = 8
ENDS = 10  # steps whose mean is the beginning, or the end, of a run

Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def read_cells(out: Path, settings: Mapping[str, Any]) -> list[Cell]:
    """Every finished cell of trained agents, then the scripted bounds and the best scripted agent without callbacks."""
    found = []
    for name, label in LABELS.items():
        for seed in range(settings["seeds"]):
            for order, documents in cells(settings["documents"]):
                path = cell_file(cell_folder(out, seed, name), order, documents)
                if path.is_file():
                    found.append(Cell(label, order, documents, read_results(path), seed=seed))
    path = scripted_file(out)
    bounds = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found + [Cell(**bound, scripted=True) for bound in [*bounds, *best_scripted(bounds)]]


def best_scripted(bounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each column the better one of the MemAgent scripts that keep the oldest or the newest facts."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for bound in bounds:
        column = (bound["order"], bound["documents"])
        if (
            bound["agent"].endswith("facts first")
            and bound["accuracy"] > best.get(column, {"accuracy": -1})["accuracy"]
        ):
            best[column] = {**bound, "agent": BEST_SCRIPTED}
    return list(best.values())


def read_runs(out: Path, settings: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Lines of metrics and of validation of every GRPO run, by its label."""
    runs = {}
    for name in settings["agents"]:
        for seed in range(settings["seeds"]):
            folder = run_folder(out, seed, name)
            if (folder / "metrics.jsonl").is_file():
                label = LABELS[name] if settings["seeds"] == 1 else f"{LABELS[name]}, seed {seed}"
                validation = folder / "validation.jsonl"
                runs[label] = read_metrics(folder) + (read_metrics(validation) if validation.is_file() else [])
    return runs


def series(lines: Iterable[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Steps and values of one metric, where it was measured."""
    return sorted((line["step"], line[name]) for line in lines if line.get(name) is not None)


def curve_text(runs: Runs, name: str = "reward/outcome", points: int = CURVE_POINTS) -> str:
    """A metric over the steps, each column the mean of equally many steps, a row a run."""
    last = max((step for lines in runs.values() for step, _ in series(lines, name)), default=0)
    width = max(1, math.ceil(last / points))
    starts = range(1, last + 1, width)
    ends = [min(start + width - 1, last) for start in starts]
    rows = [["steps", *(f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends))]]
    for label, lines in runs.items():
        values = series(lines, name)
        means = [_mean(value for step, value in values if start <= step < start + width) for start in starts]
        rows.append([label, *map(_share, means)])
    return aligned(rows)


def behaviour_text(runs: Runs) -> str:
    """What the agents do at the beginning and at the end of training: means over the first and the last steps."""
    rows = [["", *BEHAVIOUR.values()]]
    for label, lines in runs.items():
        columns = [[value for _, value in series(lines, name)] for name in BEHAVIOUR]
        for which, part in (("first", slice(ENDS)), ("last", slice(-ENDS, None))):
            rows.append([f"{label}, {which} {ENDS} steps", *(_share(_mean(values[part])) for values in columns)])
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts in columns, the first one to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def bars(known: Mapping[tuple[str, tuple[str, int]], Any]) -> list[dict[str, Any]]:
    """The claims measured; one whose cells are missing is left out."""
    found = []
    for claim, least, *places in CLAIMS:
        keys = [(agent, (order, documents)) for agent, order, documents in places]
        if all(key in known for key in keys):
            means = [known[key].interval.mean for key in keys]
            value = means[0] - sum(means[1:])
            met = value >= least - 1e-9  # a difference of two shares is exact to rounding only
            found.append({"claim": claim, "at least": least, "measured": value, "met": met})
    return found


def bars_text(found: Sequence[Mapping[str, Any]]) -> str:
    """A line a claim."""
    rows = [["", "at least", "measured", ""]]
    for bar in found:
        met = "met" if bar["met"] else "not met"
        rows.append([bar["claim"], share(bar["at least"], sign=True), share(bar["measured"], sign=True), met])
    return aligned(rows)


def as_json(out: Path, settings: Mapping[str, Any], every: Sequence[Cell], runs: Runs) -> dict[str, Any]:
    """All of it as plain values; paths are those below the folder."""
    known = measured(every)
    return {
        "settings": dict(settings),
        "cells": [
            {"agent": cell.agent, "order": cell.order, "documents": cell.documents, "seed": cell.seed}
            | (summary(cell.results) if cell.results else {"exact_match": cell.accuracy, "n": cell.n})
            | {"scripted": cell.scripted}
            for cell in every
        ],
        "means": [
            {"agent": agent, "order": order, "documents": documents, **one.interval._asdict(), "seeds": one.seeds}
            for (agent, (order, documents)), one in known.items()
        ],
        "bars": bars(known),
        "training_exact_match": {
            label: [v for _, v in series(lines, "reward/outcome")] for label, lines in runs.items()
        },
        "models": [str(path.relative_to(out)) for path in sorted(out.glob("seed*/*/model"))],
        "trajectories": [str(path.relative_to(out)) for path in sorted(out.glob("seed*/*/trajectories"))],
    }


def report(out: Path) -> str:
    """Write results.md, results.json, curve.png and accuracy.png into the folder; returns the text for a terminal.

    Raises:
        RememError: the folder is none of `relay.py`, or nothing was evaluated in it.
    """
    if not (out / SETTINGS).is_file():
        raise RememError(f"{out}: expected {SETTINGS} of a relay run in it, found none: run examples/relay.py first")
    settings = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
    every, runs = read_cells(out, settings), read_runs(out, settings)
    trained = [cell for cell in every if not cell.scripted]
    if not trained or not runs:
        raise RememError(f"{out}: expected a trained and evaluated agent, found none: let relay.py finish")
    agents = {cell.agent for cell in every}
    # The better one of the two MemAgent scripts stands for both; results.json has each.
    shown = [cell for cell in every if cell.agent not in MEMAGENT_SCRIPTS]
    tables = [comparison_table(shown)]
    if pairs := [pair for pair in PAIRS if agents.issuperset(pair)]:
        tables.append(difference_table(every, pairs))
    if settings["seeds"] > 1:
        tables.append(seed_table(trained))
    texts = {
        "Learning curve: exact match of the training rollouts": curve_text(runs),
        "Behaviour in training": behaviour_text(runs),
        "Bars": bars_text(bars(measured(every))),
    }
    learning_curve(runs, out / "curve.png")
    accuracy_plot([cell for cell in shown if not cell.agent.endswith("demonstrator")], out / "accuracy.png")
    document = json.dumps(as_json(out, settings, every, runs), indent=1, ensure_ascii=False)
    (out / "results.json").write_text(document + "\n", encoding="utf-8")
    (out / "results.md").write_text(markdown(settings, tables, texts), encoding="utf-8")
    blocks = [table.to_text() for table in tables] + [f"{title}\n{text}" for title, text in texts.items()]
    return "\n".join(blocks)


def markdown(settings: Mapping[str, Any], tables: Sequence[Table], texts: Mapping[str, str]) -> str:
    """The page with tables, pictures and how it was made."""
    given = {name: v for name, v in settings.items() if v != []}
    told = ", ".join(f"{name} {' '.join(map(str, v)) if isinstance(v, list) else v}" for name, v in given.items())
    parts = ["# Relay: memory agents with and without callbacks\n", f"Made by `python examples/relay.py`: {told}.\n"]
    parts += [table.to_markdown() for table in tables]
    parts += ["![Exact match against documents](accuracy.png)\n", "![Learning curve](curve.png)\n"]
    parts += [f"**{title}**\n\n```\n{text}```\n" for title, text in texts.items()]
    return "\n".join(parts)


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    return share(value) if abs(value) < 10 else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables and pictures of the relay runs in a folder.")
    parser.add_argument("folder", type=Path)
    try:
        print(report(parser.parse_args().folder), end="")
    except RememError as error:
        sys.exit(f"relay: error: {error}")


if __name__ == "__main__":
    main()
