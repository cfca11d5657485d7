"""`remem report` as a command: what it writes, prints and refuses."""

import json
import os
import re

import pytest

from tests.report_traces import HOSTILE, line, story, write, write_run
from tests.tiny_agent import remem


def refused(*arguments) -> str:
    """The one line that a refused command prints."""
    ran = remem(*arguments)
    assert ran.status == 2 and ran.out == "" and ran.err.count("\n") == 1
    return ran.err.removeprefix("remem: error: ").strip()


def embedded(page: str) -> dict:
    """The data of a page, found as a browser finds them."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(found)


def test_a_run_and_a_trace_become_one_page_that_may_be_written_again(tmp_path):
    run = write_run(tmp_path / "run", story("q", "York"))
    trace = write(tmp_path / "trace.jsonl", story("q", "Rome"))
    out = tmp_path / "page.html"
    for _ in range(2):
        ran = remem("report", run, "--compare", trace, "-o", out)
        assert (ran.status, ran.out) == (0, f"written: {out}: 2 trajectories\n")
    data = embedded(out.read_text(encoding="utf-8"))
    assert data["labels"] == ["run", "trace.jsonl"]
    assert [(one["source"], one.get("step"), one["answer"], one["em"]) for one in data["trajectories"]] == [
        (0, 40, "York", 1.0),
        (1, None, "Rome", 0.0),
    ]
    assert [group["title"] for group in data["charts"]] == ["Learning", "Is the callback alive?", "All other metrics"]
    rate = data["charts"][1]["charts"][0]["lines"]
    assert rate[0][:2] == [[1, 0.025], [2, 0.05]] and rate[1] is None
    first = out.read_bytes()
    remem("report", run, "--compare", trace, "-o", out)
    assert out.read_bytes() == first, "nothing of the time or place is in it"


def test_texts_that_turns_and_rollouts_share_are_in_the_page_once(tmp_path):
    trace = write(tmp_path / "t.jsonl", [*story("q", "York"), *story("q", "York", rollout=1)])
    remem("report", trace, "-o", tmp_path / "page.html")
    data = embedded((tmp_path / "page.html").read_text(encoding="utf-8"))
    texts = ["".join(segments) for segments in data["texts"]]
    assert len(texts) == len(set(texts)) and texts.count("Ada lives in old York 0") == 1


def test_the_source_of_a_hostile_page_holds_none_of_its_marks(tmp_path):
    trace = write(
        tmp_path / "t.jsonl", [line(HOSTILE, 0, final=True, answer=HOSTILE, reply=HOSTILE, answers=[HOSTILE])]
    )
    remem("report", trace, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2 and page.count("<!") == 1
    inside = re.findall(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[0]
    assert not set("<>&\u2028\u202e\x00") & set(inside) and inside.isascii()
    assert embedded(page)["trajectories"][0]["question"].startswith("</script></div><script>window.hacked = 1</script>")


def test_long_curves_become_means_and_the_whole_run_is_covered(tmp_path):
    run = tmp_path / "run"
    write(run / "metrics.jsonl", [{"step": n, "loss/total": float(n), "x": None} for n in range(1, 1001)])
    remem("report", run, "-o", tmp_path / "page.html")
    data = embedded((tmp_path / "page.html").read_text(encoding="utf-8"))
    (line_,) = data["charts"][0]["charts"][0]["lines"]
    assert line_[0] == [4, 2.5] and line_[-1] == [1000, 998.5] and len(line_) == 250
    assert data["trajectories"] == [] and [chart["name"] for chart in data["charts"][0]["charts"]] == ["loss/total"]


def test_what_cannot_be_read_or_written_is_told_in_a_line(tmp_path):
    trace = write(tmp_path / "t.jsonl", story("q", "York"))
    write_run(tmp_path / "runs" / "one", story("q", "York"))
    (tmp_path / "mine.html").write_text("<p>my own page")
    assert refused("report", tmp_path / "no").endswith(
        "expected a run directory or a trace (.jsonl), found nothing there"
    )
    assert "found neither: give one of the runs in it: one" in refused("report", tmp_path / "runs")
    assert "given twice" in refused("report", trace, trace)
    assert "exists and is no report" in refused("report", trace, "-o", tmp_path / "mine.html")
    assert "exists and is no report" in refused("report", trace, "-o", trace)
    assert "is a directory" in refused("report", trace, "-o", tmp_path)
    assert "does not exist; make it first" in refused("report", trace, "-o", tmp_path / "a" / "b.html")
    assert refused("report", trace, "--limit", "0") == "limit: expected at least 1, found 0"
    assert (tmp_path / "mine.html").read_text() == "<p>my own page"
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert "bad.jsonl line 1: question: expected text, found nothing" in refused("report", tmp_path / "bad.jsonl")
    assert sorted(os.listdir(tmp_path)) == ["bad.jsonl", "mine.html", "runs", "t.jsonl"]


def test_the_terminal_tells_the_same_story(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    trace = write(
        tmp_path / "t.jsonl", [*story("Where?", "Rome"), line("Bad \x1b[31m", 0, valid=False, reason="nested")]
    )
    ran = remem("report", "--text", trace)
    assert ran.status == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[:5] == [
        "Question: Where?", "Answer:   Rome", "Gold:     York",
        "t.jsonl · rollout 0 · 4 turns · calls 1 · hits 1 · EM 0 · F1 0.00", "chunk 1",
    ]  # fmt: skip
    at = lines.index("chunk 3")
    assert lines[at : at + 5] == [
        "chunk 3",
        "  read     In chunk 2 Ada left York.",
        "  recalled memory of chunk 1, score 0.67: Ada lives in old York 0",
        "  memory   Ada lives in Rome 2",
        "  earned   memory gain 0 · callback gain 0 · format 1 · advantage 0",
    ]
    assert "  calls    where Ada lives" in lines and "  reply    \\boxed{Rome}" in lines
    assert "Question: Bad [U+001B][31m" in lines and "Answer:   (not finished)" in lines
    assert "           ! invalid reply (nested): the memory stays" in lines
    assert all(len(one) <= 70 and one == one.rstrip() for one in lines)


def test_the_terminal_says_when_it_tells_a_sample_and_when_there_is_nothing(tmp_path):
    trace = write(tmp_path / "t.jsonl", [one for n in range(5) for one in story(f"Question {n}?", "York")])
    ran = remem("report", "--text", "--limit", "2", trace)
    assert ran.out.count("Question: ") == 2 and ran.err == "A sample: 2 of 5 trajectories; --limit shows more.\n"
    write(tmp_path / "run" / "metrics.jsonl", [{"step": 1, "loss/total": 1.0}])
    assert "expected trajectories, found none" in refused("report", "--text", tmp_path / "run")


@pytest.mark.parametrize("name", ["report.html.j2", "report.js", "report.css", "snippet.html.j2"])
def test_the_files_of_the_page_are_package_data(name):
    from importlib.resources import files

    assert (files("remem_jax") / "observe" / "pages" / name).is_file()
