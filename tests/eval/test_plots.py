"""What the pictures show: their lines, labels and files; how they look was judged by eye."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from remem_jax.errors import RememError
from remem_jax.eval.plots import (
    COLOURS,
    MARKERS,
    OUTCOME,
    PARTS,
    RUN_LINES,
    VALIDATION,
    accuracy_figure,
    accuracy_plot,
    learning_curve,
    learning_figure,
    running_mean,
)
from remem_jax.eval.tables import Cell

LINES = [
    {"step": step, OUTCOME: 0.4 + step / 100, **dict.fromkeys(PARTS, step / 40)}
    | ({VALIDATION: 0.5} if step % 10 == 0 else {})
    for step in range(40)
]
CELLS = [
    Cell(agent, order, documents, accuracy=accuracy, n=200, scripted=agent == "oracle")
    for order in ("forward", "distant")
    for agent, accuracies in {"callback": (0.8, 0.5), "memagent": (0.6, 0.2), "oracle": (1.0, 1.0)}.items()
    for documents, accuracy in zip((8, 16), accuracies)
]


def labels(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def is_png(path):
    return path.read_bytes()[:4] == b"\x89PNG" and imread(path).std() > 0


def test_the_running_mean_is_centred_and_shortens_at_the_ends():
    assert running_mean(np.array([1.0, 2.0, 6.0, 3.0]), 3).tolist() == [1.5, 3.0, 11 / 3, 4.5]
    assert running_mean(np.array([1.0, 5.0]), 1).tolist() == [1.0, 5.0]


def test_the_learning_curve_draws_each_run_thin_and_thick_with_its_validation(tmp_path):
    runs = {"callback": LINES, "memagent": LINES[:20]}
    figure: Any = learning_figure(runs)
    main, *small = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["Exact match", *PARTS.values()]
    assert labels(figure) == [f"{run}, {kind}" for run in runs for kind in ("training", "validation")]
    thin, thick, points, *second = main.lines
    assert thin.get_ydata().tolist() == [line[OUTCOME] for line in LINES] and thin.get_linewidth() < 1
    # A straight line is its own running mean where the window is whole: 5 steps, a tenth of 40 and odd.
    assert thick.get_ydata()[2:-2] == pytest.approx([line[OUTCOME] for line in LINES[2:-2]])
    assert thick.get_ydata()[0] == pytest.approx(0.41) and thick.get_linewidth() > 2
    assert points.get_xdata().tolist() == [0, 10, 20, 30] and len(second) == 3
    assert thick.get_linestyle() != second[1].get_linestyle() and points.get_marker() != second[2].get_marker()
    assert {len(axes.lines) for axes in small} == {4}
    learning_curve(runs, tmp_path / "curve.png")
    assert is_png(tmp_path / "curve.png")


def test_one_step_nulls_and_absent_metrics_make_a_picture_too(tmp_path):
    lines = [{"step": 0, OUTCOME: 0.5, "reward/format": None}, {"step": 1, "reward/format": float("nan")}]
    figure: Any = learning_figure({"only": lines})
    assert [axes.get_title() for axes in figure.axes] == ["Exact match"] and labels(figure) == ["only, training"]
    assert figure.axes[0].lines[0].get_marker() == "."
    learning_curve({"only": lines}, tmp_path / "curve.png")
    assert is_png(tmp_path / "curve.png")
    with pytest.raises(RememError, match="expected lines of metrics with a step"):
        learning_figure({"only": [{"step": 0, OUTCOME: None}]})


def test_resumed_runs_are_drawn_in_the_order_of_their_steps():
    figure: Any = learning_figure({"a": LINES[::-1]})
    assert figure.axes[0].lines[0].get_xdata().tolist() == list(range(40))


def test_accuracy_has_a_panel_an_order_and_a_line_an_agent_with_bounds_dashed(tmp_path):
    figure: Any = accuracy_figure(CELLS)
    assert [axes.get_title() for axes in figure.axes] == ["forward evidence", "distant evidence"]
    assert labels(figure) == ["callback", "memagent", "oracle (scripted)"]
    for axes in figure.axes:
        lines = {line.get_label(): line for line in axes.lines}
        assert lines["callback"].get_ydata().tolist() == [0.8, 0.5]
        assert lines["callback"].get_xdata().tolist() == [8, 16] and axes.get_xscale() == "log"
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["8", "16"]
        assert [lines[name].get_linestyle() for name in lines] == ["-", "-", "--"]
        assert len({line.get_marker() for line in lines.values()}) == 3
        assert len(axes.collections) == 2  # bands of the trained agents
        low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
        # At 8 documents .8 ± 1.96 * sqrt(.8 * .2 / 200) = ±.055; at 16 .5 ± .069.
        assert (low, high) == pytest.approx((0.5 - 0.069, 0.8 + 0.055), abs=0.012)
    accuracy_plot(CELLS, tmp_path / "accuracy.png")
    assert is_png(tmp_path / "accuracy.png")


def test_one_number_of_documents_is_drawn_as_points_side_by_side_with_bars(tmp_path):
    cells = [cell for cell in CELLS if cell.documents == 8 and cell.order == "distant"]
    figure: Any = accuracy_figure(cells)
    (axes,) = figure.axes
    at = [line.get_xdata()[0] for line in axes.lines if not line.get_label().startswith("_")]
    assert at == sorted(at) and len(set(at)) == 3 and at[1] == 8.0
    assert len(axes.containers) == 2  # bars of the trained agents
    accuracy_plot(cells, tmp_path / "accuracy.png")
    assert is_png(tmp_path / "accuracy.png")


def test_agents_and_runs_differ_in_more_than_colour():
    assert len(set(COLOURS)) == len(set(MARKERS)) == len(COLOURS) == len(MARKERS)
    assert len(set(map(str, RUN_LINES))) == len(RUN_LINES)


def test_a_picture_that_cannot_be_written_is_one_clear_line(tmp_path):
    with pytest.raises(RememError, match=r"picture: .*curve.png cannot be written: .*; give another path"):
        learning_curve({"a": LINES}, tmp_path / "absent" / "curve.png")


def test_matplotlib_is_imported_only_by_drawing():
    code = "import sys, remem_jax.eval.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
