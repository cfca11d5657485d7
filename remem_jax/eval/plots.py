"""Pictures of a comparison: how agents learn, and how right they are as documents grow.

An agent keeps one colour, one marker and one kind of line, so that the pictures can be read without colours too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from remem_jax.errors import RememError
from remem_jax.eval.tables import METRIC_NAMES, Cell, measured

if TYPE_CHECKING:  # matplotlib takes a second to import: only who draws waits for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any common colour blindness tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SCRIPTED_COLOURS = ("#000000", "#5A5A5A", "#8C8C8C")
MARKERS = ("o", "s", "^", "D", "v", "P")
SCRIPTED_MARKERS = ("x", "+", "1", "2", "3")
RUN_LINES = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}

OUTCOME = "reward/outcome"
VALIDATION = "exact_match"
PARTS = {
    "reward/memory": "memory gain a turn",
    "reward/callback": "callback gain a turn",
    "reward/format": "share of valid replies",
    "health/call_rate": "calls a memory turn",
}
"""Metrics of the small panels and their titles."""
SHARES = ("reward/format", "health/call_rate")  # always shown from 0 to 1

Metrics = Mapping[str, Any]


def learning_curve(runs: Mapping[str, Sequence[Metrics]], path: str | Path) -> None:
    """Draw training and validation exact match, reward parts and call rate against the step, to a PNG file.

    Args:
        runs: by the label of a run the lines of its metrics.jsonl and validation.jsonl, in one list and any order, each
            with its `step`; what a line lacks of `OUTCOME`, `PARTS` and `VALIDATION`, or has as null, is passed over.

    Raises:
        RememError: nothing to draw, or the file cannot be written.
    """
    _save(learning_figure(runs), path)


def accuracy_plot(
    cells: Sequence[Cell],
    path: str | Path,
    *,
    seed: int = 0,
    metric: str = "exact_match",
    panel: str = "{} evidence",
) -> None:
    """Draw a metric against the number of documents, a panel an order of evidence (or a dataset), to a PNG file.

    Args:
        metric: a field of `Result`.
        panel: the title of a panel, `{}` for its order.

    Raises:
        RememError: no cells, or the file cannot be written.
    """
    _save(accuracy_figure(cells, seed=seed, metric=metric, panel=panel), path)


def learning_figure(runs: Mapping[str, Sequence[Metrics]]) -> "Figure":
    """The figure of `learning_curve`."""
    import matplotlib
    from matplotlib.figure import Figure

    parts = [name for name in PARTS if any(len(_series(lines, name)[0]) for lines in runs.values())]
    has_outcome = any(len(_series(lines, name)[0]) for lines in runs.values() for name in (OUTCOME, VALIDATION))
    if not has_outcome and not parts:
        names = ", ".join([OUTCOME, VALIDATION, *PARTS])
        raise RememError(f"expected lines of metrics with a step and one of {names}, found none: train first")
    with matplotlib.rc_context(STYLE):
        rows = max(1, -(-len(parts) // 2))
        figure = Figure(figsize=(11 if parts else 6.5, 4.6), layout="constrained")
        grid = figure.add_gridspec(rows, 4 if parts else 2)
        main = figure.add_subplot(grid[:, :2])
        small = [figure.add_subplot(grid[i // 2, 2 + i % 2]) for i in range(len(parts))]
        window = _window(max(len(_series(lines, OUTCOME)[0]) for lines in runs.values()))
        for i, (label, lines) in enumerate(runs.items()):
            style = {"color": COLOURS[i % len(COLOURS)], "linestyle": RUN_LINES[i % len(RUN_LINES)]}
            _curve(main, _series(lines, OUTCOME), window, style, label=f"{label}, training")
            _validation(main, _series(lines, VALIDATION), i, label)
            for axes, name in zip(small, parts, strict=True):
                _curve(axes, _series(lines, name), window, style)
        main.set(title="Exact match", ylabel="share of right answers", ylim=(-0.02, 1.02))
        for axes, name in zip(small, parts, strict=True):
            axes.set_title(PARTS[name])
            if name in SHARES:
                axes.set_ylim(-0.04, 1.04)
        _steps([main, *small], [line["step"] for lines in runs.values() for line in lines])
        for axes in (main, *small[-2:]):
            axes.set_xlabel("rollout step")
        _legend(figure, [main], f"thin: each step; thick: mean of {window} steps around it" if window > 1 else None)
    return figure


def accuracy_figure(
    cells: Sequence[Cell], *, seed: int = 0, metric: str = "exact_match", panel: str = "{} evidence"
) -> "Figure":
    """The figure of `accuracy_plot`."""
    import matplotlib
    from matplotlib.figure import Figure

    known = measured(cells, seed=seed, metric=metric)
    orders = list(dict.fromkeys(cell.order for cell in cells))
    scripted = {cell.agent for cell in cells if cell.scripted}
    agents = sorted(dict.fromkeys(cell.agent for cell in cells), key=lambda agent: agent in scripted)
    bounds = [agent for agent in agents if agent in scripted]
    documents = sorted({cell.documents for cell in cells})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.4 * len(orders), 4.4), layout="constrained")
        panels = figure.subplots(1, len(orders), sharey=True, squeeze=False)[0]
        for axes, order in zip(panels, orders, strict=True):
            for i, agent in enumerate(agents):
                counts = [count for count in documents if (agent, (order, count)) in known]
                intervals = [known[agent, (order, count)].interval for count in counts]
                # Over a single number of documents the agents stand side by side, else they would hide one another.
                shift = 2 ** (0.08 * (i - (len(agents) - 1) / 2)) if len(documents) == 1 else 1.0
                at = [count * shift for count in counts]
                if agent in scripted:
                    _bound(axes, at, intervals, bounds.index(agent), f"{agent} (scripted)")
                else:
                    _agent(axes, at, intervals, i, agent, shade=0.2 if len(agents) <= 3 else 0.12)
            axes.set(title=panel.format(order), xlabel="documents", ylim=(-0.03, 1.05))
            axes.set_xscale("log", base=2)
            axes.set_xticks(documents, [f"{count:,}" for count in documents])
            axes.set_xlim(documents[0] / 1.25, documents[-1] * 1.25)
            axes.minorticks_off()
        panels[0].set_ylabel(f"{METRIC_NAMES.get(metric, metric)}, share of questions")
        mark = "band" if len(documents) > 1 else "bar"
        trained = len(agents) > len(bounds)
        _legend(figure, panels, f"{mark}: 95 % bootstrap interval over questions" if trained else None)
    return figure


def running_mean(values: Float[np.ndarray, "n"], window: int) -> Float[np.ndarray, "n"]:
    """Mean of the `window` values around each (odd); near the ends of those that exist."""
    ones = np.ones(window)
    half = window // 2
    sums = np.convolve(values, ones)[half : half + len(values)]
    return sums / np.convolve(np.ones(len(values)), ones)[half : half + len(values)]


def _steps(panels: "Sequence[Axes]", steps: Sequence[float]) -> None:
    """One span of whole steps for all panels, some width of it also where there is a single step."""
    from matplotlib.ticker import MaxNLocator

    first, last = min(steps), max(steps)
    room = 0.03 * (last - first) or 1
    for axes in panels:
        axes.set_xlim(first - room, last + room)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _legend(figure: "Figure", panels: "Sequence[Axes]", title: str | None) -> None:
    """Below the panels, in as many columns as the longest label leaves room for."""
    handles = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
    if not handles:
        return
    inches = 0.7 + 0.09 * max(map(len, handles))  # of a column: its sample of the line, and its text at 10 points
    columns = min(len(handles), max(1, int(figure.get_figwidth() / inches)))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, title=title, title_fontsize="small"
    )


def _window(points: int) -> int:
    """Odd width of the running mean: a tenth of the curve, at most 25 steps."""
    return min(25, max(1, points // 10) // 2 * 2 + 1) if points >= 5 else 1


def _series(lines: Sequence[Metrics], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one metric, in the order of the steps, where it is a finite number."""
    points = sorted(
        (line["step"], line[name]) for line in lines if line.get(name) is not None and np.isfinite(line[name])
    )
    return np.array([step for step, _ in points], float), np.array([value for _, value in points], float)


def _curve(axes: "Axes", series, window: int, style: dict, label: str | None = None) -> None:
    steps, values = series
    if not len(steps):
        return
    if len(steps) == 1:
        axes.plot(steps, values, **style, marker=".", label=label)
        return
    if window > 1:
        axes.plot(steps, values, color=style["color"], linewidth=0.7, alpha=0.4)
    axes.plot(steps, running_mean(values, min(window, _window(len(steps)))), **style, linewidth=2.2, label=label)


def _validation(axes: "Axes", series, i: int, label: str) -> None:
    steps, values = series
    if len(steps):
        axes.plot(
            steps, values, color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)], linestyle="none",
            markersize=8, markeredgecolor="white", label=f"{label}, validation", zorder=3,
        )  # fmt: skip


def _agent(axes: "Axes", at, intervals, i: int, label: str, shade: float) -> None:
    """A trained agent: a full line with a band, or with bars where there is but one point to see."""
    if not at:
        return
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    means, lows, highs = np.array([one[:3] for one in intervals]).T
    again = i // len(COLOURS)  # colours and markers come round again: hollow then, on a line of dashes
    line = axes.plot(
        at, means, color=colour, marker=marker, linestyle=RUN_LINES[again % len(RUN_LINES)], label=label, zorder=3,
        markersize=max(8 - 0.8 * i, 4) if len(at) > 1 else 4, linewidth=max(2.6 - 0.3 * i, 1.2),
    )[0]  # fmt: skip
    # Later lines are thinner, so that an earlier one of the same height is seen behind them.
    if again:
        line.set_markerfacecolor("white")
    if len(at) > 1:
        axes.fill_between(at, lows, highs, color=colour, alpha=shade, linewidth=0)
    else:
        axes.errorbar(at, means, yerr=[means - lows, highs - means], color=colour, capsize=4, fmt="none")


def _bound(axes: "Axes", at, intervals, i: int, label: str) -> None:
    if at:
        axes.plot(
            at, [one.mean for one in intervals], color=SCRIPTED_COLOURS[i % len(SCRIPTED_COLOURS)], linestyle="--",
            marker=SCRIPTED_MARKERS[i % len(SCRIPTED_MARKERS)], markersize=8, linewidth=1.2, label=label,
        )  # fmt: skip


def _save(figure: "Figure", path: str | Path) -> None:
    try:
        figure.savefig(path, format="png", dpi=150)
    except OSError as error:
        raise RememError(f"picture: {path} cannot be written: {error.strerror}; give another path") from None
