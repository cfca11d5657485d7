"""The page of `remem report`: curves and trajectories of runs and traces in one HTML file that needs no network.

Every text goes into the page as JSON and from there into text nodes; a policy in the page forbids it everything but its
own script and style, by their digests.
"""

import base64
import gzip
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from remem_jax import __version__
from remem_jax.errors import RememError
from remem_jax.observe.marking import Segments, gold_words, marked, shortened, visible
from remem_jax.observe.metrics import METRICS_FILE, read_metrics
from remem_jax.observe.snippet import answer_text, environment, flags, turn_name
from remem_jax.observe.stories import TRAJECTORIES, Trajectory, count_and_read, sample

VALIDATION_FILE = "validation.jsonl"
POINTS = 300  # of a curve
LARGEST_PAGE = 4_900_000  # bytes, a little below the 5 MB that browsers and mail take without trouble
TEXT_LIMITS = (None, 16_000, 8_000, 4_000, 2_000, 1_000, 500)  # characters, tried in turn until the page fits
GENERATOR = b'<meta name="generator" content="remem_jax'
Curve = list[tuple[float, float | None]]
Pool = dict[tuple[str, frozenset[str]], tuple[int, Segments]]
"""Text and gold words -> its number and segments, so that what turns and rollouts share is there once."""

LEARNING = {
    "reward/outcome": "Outcome of the rollouts",
    "validation/exact_match": "Exact match in validation",
    "reward/memory": "Memory gain, mean a turn",
    "reward/callback": "Callback gain, mean a turn",
    "reward/format": "Replies in the right format",
    "loss/total": "Loss",
}
HEALTH = {
    "health/call_rate": "Call rate: turns with a query",
    "health/hit_rate": "Hit rate: queries that found one",
    "health/callback_gain": "Callback gain, mean a query",
    "health/useful_call_rate": "Queries that brought answer words",
    "health/query_from_prompt": "Queries that repeat the prompt",
    "health/memory_tokens": "Memory length in tokens",
    "health/distinct_words": "Distinct words of a memory, share",
    "health/answer_words_missed": "Answer words read but not kept",
    "health/invalid": "Invalid replies",
    "health/truncated": "Replies cut at their limit",
}
"""METHOD 10's curves, by the names of `rl.health`."""


@dataclass(frozen=True)
class Source:
    """One run or one trace."""

    label: str
    total: int
    """Trajectories that it holds."""
    trajectories: list[Trajectory]
    curves: Mapping[str, Curve]
    """Name of a metric -> (step, value); those of validations begin with `validation/`. Empty for a trace."""


def write_report(paths: Sequence[str | Path], out: str | Path, *, limit: int = 500) -> tuple[Path, str]:
    """Write the page of some runs and traces; returns its path and what is in it, in a line.

    Args:
        limit: trajectories on the page; of more, whole questions are sampled, and the page says so.

    Raises:
        RememError: a path that cannot be read or written, or holds neither metrics nor trajectories.
    """
    out = _free(Path(out).expanduser(), paths)
    page, told = report_page(read_sources(paths, limit=limit), limit=limit)
    part = out.with_name(out.name + ".part")
    try:
        part.write_text(page, encoding="utf-8", newline="\n")
        os.replace(part, out)
    except OSError as error:
        raise RememError(f"{out} cannot be written: {error.strerror}; give another file with -o") from None
    return out, told


def _free(out: Path, inputs: Sequence[str | Path]) -> Path:
    """The path, if a report may be written there: over an older report, but over nothing else."""
    if not out.parent.is_dir():
        raise RememError(f"{out} cannot be written: the directory {out.parent} does not exist; make it first")
    if out.is_dir():
        raise RememError(f"{out} is a directory: give a file for the report with -o, such as {out / 'report.html'}")
    if out.exists():
        with out.open("rb") as file:
            if GENERATOR not in file.read(2000):
                raise RememError(f"{out} exists and is no report: give another file with -o, or remove it")
    return out


def read_sources(paths: Sequence[str | Path], *, limit: int) -> list[Source]:
    """Runs and traces with labels that tell them apart: the shortest ends of their paths.

    Raises:
        RememError: a path given twice, or one that cannot be read or holds nothing.
    """
    full = [Path(path).expanduser().resolve() for path in paths]
    for at, path in enumerate(full):
        if path in full[:at]:
            raise RememError(f"{paths[at]}: given twice; give two different runs or traces to compare")
    return [_source(path, label, limit) for path, label in zip(full, _labels(full))]


def _labels(paths: Sequence[Path]) -> list[str]:
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        labels = [visible("/".join(path.parts[-parts:])) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    return [visible(str(path)) for path in paths]


def _source(path: Path, label: str, limit: int) -> Source:
    if path.is_file():
        return Source(label, *count_and_read(path, label, limit), {})
    if not path.is_dir():
        raise RememError(f"{path}: expected a run directory or a trace (.jsonl), found nothing there")
    if not (path / METRICS_FILE).is_file() and not (path / TRAJECTORIES).is_dir():
        inside = sorted(file.parent.relative_to(path).as_posix() for file in path.glob(f"*/**/{METRICS_FILE}"))[:4]
        hint = f"give one of the runs in it: {', '.join(inside)}" if inside else "give the run_dir of a remem train"
        raise RememError(f"{path}: expected a run with {METRICS_FILE} or {TRAJECTORIES}/, found neither: {hint}")
    return Source(label, *count_and_read(path, label, limit), _curves(path))


def _curves(run: Path) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for file, prefix in ((METRICS_FILE, ""), (VALIDATION_FILE, "validation/")):
        lines = read_metrics(run / file) if (run / file).is_file() else []
        width = max(1, math.ceil(len(lines) / POINTS))
        for name in dict.fromkeys(name for line in lines for name in line if name != "step"):
            parts = (lines[at : at + width] for at in range(0, len(lines), width))
            curves[prefix + name] = [_point(part, name) for part in parts]
    return {name: curve for name, curve in curves.items() if any(value is not None for _, value in curve)}


def _point(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float | None]:
    """The last step of some lines with the mean of what they measured, None where they measured nothing."""
    values = [value for line in lines if (value := _number(line.get(name))) is not None]
    return _number(lines[-1].get("step")) or 0, math.fsum(values) / len(values) if values else None


def _number(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return value if fits else None


def report_page(sources: Sequence[Source], *, limit: int = 500) -> tuple[str, str]:
    """The page, and what is in it in a line."""
    total = sum(source.total for source in sources)
    every = [one for source in sources for one in source.trajectories]
    shown = sample(every, limit) if len(every) > limit else every
    while True:
        pool: Pool = {}
        data = _data(sources, shown, pool)
        for characters in TEXT_LIMITS:
            texts = [shortened(text, characters) if characters else text for _, text in pool.values()]
            page = _page(sources, data | {"texts": texts, "notes": _notes(len(shown), total, characters)})
            if page is not None:
                told = f"{len(shown):,} of {total:,} trajectories" if len(shown) < total else f"{total:,} trajectories"
                return page, told
        fewer = sample(shown, len(shown) // 2)
        if len(fewer) == len(shown):
            raise RememError("the trajectories of one question fill more than a page: give a trace with fewer of them")
        shown = fewer


def _notes(shown: int, total: int, characters: int | None) -> list[str]:
    """What the page leaves out."""
    notes = []
    if shown < total:
        notes.append(
            f"A sample: {shown:,} of {total:,} trajectories, all rollouts of some questions, chosen by a digest of the "
            "question."
        )
    if characters is not None:
        notes.append(f"Texts of more than {characters:,} characters are shortened, around gold-answer words last.")
    return notes


def _data(sources: Sequence[Source], shown: Sequence[Trajectory], pool: Pool) -> dict[str, Any]:
    """All that the page's script is given but the texts, which are put into `pool`."""
    labels = [source.label for source in sources]
    names = list(dict.fromkeys(name for source in sources for name in source.curves))
    known = {"Learning": LEARNING, "Is the callback alive?": HEALTH}
    titled = {name for charts in known.values() for name in charts}
    groups = [
        (title, {name: text for name, text in charts.items() if name in names}) for title, charts in known.items()
    ]
    groups.append(("All other metrics", {name: name for name in sorted(names) if name not in titled}))
    return {
        "labels": labels,
        "charts": [
            {
                "title": title,
                "open": title in known,
                "charts": [
                    {"name": name, "title": text, "lines": [_rounded(source.curves.get(name)) for source in sources]}
                    for name, text in charts.items()
                ],
            }
            for title, charts in groups
            if charts
        ],
        "trajectories": [_told(one, labels.index(one.source), pool) for one in shown],
    }


def _rounded(curve: Curve | None) -> list[tuple[float, float | None]] | None:
    return curve and [(step, None if value is None else float(f"{value:.4g}")) for step, value in curve]


def _told(trajectory: Trajectory, source: int, pool: Pool) -> dict[str, Any]:
    """One trajectory; texts are numbers in `pool`."""
    gold = gold_words(trajectory.answers)

    def text(value: str | None) -> int | None:
        if not value:
            return None
        if (value, gold) not in pool:
            pool[value, gold] = len(pool), marked(visible(value).strip(), gold)
        return pool[value, gold][0]

    numbers = ("outcome", "memory_gain", "callback_gain", "format", "advantage", "state_reward")
    turns, before = [], None
    for turn in trajectory.turns:
        told = {
            "name": turn_name(turn),
            "turn": turn["turn"],
            "final": turn["final"],
            "flags": flags(turn),
            "from": turn["recalled_step"],
            "score": turn["recalled_score"] if turn["recalled_step"] is not None else None,
            "query": visible(turn["callback"] or "").strip(),
            "tokens": [turn["prompt_tokens"], turn["reply_tokens"]],
            "before": text(turn["memory_before"] or before),
            **{name: text(turn[name]) for name in ("chunk", "recalled", "reply", "memory")},
            **{name: turn[name] for name in numbers},
        }
        turns.append({name: value for name, value in told.items() if value not in (None, "", [], [None, None])})
        before = turn["memory"]
    told = {
        "source": source,
        "id": visible(trajectory.question_id),
        "question": visible(trajectory.question),
        "answer": answer_text(trajectory),
        "gold": trajectory.answers and [visible(one) for one in trajectory.answers],
        "step": trajectory.step,
        "rollout": trajectory.rollout,
        "em": trajectory.exact_match,
        "f1": trajectory.f1,
        "calls": trajectory.calls,
        "hits": trajectory.hits,
        "invalid": trajectory.invalid_turns,
        "cut": trajectory.truncated,
        "finished": trajectory.finished,
        "outcome": trajectory.turns[-1]["outcome"],
        **{name: trajectory.total(name) for name in ("memory_gain", "callback_gain", "format")},
        "turns": turns,
    }
    return {name: value for name, value in told.items() if value is not None}


def _page(sources: Sequence[Source], data: Mapping[str, Any]) -> str | None:
    """The whole page, its data packed where they are large; None where it would still be too large."""
    folder = Path(__file__).parent / "pages"
    script, style = ((folder / name).read_text(encoding="utf-8") for name in ("report.js", "report.css"))
    text = json.dumps(data, separators=(",", ":"))  # ASCII alone
    room = LARGEST_PAGE - len(script.encode()) - len(style.encode())
    packed = len(text) * 1.1 > room
    if len(text) > 5 * room:  # would not fit packed either
        return None
    if packed:
        text = base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
    else:
        text = text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    if len(text) > room:
        return None
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            title=" and ".join(source.label for source in sources),
            version=__version__,
            script=Markup(script),
            style=Markup(style),
            policy=f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
            "form-action 'none'",
            kind="application/gzip" if packed else "application/json",
            data=Markup(text),
        )
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
