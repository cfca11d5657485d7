"""What an evaluation has shown: tables for the terminal and results.md, results.json, accuracy.png.

Every table names its metric, interval and number of questions; failed questions are listed, never dropped.
"""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remem_jax.errors import RememError
from remem_jax.eval.config import METRICS, EvalConfig
from remem_jax.eval.harness import Result, summary
from remem_jax.eval.intervals import mean_interval, paired_interval
from remem_jax.eval.plan import Plan, PlannedCell
from remem_jax.eval.plots import accuracy_plot
from remem_jax.eval.tables import (
    METRIC_NAMES,
    NOTHING,
    Cell,
    Table,
    comparison_table,
    difference_table,
    percent_with_interval,
)
from remem_jax.observe.terminal import clean

NOTE_PUBLISHED = "As published: either text contains the other as characters; for comparison with published tables."
BEHAVIOUR = {
    "turns": ("turns", "of a question, the final one included"),
    "document": ("document", "tokens of a question's documents"),
    "cut": ("not shown", "share of the document tokens that the agent was not shown"),
    "prompt": ("prompt", "tokens of a prompt"),
    "reply": ("reply", "tokens of a reply"),
    "calls": ("calls", "queries written, per memory turn"),
    "hits": ("hits", "recalled memories shown, per query written"),
    "recalled": ("recalled", "share of turns that showed a recalled memory"),
    "distance": ("distance", "turns between writing a recalled memory and showing it"),
    "invalid": ("invalid", "share of memory turns that broke the reply format"),
    "truncated": ("cut off", "share of replies that ran to their limit"),
    "seconds": ("s", "seconds of a question, compilation included; questions read side by side share theirs"),
    "lookup": ("look-up", "share of that time"),
    "history": ("history kB", "of a question: ids and words of all memories, padding included"),
}
"""Columns of the table of behaviour and what they mean."""


@dataclasses.dataclass(frozen=True)
class AnsweredCell:
    """A cell of the plan with its results, in the order of its questions."""

    planned: PlannedCell
    results: Sequence[Result]

    @property
    def shown(self) -> Cell:
        """As the tables take it; a dataset stands where the relay experiment has an order of evidence."""
        one = self.planned
        return Cell(one.player.name, one.questions.dataset, one.questions.documents, self.results)


def write_report(config: EvalConfig, plan: Plan, cells: Sequence[AnsweredCell], out: Path) -> str:
    """Write results.md, results.json and accuracy.png; returns the tables for a terminal.

    Raises:
        RememError: a file cannot be written.
    """
    shown = [cell.shown for cell in _by_agent(config, cells)]
    metrics = [config.metric, *(metric for metric in METRICS if metric != config.metric)]
    tables = [_comparison(shown, metric) for metric in metrics]
    agents = list(dict.fromkeys(cell.agent for cell in shown))
    pairs = list(itertools.combinations(agents, 2))
    if pairs:
        title = f"Differences in {METRIC_NAMES[config.metric]}, percentage points, paired by question"
        differences = difference_table(
            shown, pairs, title=title, seed=config.seed, metric=config.metric, show=percent_with_interval
        )
        tables.insert(1, differences)
    rows, failures = behaviour_rows(cells), failure_lines(cells)
    try:
        accuracy_plot(shown, out / "accuracy.png", seed=config.seed, metric=config.metric, panel="{}")
        document = json.dumps(as_json(config, plan, cells, pairs), indent=1, ensure_ascii=False)
        _write(out / "results.json", document + "\n")
        _write(out / "results.md", _markdown(config, plan, tables, rows, failures))
    except OSError as error:
        raise RememError(f"out: {out} cannot be written ({error.strerror}): make room and run again") from None
    parts = [*(table.to_text(110) for table in tables[: 2 if pairs else 1])]
    parts += ["Behaviour\n\n" + aligned(rows), *(["Failed questions\n\n" + _lines(failures)] if failures else [])]
    return "\n".join(parts)


def as_json(config: EvalConfig, plan: Plan, cells: Sequence[AnsweredCell], pairs) -> dict[str, Any]:
    """All of it as plain values, unrounded."""
    return {
        "settings": plan.identity,
        "metric": config.metric,
        "cells": [
            _names(cell) | {"n": len(cell.results)} | _scores(config, cell.results) | behaviour(cell.results)
            for cell in cells
        ],
        "differences": [
            {"first": first, "second": second, "dataset": one.questions.dataset, "documents": one.questions.documents}
            | {"metric": config.metric, **paired_interval(*scores, seed=config.seed)._asdict()}
            for first, second in pairs
            for one, scores in _paired(cells, first, second, config.metric)
        ],
        "failures": [
            _names(cell) | {"id": result.id, "error": result.error}
            for cell in cells
            for result in cell.results
            if result.error is not None
        ],
    }


def behaviour(results: Sequence[Result]) -> dict[str, float | None]:
    """The columns of `BEHAVIOUR`; None where there was nothing to measure. Failed questions count as none at all."""
    asked = [result for result in results if result.error is None]
    if not asked:
        return dict.fromkeys(BEHAVIOUR)
    rates = summary(asked)

    def total(field: str) -> float:
        return sum(getattr(result, field) for result in asked)

    seconds, documents = total("seconds"), total("document_tokens")
    return {
        "turns": rates["turns"],
        "document": documents / len(asked),
        "cut": total("cut_tokens") / documents if documents else None,
        "prompt": total("prompt_tokens") / total("turns"),
        "reply": rates["reply_tokens"],
        "calls": rates.get("call_rate"),
        "hits": rates.get("hit_rate"),
        "recalled": rates["recalled_rate"],
        "distance": rates.get("recalled_distance"),
        "invalid": rates.get("invalid_rate"),
        "truncated": rates["truncated_rate"],
        "seconds": total("seconds_share") / len(asked),
        "lookup": total("lookup_seconds") / seconds if seconds else None,
        "history": max(result.history_bytes for result in asked) / 1e3,
    }


def behaviour_rows(cells: Sequence[AnsweredCell]) -> list[list[str]]:
    """A head and a row a cell, as texts."""
    rows = [["", "dataset", "documents", *(name for name, _ in BEHAVIOUR.values())]]
    for cell in cells:
        one = cell.planned
        values = behaviour(cell.results)
        head = [one.player.name, one.questions.dataset, f"{one.questions.documents:,}"]
        rows.append([*head, *(_number(name, values[name]) for name in BEHAVIOUR)])
    return rows


def failure_lines(cells: Sequence[AnsweredCell]) -> list[str]:
    """A line a cell with failures, with its share of right answers, then a line a question."""
    lines = []
    for cell in cells:
        failed = [result for result in cell.results if result.error is not None]
        if failed:
            n, right = len(cell.results), sum(result.exact_match for result in cell.results)
            lines.append(
                f"{cell.planned.name}: {n} questions, {right:.0f} right by exact match, {len(failed)} failed -> "
                f"{100 * right / n:.2f}"
            )
            lines += [f"  {result.id}: {result.error}" for result in failed]
    return lines


def _comparison(cells: Sequence[Cell], metric: str) -> Table:
    title = f"{METRIC_NAMES[metric].capitalize() if metric != 'f1' else 'F1'}, percent"
    table = comparison_table(cells, title=title, metric=metric, show=percent_with_interval)
    if metric == "sub_exact_match_published":
        return dataclasses.replace(table, notes=(*table.notes, NOTE_PUBLISHED))
    return table


def _by_agent(config: EvalConfig, cells: Sequence[AnsweredCell]) -> list[AnsweredCell]:
    """Agents in the order of the settings, whatever the models' order."""
    order = list(config.agents)
    return sorted(cells, key=lambda cell: order.index(cell.planned.player.agent_name))


def _names(cell: AnsweredCell) -> dict[str, Any]:
    one = cell.planned
    return {
        "agent": one.player.name,
        "model": one.player.model_name,
        "dataset": one.questions.dataset,
        "documents": one.questions.documents,
    }


def _scores(config: EvalConfig, results: Sequence[Result]) -> dict[str, Any]:
    """Each metric with the ends of its interval; failures and missing answers by number."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        one = mean_interval([getattr(result, metric) for result in results], seed=config.seed)
        found |= {metric: one.mean, f"{metric}_low": one.low, f"{metric}_high": one.high}
    failed = sum(result.error is not None for result in results)
    return found | {"failed": failed, "no_answer": sum(result.prediction is None for result in results) - failed}


def _paired(cells: Sequence[AnsweredCell], first: str, second: str, metric: str):
    """Cells of the first agent with both agents' scores by question, where both have them."""
    by_place = {
        (cell.planned.player.name, cell.planned.questions.dataset, cell.planned.questions.documents): cell
        for cell in cells
    }
    for (name, dataset, documents), cell in by_place.items():
        other = by_place.get((second, dataset, documents))
        if name == first and other is not None:
            yield cell.planned, [{r.id: getattr(r, metric) for r in one.results} for one in (cell, other)]


def _markdown(config: EvalConfig, plan: Plan, tables: Sequence[Table], rows: list[list[str]], failures) -> str:
    """The page with everything that a reader needs to judge it."""
    identity = plan.identity
    drawn = {cell.player.name: cell.player.agent.config.sampling for cell in plan.cells}
    parts = [
        "# Evaluation\n",
        f"{identity['written_by']}, {identity['platform']}, {identity['dtype']}, seed {config.seed}, "
        f"{config.questions_in_flight} questions side by side. All settings: results.json.\n",
        "| | model | temperature | top-p | chunk | memory | reply |\n|---|---|---:|---:|---:|---:|---:|\n"
        + "".join(
            f"| {name} | {config.models[player.model_name]} | {drawn[name].temperature:g} | {drawn[name].top_p:g} | "
            f"{agent.chunk_tokens:,} | {agent.memory_tokens:,} | {agent.max_reply_tokens:,} |\n"
            for name, player in {cell.player.name: cell.player for cell in plan.cells}.items()
            for agent in [player.agent.config]
        ),
    ]
    notes = dict.fromkeys(f"{cell.player.name}: {note}" for cell in plan.cells for note in cell.player.notes)
    parts += ["\n".join(f"- {note}" for note in notes) + "\n"] if notes else []
    parts += [table.to_markdown() for table in tables]
    parts.append(f"![{METRIC_NAMES[config.metric].capitalize()} against documents](accuracy.png)\n")
    body = [f"| {' | '.join(row)} |" for row in rows]
    body.insert(1, "|---|---|" + "---:|" * (len(rows[0]) - 2))
    parts.append("**Behaviour**\n\n" + "\n".join(body) + "\n")
    parts.append("".join(f"- {name}: {meaning}\n" for name, meaning in BEHAVIOUR.values()))
    if failures:
        parts.append(f"**Failed questions**, counted as wrong\n\n```\n{_lines(failures)}```\n")
    return "\n".join(parts)


def _number(name: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    if name in ("document", "prompt", "reply"):
        return f"{value:,.0f}"
    if name in ("turns", "distance", "history"):
        return f"{value:,.1f}"
    if name in ("lookup", "seconds"):
        return f"{value:.3g}"
    return f"{value:.2f}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts in columns, names to the left and numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return _lines(
        "  ".join(text.ljust(width) if i < 2 else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths)))
        for row in rows
    )


def _lines(texts) -> str:
    return "".join(f"{clean(text).rstrip()}\n" for text in texts)


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
