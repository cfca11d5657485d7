"""Evaluations that are stopped anywhere end as undisturbed ones, and a question that fails is counted and listed."""

import json
import os
import shutil
import signal

import pytest

from remem_jax.errors import RememError
from remem_jax.eval import runner
from remem_jax.eval.harness import history_bytes
from remem_jax.eval.runner import run_evaluation
from tests.eval.made_evaluation import result_files, settings, untimed_report, write_evaluation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, questions, and `whole`: the results of an undisturbed run of three agents."""
    folder = write_evaluation(tmp_path_factory.mktemp("runner"))
    outcome = run_evaluation(settings(folder, out=str(folder / "whole")), quiet=True)
    assert (outcome.answered, outcome.total, outcome.stopped) == (30, 30, False)
    return folder


@pytest.fixture
def played(monkeypatch):
    """The waves that a run plays: file of the cell, ids."""
    waves, play = [], runner.play_wave

    def listen(agent, cell, wave, *rest):
        waves.append((str(cell.file), [cell.questions.ids[place] for place in wave]))
        return play(agent, cell, wave, *rest)

    monkeypatch.setattr(runner, "play_wave", listen)
    return waves


def test_every_question_of_every_cell_has_one_line_in_the_order_of_the_plan(folder):
    found = result_files(folder / "whole")
    agents = ("rememr1", "memagent", "retrieval")
    assert found.keys() == {f"results/relay/{n}/{agent}@tiny.jsonl" for n in (4, 8) for agent in agents}
    for name, lines in found.items():
        size = name.split("/")[2]
        assert [line["id"] for line in lines] == [f"relay-distant-{size}-evaluation-{i}" for i in range(5)]
    eight = found["results/relay/8/rememr1@tiny.jsonl"]
    assert all((line["turns"], line["document_tokens"], line["cut_tokens"]) == (5, 24, 0) for line in eight)
    # Four memory turns are four slots of two ids and two words, four bytes each.
    assert {line["history_bytes"] for line in eight} == {4 * (2 + 2) * 4} == {history_bytes(4, 2)}
    assert len({line["prediction"] for line in eight}) > 1  # the model draws: equal files are no accident
    retrieval = found["results/relay/8/retrieval@tiny.jsonl"]
    assert all((line["turns"], line["history_bytes"], line["hits"]) == (1, 0, 0) for line in retrieval)


def test_a_run_whose_files_were_cut_anywhere_plays_whole_waves_and_ends_as_an_undisturbed_one(folder, tmp_path, played):
    out = tmp_path / "out"
    shutil.copytree(folder / "whole", out)
    cut = out / "results" / "relay" / "8" / "rememr1@tiny.jsonl"
    lines = cut.read_text().splitlines(keepends=True)
    cut.write_text("".join(lines[:3]) + lines[3][:40])  # the second wave has one line, and half of another
    (out / "results" / "relay" / "4" / "memagent@tiny.jsonl").unlink()
    run_evaluation(settings(folder, out=str(out)), quiet=True)
    assert result_files(out) == result_files(folder / "whole")
    assert untimed_report(out) == untimed_report(folder / "whole")
    one, other = (f"relay-distant-{n}-evaluation-" for n in (8, 4))
    assert played == [
        ("results/relay/8/rememr1@tiny.jsonl", [f"{one}2", f"{one}3"]),
        ("results/relay/8/rememr1@tiny.jsonl", [f"{one}4"]),
        ("results/relay/4/memagent@tiny.jsonl", [f"{other}0", f"{other}1"]),
        ("results/relay/4/memagent@tiny.jsonl", [f"{other}2", f"{other}3"]),
        ("results/relay/4/memagent@tiny.jsonl", [f"{other}4"]),
    ]
    assert cut.read_text().startswith("".join(lines[:3]))  # what was there stays as it was, timings included


def test_a_finished_run_reads_no_weights_and_writes_its_report_again(folder, tmp_path, played, monkeypatch):
    out = tmp_path / "out"
    shutil.copytree(folder / "whole", out)
    (out / "results.md").unlink()
    monkeypatch.setattr(runner, "load_model", None)
    outcome = run_evaluation(settings(folder, out=str(out), metric="f1"), quiet=True)
    assert played == [] and outcome.answered == 30
    assert outcome.report.startswith("F1, percent") and (out / "results.md").is_file()


def test_a_further_size_and_agent_are_added_to_a_folder_and_other_settings_are_refused(folder, tmp_path, played):
    out = tmp_path / "out"
    shutil.copytree(folder / "whole", out)
    agents = {"rememr1": {}, "full_context": {}}
    path = str(folder / "data" / "distant_{documents}.jsonl")
    only_eight = {"relay": {"path": path, "documents": [8]}}
    run_evaluation(settings(folder, out=str(out), agents=agents, datasets=only_eight), quiet=True)
    assert {name for name, _ in played} == {"results/relay/8/full_context@tiny.jsonl"}
    for changes, named in (
        ({"seed": 1}, "seed"),
        ({"agents": {"rememr1": {"memory_tokens": 3}}}, "agents.rememr1@tiny.memory_tokens"),
        ({"questions_in_flight": 3}, "questions_in_flight"),
    ):
        with pytest.raises(RememError, match=f"holds results made with other {named}: give another folder"):
            run_evaluation(settings(folder, out=str(out), **changes), quiet=True)


def test_a_question_that_cannot_be_asked_is_wrong_listed_and_does_not_disturb_the_others(folder, tmp_path):
    lines = [json.loads(line) for line in (folder / "data" / "distant_8.jsonl").read_text().splitlines()]
    lines[3]["question"] += " and of ANA"
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = {"relay": {"path": str(tmp_path / "data.jsonl")}}
    config = settings(folder, out=str(tmp_path / "out"), agents={"rememr1": {}}, datasets=own)
    outcome = run_evaluation(config, quiet=True)
    found = result_files(tmp_path / "out")["results/relay/8/rememr1@tiny.jsonl"]
    assert [line["error"] is None for line in found] == [True, True, True, False, True]
    failed = found[3]
    assert failed["error"].startswith("question relay-distant-8-evaluation-3: the question has 4 tokens, expected at")
    assert (failed["exact_match"], failed["turns"], failed["prediction"]) == (0.0, 0, None)
    undisturbed = result_files(folder / "whole")["results/relay/8/rememr1@tiny.jsonl"]
    assert [line["prediction"] for line in found[:3]] == [line["prediction"] for line in undisturbed[:3]]
    right = sum(line["exact_match"] for line in found)
    told = f"rememr1 on relay, 8 documents: 5 questions, {right:.0f} right by exact match, 1 failed -> {20 * right:.2f}"
    page = (tmp_path / "out" / "results.md").read_text()
    for text in (outcome.report, page):
        assert told in text and f"  {failed['id']}: {failed['error']}" in text and "1 question failed" in text
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert report["failures"][0]["id"] == failed["id"] and report["cells"][0]["failed"] == 1
    assert report["cells"][0]["exact_match"] == pytest.approx(right / 5)


def test_a_stop_signal_keeps_what_is_answered_and_the_next_run_goes_on(folder, tmp_path, monkeypatch):
    before, play, count = signal.getsignal(signal.SIGTERM), runner.play_wave, []

    def stop_in_the_third(agent, cell, wave, *rest):
        count.append(wave)
        if len(count) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return play(agent, cell, wave, *rest)

    monkeypatch.setattr(runner, "play_wave", stop_in_the_third)
    config = settings(folder, out=str(tmp_path / "out"))
    outcome = run_evaluation(config, quiet=True)
    assert (outcome.stopped, outcome.answered, outcome.total, outcome.report) == (True, 4, 30, "")
    assert signal.getsignal(signal.SIGTERM) == before and not (tmp_path / "out" / "results.md").exists()
    monkeypatch.setattr(runner, "play_wave", play)
    assert not run_evaluation(config, quiet=True).stopped
    assert result_files(tmp_path / "out") == result_files(folder / "whole")
