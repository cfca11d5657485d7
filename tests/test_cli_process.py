"""`remem answer` through the shell, in processes of its own: no torch, no noise, signals and closed pipes.

The processes share a cache of compiled programs, so that only the first one compiles.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny_agent import DOCUMENT, QUESTION, answer_options, write_model, write_prompts

# Python runs sitecustomize.py first: in this environment torch cannot be imported.
NO_TORCH = "import sys\nsys.modules['torch'] = None\n"
COMMAND = Path(sys.executable).with_name("remem")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `model`, `prompts`, a short and a long document, and a `sitecustomize.py` that hides torch."""
    folder = tmp_path_factory.mktemp("process")
    write_model(folder / "model")
    write_prompts(folder / "prompts")
    (folder / "harbour.txt").write_text(DOCUMENT, encoding="utf-8")
    (folder / "long.txt").write_text(DOCUMENT * 2000, encoding="utf-8")
    (folder / "hidden").mkdir()
    (folder / "hidden" / "sitecustomize.py").write_text(NO_TORCH, encoding="utf-8")
    return folder


def start(folder, *arguments, stdin=None, stdout=subprocess.PIPE):
    """`remem answer` with the tiny model as a process, torch hidden from it and no platform named."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | {
        "PYTHONPATH": str(folder / "hidden"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    options = answer_options(folder / "model", folder / "prompts")
    command = [str(part) for part in (COMMAND, *options, "--question", QUESTION, *arguments)]
    return subprocess.Popen(
        command, env=environment, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def lines_of(trace):
    return trace.read_text(encoding="utf-8").splitlines(keepends=True) if trace.exists() else []


def wait_for_lines(process, trace, number):
    """Wait until a running process has written so many lines."""
    limit = time.monotonic() + 300
    while len(lines_of(trace)) < number:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_json_and_trace_come_from_a_shell_without_torch_and_nothing_else_is_printed(folder):
    trace = folder / "trace.jsonl"
    process = start(
        folder, "--documents", "-", "--json", "--trace", trace, stdin=(folder / "harbour.txt").open("rb")
    )  # fmt: skip
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert out.count("\n") == 1 and json.loads(out)["turns"] == len(lines_of(trace)) > 3
    assert [json.loads(line)["turn"] for line in lines_of(trace)] == list(range(json.loads(out)["turns"]))


def test_ctrl_c_stops_a_run_with_one_line_and_keeps_the_turns_that_are_done(folder):
    trace = folder / "interrupted.jsonl"
    process = start(folder, "--documents", folder / "long.txt", "--json", "--trace", trace)
    wait_for_lines(process, trace, 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "remem: stopped\n")
    turns = [json.loads(line) for line in lines_of(trace)]
    assert [turn["turn"] for turn in turns] == list(range(len(turns))) and len(turns) >= 3
    assert not any(turn["final"] for turn in turns)


def test_a_kill_leaves_whole_lines_in_the_trace(folder):
    trace = folder / "killed.jsonl"
    process = start(folder, "--documents", folder / "long.txt", "--json", "--trace", trace)
    wait_for_lines(process, trace, 3)
    process.kill()
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (-signal.SIGKILL, "")
    assert all(line.endswith("\n") for line in lines_of(trace))
    assert [json.loads(line)["turn"] for line in lines_of(trace)] == list(range(len(lines_of(trace))))


def test_a_reader_that_goes_away_is_no_error(folder):
    ours, theirs = os.pipe()
    os.close(ours)
    process = start(folder, "--documents", folder / "harbour.txt", "--dry-run", stdout=theirs)
    os.close(theirs)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, "")


def test_a_full_disk_is_one_line_that_names_the_trace(folder):
    process = start(folder, "--documents", folder / "harbour.txt", "--json", "--trace", "/dev/full")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err == (
        "remem: error: trace: /dev/full cannot be written: No space left on device; give another path\n"
    )  # fmt: skip
