"""The report of results told by hand: accuracy, paired differences, behaviour, failures."""

import dataclasses
import json

import pytest

from remem_jax.eval.plan import make_plan
from remem_jax.eval.report import AnsweredCell, behaviour, failure_lines, write_report
from tests.eval.made_evaluation import settings, write_evaluation
from tests.eval.test_harness import RESULT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_evaluation(tmp_path_factory.mktemp("report"))


def cells_of(config):
    """rememr1 right on the first four questions, memagent on the first two, with a failure."""
    plan = make_plan(config, None, lambda *_: None)
    cells = []
    for cell in plan.cells:
        right = 4 if cell.player.name == "rememr1" else 2
        results = [
            dataclasses.replace(RESULT, id=name, exact_match=float(i < right), f1=float(i < right))
            for i, name in enumerate(cell.questions.ids)
        ]
        if cell.player.name == "memagent":
            results[4] = dataclasses.replace(results[4], turns=0, calls=0, hits=0, recalled_distance=None, error="long")
        cells.append(AnsweredCell(cell, results))
    return plan, cells


def test_the_report_names_metric_n_interval_differences_and_failures(folder, tmp_path):
    config = settings(folder, agents={"rememr1": {}, "memagent": {}})
    plan, cells = cells_of(config)
    text = write_report(config, plan, cells, tmp_path)
    assert text.startswith("Exact match, percent\n") and "95 % bootstrap interval" in text and "n = 5 questions" in text
    assert "rememr1     80.00 ±" in text and "memagent    40.00 ±" in text
    assert "rememr1 - memagent   +40.00 ±" in text
    assert "memagent on relay, 8 documents: 5 questions, 2 right by exact match, 1 failed -> 40.00\n" in text
    assert "  relay-distant-8-evaluation-4: long\n" in text
    page = (tmp_path / "results.md").read_text()
    for title in ("**Exact match, percent**", "**F1, percent**", "**Sub-exact match, percent**"):
        assert title in page
    assert "**Sub-exact match as published, percent**" in page and "for comparison with published tables" in page
    assert (tmp_path / "accuracy.png").read_bytes()[1:4] == b"PNG"
    found = json.loads((tmp_path / "results.json").read_text())
    (cell,) = [c for c in found["cells"] if (c["agent"], c["documents"]) == ("memagent", 8)]
    assert cell["exact_match"] == pytest.approx(0.4) and cell["failed"] == 1 and cell["n"] == 5
    assert cell["exact_match_low"] <= 0.4 <= cell["exact_match_high"]
    (difference,) = [d for d in found["differences"] if d["documents"] == 8]
    assert (difference["first"], difference["second"], difference["n"]) == ("rememr1", "memagent", 5)
    # Two of five questions differ, always the same way.
    assert difference["mean"] == pytest.approx(0.4) and difference["low"] >= 0
    assert [failure["documents"] for failure in found["failures"]] == [4, 8]


def test_behaviour_is_of_the_questions_that_were_asked():
    one = dataclasses.replace(
        RESULT, seconds=4.0, seconds_share=1.0, document_tokens=100, cut_tokens=25, prompt_tokens=50, history_bytes=2000
    )
    other = dataclasses.replace(one, id="b", seconds_share=2.0, history_bytes=1000)
    failed = dataclasses.replace(one, id="c", turns=0, seconds=0.0, document_tokens=0, error="long")
    found = behaviour([one, other, failed])
    assert found == {
        "turns": 5.0, "document": 100.0, "cut": 0.25, "prompt": 10.0, "reply": 4.0, "calls": 4 / 8, "hits": 2 / 4,
        "recalled": 2 / 10, "distance": 3.0, "invalid": 2 / 8, "truncated": 0.0, "seconds": 1.5, "lookup": 0.2 / 8,
        "history": 2.0,
    }  # fmt: skip
    assert set(behaviour([failed]).values()) == {None}


def test_no_failure_is_no_line(folder):
    _, cells = cells_of(settings(folder, agents={"rememr1": {}}))
    assert failure_lines(cells) == []
