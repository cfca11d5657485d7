"""`remem eval` in processes of its own: killed or asked to stop, its files become those of an undisturbed run."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.eval.made_evaluation import result_files, untimed_report, values, write_evaluation

pytestmark = pytest.mark.slow
COMMAND = Path(sys.executable).with_name("remem")
SIZES = (4, 8, 16, 32)
AGENTS = ("rememr1", "memagent", "rule_callback", "full_context", "retrieval")
LINES = len(SIZES) * len(AGENTS) * 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, questions of four sizes, `eval.yaml` for all five agents, and `whole`, an undisturbed run."""
    folder = write_evaluation(tmp_path_factory.mktemp("eval_process"), SIZES, 6)
    given = values(folder, questions=6, agents={name: {} for name in AGENTS}, sampling={"temperature": 0.0})
    given["datasets"]["relay"]["documents"] = list(SIZES)
    (folder / "eval.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    whole = start(folder, "whole")
    out, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, out + err
    return folder


def start(folder: Path, out: str) -> subprocess.Popen:
    command = [str(COMMAND), "eval", str(folder / "eval.yaml"), f"out={folder / out}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def count(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.rglob("results/**/*.jsonl"))


def wait_for_lines(process: subprocess.Popen, out: Path, number: int) -> None:
    limit = time.monotonic() + 200
    while count(out) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_run_killed_twice_ends_with_the_files_of_an_undisturbed_one(folder):
    out = folder / "killed"
    for lines in (LINES // 4, LINES // 2):
        process = start(folder, "killed")
        wait_for_lines(process, out, lines)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL and lines <= count(out) < LINES
        assert not (out / "results.json").exists()
    with sorted((out / "results").rglob("*.jsonl"))[-1].open("a") as file:
        file.write('{"id": "relay-')  # as a kill within a write leaves it
    process = start(folder, "killed")
    told, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"{LINES} questions, " in err and "answered before" in err
    found, whole = result_files(out), result_files(folder / "whole")
    assert found == whole and sum(map(len, whole.values())) == LINES
    assert untimed_report(out) == untimed_report(folder / "whole")
    assert (out / "accuracy.png").read_bytes() == (folder / "whole" / "accuracy.png").read_bytes()
    for agent in AGENTS:
        assert f"\n{agent}" in told
    # The agents that call are shown what they call for, the others are not.
    recalled = {agent: sum(line["hits"] for name in whole if f"/{agent}@" in name for line in whole[name])
                for agent in AGENTS}  # fmt: skip
    assert recalled["rememr1"] > 0 and recalled["rule_callback"] > 0
    assert recalled["memagent"] == recalled["full_context"] == recalled["retrieval"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_says_how_to_go_on(folder, number):
    out = folder / f"stopped{number}"
    process = start(folder, out.name)
    wait_for_lines(process, out, 6)
    process.send_signal(number)
    told, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert told == (
        f"stopped with {count(out)} of {LINES} questions answered, kept in {out}; "
        f"go on with: remem eval {folder / 'eval.yaml'} out={out}\n"
    )
    assert "Traceback" not in err
    assert all(json.loads(line) for path in out.rglob("*.jsonl") for line in path.read_text().splitlines())


def test_two_runs_in_one_folder_are_refused(folder):
    out = folder / "shared"
    first = start(folder, "shared")
    wait_for_lines(first, out, 1)
    second = start(folder, "shared")
    _, err = second.communicate(timeout=200)
    first.kill()
    first.communicate()
    assert second.returncode == 2 and f"another remem eval works in {out}" in err
