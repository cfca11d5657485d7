"""`remem train` as a process: killed at any moment, or asked to stop, it goes on as if nothing had happened.

The processes share what they compile; each still takes long to start, so one run serves several kills.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from remem_jax.rl.setup import plain
from remem_jax.rl.trainer import train
from tests.relay_run import assert_same_run, lines, settings, write_start

COMMAND = Path(sys.executable).with_name("remem")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A starting model, questions, settings of a run of eight steps, and that run undisturbed: `whole`."""
    folder = write_start(tmp_path_factory.mktemp("process"))
    config = settings(folder, "whole", steps=8, checkpoint__every=1)
    (folder / "train.yaml").write_text(yaml.safe_dump(plain(dataclasses.asdict(config))), encoding="utf-8")
    train(config, quiet=True)
    return folder


def start(folder: Path, run: str, *overrides: str) -> subprocess.Popen:
    command = [COMMAND, "train", folder / "train.yaml", f"run_dir={folder / run}", *overrides]
    return subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def steps_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_until(process: subprocess.Popen, holds) -> None:
    limit = time.monotonic() + 500
    while not holds():
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.002)


def unfinished(run: Path) -> list[str]:
    folder = run / "checkpoints"
    return [p.name for p in folder.iterdir() if "orbax-checkpoint-tmp" in p.name] if folder.is_dir() else []


@pytest.mark.slow  # three processes, each of which starts from nothing
def test_a_run_killed_while_it_saves_and_then_told_to_stop_is_the_undisturbed_run(folder):
    run = folder / "killed"
    process = start(folder, "killed")
    wait_until(process, lambda: steps_of(run) >= 2 and unfinished(run))  # a save is being written
    process.kill()
    process.communicate()
    saved = [int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdecimal()]
    assert steps_of(run) - 2 <= max(saved) <= steps_of(run)  # the save in flight, at most, and its step are lost

    goes_on_at, restarted = max(saved), time.time()
    process = start(folder, "killed")
    metrics = run / "metrics.jsonl"  # may still hold the step that was lost
    wait_until(process, lambda: metrics.stat().st_mtime > restarted and steps_of(run) == goes_on_at + 1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    assert f"resumed after step {goes_on_at} from" in err
    stopped = steps_of(run)
    again = f"remem train {folder / 'train.yaml'} run_dir={run}"
    assert out == f"stopped after step {stopped} of 8, saved in {run}; go on with: {again}\n"
    assert goes_on_at < stopped < 8 and (run / "checkpoints" / str(stopped)).is_dir() and unfinished(run) == []

    done = subprocess.run(again.split(), env=with_command_in_path(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"done: 8 steps in {run}, best validation exact match")
    assert_same_run(run, folder / "whole")
    assert [line["step"] for line in lines(run / "metrics.jsonl")] == list(range(1, 9))


def with_command_in_path() -> dict[str, str]:
    return os.environ | {"PATH": f"{COMMAND.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
