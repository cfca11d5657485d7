"""The driver of the relay experiment: its stages, what it skips, what it tells, and the report of a folder."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remem_jax.errors import RememError
from remem_jax.eval.harness import Result, write_results
from remem_jax.eval.tables import Cell, measured

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
relay, relay_stages, relay_report, relay_layout = map(
    importlib.import_module, ("relay", "relay_stages", "relay_report", "relay_layout")
)
Job, Stage, Failed = relay_stages.Job, relay_stages.Stage, relay.Failed


def results(*scores: float) -> list[Result]:
    """A result a score, of questions q0, q1 ..."""
    return [
        Result(
            id=f"q{i}", prediction="x", answers=("x",), exact_match=score, f1=score, sub_exact_match=score, turns=5,
            calls=2, hits=1, recalled_distance=2.0, reply_tokens=30, invalid_turns=0, truncated=0, seconds=0.1,
            lookup_seconds=0.0,
        )
        for i, score in enumerate(scores)
    ]  # fmt: skip


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_stages_are_the_story_in_order_and_each_reads_what_an_earlier_one_made(tmp_path):
    every = relay_stages.stages(tmp_path, relay_stages.BUDGETS["demo"])
    assert [stage.name for stage in every] == [
        "questions and starting weights", "scripted bounds", "reading practice", "warm start",
        "evaluation of the warm start", "reinforcement learning", "evaluation", "tables and pictures", "an answer",
    ]  # fmt: skip
    assert [len(stage.jobs) for stage in every] == [2, 1, 1, 2, 2, 2, 2, 1, 1]
    made = {job.product for stage in every for job in stage.jobs if job.product}
    models = [word for stage in every for job in stage.jobs for word in job.command if word.startswith("model=")]
    starts = [Path(word.removeprefix("model=")) for word in models]
    assert starts[0] == tmp_path / "seed0" / "data-callback" / "start"
    assert starts[1:3] == [tmp_path / "seed0" / "practice" / "model"] * 2
    assert starts[3:] == [tmp_path / "seed0" / f"{name}-warm" / "model" for name in ("callback", "memagent")]
    assert set(starts[1:]) <= made


def test_both_agents_train_by_their_own_file_from_their_own_warm_start(tmp_path):
    grpo = relay_stages.stages(tmp_path, relay_stages.BUDGETS["demo"])[5]
    callback, memagent = (job.command for job in grpo.jobs)
    assert callback[:4] == (*relay_stages.REMEM, "train")
    assert [Path(command[4]).name for command in (callback, memagent)] == ["relay.yaml", "relay_memagent.yaml"]
    assert [word.replace("callback", "memagent") for word in callback[5:]] == list(memagent[5:])


def test_three_seeds_make_three_jobs_an_agent_with_names_and_seeds_of_their_own(tmp_path):
    every = relay_stages.stages(tmp_path, relay_stages.BUDGETS["full"])
    assert [len(stage.jobs) for stage in every] == [6, 1, 3, 6, 6, 6, 6, 1, 1]
    names = ["callback 0", "memagent 0", "callback 1", "memagent 1", "callback 2", "memagent 2"]
    assert [job.name for job in every[5].jobs] == names
    assert [word for job in every[5].jobs for word in job.command if word.startswith("seed=")] == [
        "seed=0", "seed=0", "seed=1", "seed=1", "seed=2", "seed=2",
    ]  # fmt: skip
    products = [job.product for stage in every for job in stage.jobs if job.product]
    logs = [job.log for stage in every for job in stage.jobs]
    assert len(set(products)) == len(products) and len(set(logs)) == len(logs)


def test_what_is_done_is_not_expected_again(tmp_path):
    jobs = tuple(Job(name, (), tmp_path / f"{name}.log", tmp_path / name) for name in "abc")
    stage = Stage("training", jobs, 100.0)
    assert stage.expected(2) == 200.0  # two at a time, then the third
    (tmp_path / "a").touch()
    assert stage.expected(2) == 100.0 and stage.expected(1) == 200.0


def test_time_left_is_the_recorded_one_times_how_fast_this_machine_was_so_far():
    assert relay_stages.seconds_left([60.0, 90.0, 10.0], 0.0) == 160.0
    assert relay_stages.seconds_left([60.0, 90.0], 20.0) == 130.0
    assert relay_stages.seconds_left([60.0, 90.0], 100.0) == 90.0  # late already: the rest alone
    # (20 + 40) measured where (10 + 20) were recorded: half as fast
    assert relay_stages.seconds_left([60.0, 90.0], 20.0, measured=[(10.0, 20.0), (20.0, 40.0)]) == 100.0 + 180.0


def test_a_stage_that_knows_its_share_tells_its_own_time():
    assert relay_stages.seconds_left([60.0, 90.0], 30.0, 0.25) == 90.0 + 90.0
    assert relay_stages.seconds_left([60.0], 30.0, 0.01) == 30.0  # a share this small says nothing yet


def test_what_an_earlier_call_had_done_is_not_counted_as_speed():
    # three quarters were done before; half of the rest took 10 s
    assert relay_stages.seconds_left([60.0, 90.0], 10.0, 0.875, 0.75) == 10.0 + 90.0
    assert relay_stages.seconds_left([60.0, 90.0], 10.0, 0.76, 0.75) == 60.0 / 4 - 10.0 + 90.0


def test_progress_is_read_from_the_last_line_of_a_log(tmp_path):
    job = Job("callback", (), tmp_path / "log")
    assert relay_stages.progress(job) == (None, "")
    job.log.write_text("step 1 of 60: the first step compiles\n")
    assert relay_stages.progress(job) == (1 / 60, "step 1/60")
    with job.log.open("a") as log:
        log.write("step 22 of 60 · EM 0.50 · call rate 0.31 · reward memory 0.3\nvalidation after step 22: f1 0.6\n")
        log.write("step 23 of 60 · EM 0.64 · call rate 0.33\nsaving\n")
    assert relay_stages.progress(job) == (23 / 60, "step 23/60 EM 0.64")
    job.log.write_text("step 400 of 3000 · 41,000 tokens/s · loss total 1.25 nll 1.25\n")
    assert relay_stages.progress(job) == (400 / 3000, "step 400/3000 loss total 1.25")
    job.log.write_text("cell 4 of 9: reverse 8, EM 0.31\n")
    assert relay_stages.progress(job) == (4 / 9, "cell 4/9 EM 0.31")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1:00"), (380.2, "6:20")])
def test_seconds_are_spelt_as_a_clock_shows_them(seconds, text):
    assert relay_stages.spell(seconds) == text


def test_a_stage_runs_what_is_not_done_and_nothing_else(tmp_path):
    code = "import pathlib, sys; print('made'); pathlib.Path({!r}).write_text('new')"
    jobs = tuple(
        Job(name, python(code.format(str(tmp_path / name))), tmp_path / "logs" / name, tmp_path / name)
        for name in ("old", "new")
    )
    (tmp_path / "old").write_text("old")
    told = []
    lock = relay.lock_folder(tmp_path)
    relay.run_stage(Stage("s", jobs, 1.0), 2, lock, tmp_path / "cache", lambda: told.append(1))
    os.close(lock)
    assert [(tmp_path / name).read_text() for name in ("old", "new")] == ["old", "new"]
    assert not jobs[0].log.exists() and jobs[1].log.read_text().splitlines()[1:] == ["made"]
    assert told


def test_a_failed_job_is_one_line_with_its_last_words_and_its_log_and_stops_the_others(tmp_path):
    (tmp_path / "lock").mkdir()
    lock = relay.lock_folder(tmp_path / "lock")
    bad = Job("callback", python("print('some'); raise SystemExit('remem: error: no room')"), tmp_path / "bad.log")
    slow = Job("memagent", python("import time; time.sleep(60)"), tmp_path / "slow.log")
    began = time.monotonic()
    with pytest.raises(Failed) as told:
        relay.run_stage(Stage("s", (slow, bad), 1.0), 2, lock, tmp_path / "cache", lambda: None)
    os.close(lock)
    assert str(told.value) == f"callback: remem: error: no room (status 1; log: {tmp_path / 'bad.log'})"
    assert time.monotonic() - began < 30


def test_a_job_that_ends_well_without_its_product_has_failed(tmp_path):
    job = Job("callback", python(""), tmp_path / "log", tmp_path / "model")
    job.log.write_text("stopped after step 3 of 60\n")
    with pytest.raises(Failed, match=r"callback: stopped after step 3 of 60 \(status 0; log: "):
        relay.check(job, 0)
    job.product.touch()
    relay.check(job, 0)


def test_a_command_is_shown_as_one_would_type_it():
    assert relay.spelt((*relay_stages.REMEM, "train", "a b.yaml", "steps=3")) == "remem train 'a b.yaml' steps=3"
    assert relay.spelt(("python", "x.py")) == "python x.py"


def test_a_folder_takes_the_same_settings_again_and_refuses_others(tmp_path):
    relay.write_settings(tmp_path, {"questions": 200, "documents": (8, 16)})
    relay.write_settings(tmp_path, {"questions": 200, "documents": (8, 16)})
    with pytest.raises(Failed, match=r"holds runs of other settings \(questions 200, now 500\): give another --out"):
        relay.write_settings(tmp_path, {"questions": 500, "documents": (8, 16)})


def test_a_folder_stays_locked_while_a_job_of_a_killed_driver_lives(tmp_path):
    code = (
        f"import sys, time; sys.path.insert(0, {str(ROOT / 'examples')!r}); import relay, pathlib\n"
        f"out = pathlib.Path({str(tmp_path)!r}); lock = relay.lock_folder(out)\n"
        "job = relay.Job('a', (sys.executable, '-c', 'import time; time.sleep(120)'), out / 'log', out / 'product')\n"
        "print(relay.start(job, lock, out / 'cache', one_thread=True).pid, flush=True); time.sleep(120)"
    )
    driver = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    child = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    with pytest.raises(Failed, match="is in use by a process of another run"):
        relay.lock_folder(tmp_path)
    os.kill(child, signal.SIGKILL)
    for _ in range(100):  # the kernel closes the dead job's files in its own time
        try:
            os.close(relay.lock_folder(tmp_path))
            return
        except Failed:
            time.sleep(0.1)
    pytest.fail("the lock of a dead job stayed")


def test_progress_tells_the_stage_the_time_left_and_every_job(tmp_path, capsys):
    jobs = tuple(Job(name, (), tmp_path / f"{name}.log", tmp_path / name) for name in ("callback", "memagent"))
    later = Job("report", (), tmp_path / "report.log")
    told = relay.Progress([Stage("training", jobs, 100.0), Stage("report", (later,), 20.0)], tmp_path, 2)
    jobs[0].log.write_text("step 30 of 60 · EM 0.64\n")
    told.tell()
    told.tell()  # at once again: nothing
    # a quarter of both jobs after no time at all, so that only the report is left
    line = "stage 1 of 2, training: about 20 s left in all · callback step 30/60 EM 0.64\n"
    assert capsys.readouterr().out == line
    told.end()
    assert capsys.readouterr().out == "stage 1 of 2, training: done in 0 s\n"
    assert json.loads((tmp_path / "seconds.json").read_text()).keys() == {"training"}


def test_a_stage_that_ends_by_its_loss_tells_no_share_and_one_resumed_knows_what_it_had_done(tmp_path):
    job = Job("practice", (), tmp_path / "log", tmp_path / "model")
    job.log.write_text("step 400 of 1000 · loss total 1.2\n")
    fixed, by_loss = (Stage("s", (job,), 10.0, open_ended=open_ended) for open_ended in (False, True))
    assert relay.Progress([fixed], tmp_path, 1).before == 0.4
    assert relay.Progress([by_loss], tmp_path, 1).far() == (None, ["practice step 400/1000 loss total 1.2"])


SETTINGS = {"seeds": 1, "questions": 4, "documents": [8, 16], "agents": ["callback", "memagent"]}


def write_folder(out: Path) -> None:
    """A finished folder of two agents, with scripted bounds, whose numbers are known."""
    (out / "relay.json").write_text(json.dumps(SETTINGS))
    right = {"callback-warm": 1, "callback": 3, "memagent-warm": 1, "memagent": 2}
    for name, count in right.items():
        folder = relay_layout.cell_folder(out, 0, name)
        folder.mkdir(parents=True)
        for order, documents in relay_layout.cells(SETTINGS["documents"]):
            scores = [1.0] * count + [0.0] * (4 - count)
            write_results(relay_layout.cell_file(folder, order, documents), results(*scores))
    bounds = [
        {"agent": agent, "order": order, "documents": documents, "accuracy": accuracy, "n": 4}
        for agent, accuracy in (
            ("callback oracle", 1.0),
            ("MemAgent, oldest facts first", 0.25),
            ("MemAgent, newest facts first", 0.0),
        )
        for order, documents in relay_layout.cells(SETTINGS["documents"])
    ]
    relay_layout.scripted_file(out).write_text(json.dumps(bounds))
    for name in SETTINGS["agents"]:
        folder = relay_layout.run_folder(out, 0, name)
        (folder / "trajectories").mkdir(parents=True)
        (folder / "model").mkdir()
        gain = 0.04 if name == "callback" else 0.02
        lines = [
            {"step": step, "reward/outcome": gain * step, "health/call_rate": None, "reward/format": 1.0}
            for step in range(1, 17)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "validation.jsonl").write_text('{"step": 16, "exact_match": 0.5}\n')


def test_the_report_compares_agents_before_and_after_with_the_scripted_bounds(tmp_path):
    write_folder(tmp_path)
    text = relay_report.report(tmp_path)
    assert re.search(r"^callback +\.75 ±\.\d\d", text, re.MULTILINE)
    assert re.search(r"^MemAgent, warm start +\.25 ±\.\d\d", text, re.MULTILINE)
    assert re.search(r"^callback oracle \(scripted\) +1\.00 ±\.00", text, re.MULTILINE)
    assert re.search(r"^callback - MemAgent +\+\.25 ±\.\d\d", text, re.MULTILINE)
    assert re.search(r"^callback - callback, warm start +\+\.50", text, re.MULTILINE)
    # two steps a column: .04 * 1.5 to .04 * 15.5
    assert "steps     1-2  3-4  5-6  7-8  9-10  11-12  13-14  15-16" in text
    assert "callback  .06  .14  .22  .30   .38    .46    .54    .62" in text
    assert "MemAgent  .03  .07  .11  .15   .19    .23    .27    .31" in text


def test_the_report_leaves_a_page_numbers_and_pictures(tmp_path):
    write_folder(tmp_path)
    relay_report.report(tmp_path)
    for name in ("curve.png", "accuracy.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "results.md").read_text()
    assert "![Learning curve](curve.png)" in page and "| callback oracle (scripted) |" in page
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["models"] == ["seed0/callback/model", "seed0/memagent/model"]
    (cell,) = [c for c in told["cells"] if (c["agent"], c["order"], c["documents"]) == ("callback", "distant", 16)]
    assert cell["exact_match"] == 0.75 and cell["n"] == 4 and not cell["scripted"]
    assert told["training_exact_match"]["callback"][:2] == pytest.approx([0.04, 0.08])


def test_the_bars_are_those_of_the_method_and_need_all_their_cells():
    cells = [
        Cell("callback", "distant", 8, accuracy=0.75, n=4),
        Cell("callback, warm start", "distant", 8, accuracy=0.5, n=4),
        Cell("callback", "distant", 16, accuracy=0.39, n=100),
        Cell("callback", "forward", 8, accuracy=0.7, n=10),
        Cell("MemAgent", "forward", 8, accuracy=0.9, n=10),
    ]
    told = {bar["claim"]: (round(bar["measured"], 2), bar["met"]) for bar in relay_report.bars(measured(cells))}
    assert told == {
        "GRPO lifts callback, distant 8, by": (0.25, True),
        "callback, distant 16": (0.39, False),
        "callback - MemAgent, forward 8": (-0.2, False),
    }


def test_the_best_scripted_memagent_is_the_better_one_of_each_column():
    def bound(agent: str, documents: int, accuracy: float) -> dict:
        return {"agent": agent, "order": "distant", "documents": documents, "accuracy": accuracy, "n": 4}

    oldest, newest = relay_report.MEMAGENT_SCRIPTS
    best = relay_report.best_scripted(
        [bound("callback oracle", 8, 1.0), bound(oldest, 8, 0.8), bound(newest, 8, 0.2),
         bound(oldest, 16, 0.1), bound(newest, 16, 0.2)]
    )  # fmt: skip
    assert [(one["documents"], one["accuracy"]) for one in best] == [(8, 0.8), (16, 0.2)]


def test_behaviour_is_told_of_the_first_and_the_last_steps():
    lines = [{"step": step, "health/call_rate": 0.1 if step <= 10 else 0.7} for step in range(1, 21)]
    first, last = relay_report.behaviour_text({"callback": lines}).splitlines()[1:]
    assert first.split()[:5] == ["callback,", "first", "10", "steps", "–"] and first.split()[5] == ".10"
    assert last.split()[5] == ".70"


def test_a_curve_of_few_steps_has_a_column_a_step():
    lines = [{"step": 1, "reward/outcome": 0.25}, {"step": 2, "reward/outcome": None}]
    assert relay_report.curve_text({"callback": lines}) == "steps       1\ncallback  .25\n"


def test_the_turns_of_a_trace_show_what_was_read_kept_and_called_back():
    turn = dict(turn=0, final=False, chunk=None, recalled=None, memory=None, callback=None, valid=True, reply="r")
    lines = [
        turn | dict(chunk="home BORIS OSLO\nhome EVA ROME", memory="home BORIS OSLO"),
        turn | dict(turn=1, chunk="partner ANA BORIS", memory="partner ANA BORIS", callback="BORIS"),
        turn | dict(turn=2, chunk="home IDA LIMA", recalled="home BORIS OSLO", valid=False, reply="home </memory>"),
        turn | dict(turn=2, final=True, memory="partner ANA BORIS", reply="\\box{ OSLO }"),
    ]
    assert relay.turns_text(lines).splitlines() == [
        "turn 1  reads              home BORIS OSLO home EVA ROME",
        "        remembers          home BORIS OSLO",
        "turn 2  reads              partner ANA BORIS",
        "        remembers          partner ANA BORIS",
        "        calls for          BORIS",
        "turn 3  reads              home IDA LIMA",
        "        recalls            home BORIS OSLO",
        "        breaks the format  home </memory>",
        "answer  writes             \\box{ OSLO }",
    ]


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(RememError, match=r"expected relay\.json of a relay run in it, found none"):
        relay_report.report(tmp_path)
    (tmp_path / "relay.json").write_text(json.dumps(SETTINGS))
    with pytest.raises(RememError, match="expected a trained and evaluated agent, found none"):
        relay_report.report(tmp_path)


@pytest.mark.slow
def test_the_whole_story_runs_in_small_and_a_second_call_trains_nothing_again(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "relay.py"), "--budget", "smoke", "--agents", "callback"]
    first, second = (
        subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=1200)
        for _ in range(2)
    )
    assert first.returncode == 0, first.stdout + first.stderr
    out = tmp_path / "out"
    assert all((out / name).is_file() for name in ("results.md", "results.json", "curve.png", "accuracy.png"))
    told = json.loads((out / "results.json").read_text())
    assert [(cell["order"], cell["n"]) for cell in told["cells"] if cell["agent"] == "callback"] == [
        ("forward", 1), ("reverse", 1), ("distant", 1),
    ]  # fmt: skip
    assert [len(values) for values in told["training_exact_match"].values()] == [2]
    assert (out / told["models"][0] / "model.safetensors").is_file() and told["trajectories"]
    assert "callback oracle (scripted)" in first.stdout
    assert re.search(r"^turn 1  reads +\w+ \w+ \w+ \w+ \w+ \w+$", first.stdout, re.MULTILINE)
    assert second.returncode == 0, second.stdout + second.stderr
    assert len(re.findall(r"^stage \d of 9, .*: done before$", second.stdout, re.MULTILINE)) == 7
    assert (
        first.stdout.partition("Exact match by")[2].partition("stage 9")[0]
        == second.stdout.partition("Exact match by")[2].partition("stage 9")[0]
    )
