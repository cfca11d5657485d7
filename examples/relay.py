"""Trains a memory agent with callbacks and its twin without on the relay task, and compares them: the paper's claim.

Every stage is a command that you could type; `OUT/logs` has their output. Stopped or killed, it goes on where it was.

    python examples/relay.py --out runs/demo                   one seed, within 12 minutes on two cores
    python examples/relay.py --out runs/relay --budget full    three seeds, 500 questions a cell
"""

import argparse
import dataclasses
import fcntl
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from relay_layout import AGENTS, SETTINGS, questions, run_folder
from relay_stages import (
    ANSWER,
    BUDGETS,
    QUESTION_FILE,
    REMEM,
    REPORT,
    TRACE_FILE,
    Budget,
    Job,
    Stage,
    progress,
    seconds_left,
    spell,
    stages,
)

from remem_jax.data.records import Record

SECONDS_FILE = "seconds.json"
TERMINAL_SECONDS, PLAIN_SECONDS = 1.0, 15.0  # between two lines of progress


class Failed(Exception):
    """A stage did not end well; the message is one line."""


class Stopped(Exception):
    """Asked to stop by a signal."""


def run_stage(stage: Stage, workers: int, lock: int, cache: Path, tell: Callable[[], None]) -> None:
    """Run the jobs that are not done, `workers` at a time; `tell` is called while they run.

    A stop or a failure asks the others to stop, which save what they have, and waits for them.
    """
    waiting = [job for job in stage.jobs if not job.done]
    side_by_side = len(waiting) > 1 and workers > 1
    running: dict[Job, subprocess.Popen] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[job] = start(job, lock, cache, one_thread=side_by_side)
            time.sleep(0.2)
            for job, process in [*running.items()]:
                if process.poll() is not None:
                    del running[job]
                    check(job, process.returncode)
            tell()
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def start(job: Job, lock: int, cache: Path, *, one_thread: bool) -> subprocess.Popen:
    """Start a job, which keeps what it compiles in `cache`.

    It holds the lock of the folder too, so that none starts over it when this driver is killed.
    """
    environment = {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONUNBUFFERED": "1"}
    # Half of the time would go into compiling what another command has compiled before.
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache.resolve()))
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    if one_thread:  # two jobs on two cores hinder each other when each spreads over both
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        if job.product is None:
            log.truncate(0)  # what it prints is shown: only what it prints now
        else:
            log.write(f"$ {spelt(job.command)}\n".encode())
            log.flush()
        return subprocess.Popen(
            job.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C reaches the driver side_by_side, which asks its jobs to stop
        )


def spelt(command: Sequence[str]) -> str:
    """A command as one would type it."""
    return shlex.join(["remem", *command[len(REMEM) :]] if tuple(command[: len(REMEM)]) == REMEM else command)


def check(job: Job, status: int) -> None:
    """Raises Failed where a job ended badly or without its product."""
    if status == 0 and (job.product is None or job.done):
        return
    lines = [line for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it wrote nothing"
    raise Failed(f"{job.name}: {last} (status {status}; log: {job.log})")


class Progress:
    """The line that tells where the experiment is and how long it may still take."""

    def __init__(self, every: Sequence[Stage], out: Path, workers: int):
        self.every, self.workers, self.file = every, workers, out / SECONDS_FILE
        self.took: dict[str, float] = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.measured: list[tuple[float, float]] = []
        self.terminal = sys.stdout.isatty()
        self.seconds = TERMINAL_SECONDS if self.terminal else PLAIN_SECONDS
        self.begin(0)

    def begin(self, at: int) -> None:
        """Stage `at` starts; its expected seconds are those of now, before its jobs make their products."""
        self.at, self.began, self.told = at, time.monotonic(), -math.inf
        self.expected = [stage.expected(self.workers) for stage in self.every[at:]]
        self.before = self.far()[0] or 0.0

    def end(self) -> None:
        """The stage at work is done: remember what it took."""
        stage, seconds = self.every[self.at], time.monotonic() - self.began
        self.measured.append((self.expected[0] * (1 - self.before), seconds))
        self.took[stage.name] = round(self.took.get(stage.name, 0.0) + seconds, 1)
        self.file.write_text(json.dumps(self.took, indent=1) + "\n")
        self.line(f"{self.head()} done in {spell(seconds)}", stays=True)

    def head(self) -> str:
        """Which stage it is."""
        return f"stage {self.at + 1} of {len(self.every)}, {self.every[self.at].name}:"

    def far(self) -> tuple[float | None, list[str]]:
        """How far the stage at work is, None where its jobs do not say, and each job's own words."""
        stage, fractions, found = self.every[self.at], [], []
        for job in stage.jobs:
            fraction, text = (1.0, "done") if job.done else progress(job)
            fractions += [] if fraction is None else [fraction]
            found += [f"{job.name} {text}"] if text else []
        known = bool(fractions) and not stage.open_ended
        return sum(fractions) / len(stage.jobs) if known else None, found

    def tell(self) -> None:
        """Where the stage at work is; call it often."""
        now = time.monotonic()
        if now - self.told < self.seconds:
            return
        self.told = now
        fraction, found = self.far()
        left = seconds_left(self.expected, now - self.began, fraction, self.before, self.measured)
        self.line(" · ".join([f"{self.head()} about {spell(left)} left in all", *found]))

    def line(self, text: str, stays: bool = False) -> None:
        """On a terminal in place of the line before, unless that one stays."""
        if not self.terminal:
            print(text, flush=True)
            return
        width = shutil.get_terminal_size().columns
        print(f"\r\x1b[K{text if stays else text[: width - 1]}", end="\n" if stays else "", flush=True)


def write_settings(out: Path, settings: dict) -> None:
    """Settings of the experiment into its folder; another experiment's folder is an error."""
    path, settings = out / SETTINGS, json.loads(json.dumps(settings))  # lists for tuples, as in the file
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))
        changed = [f"{name} {old.get(name)}, now {value}" for name, value in settings.items() if old.get(name) != value]
        if changed:
            raise Failed(f"{out} holds runs of other settings ({'; '.join(changed)}): give another --out or remove it")
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def lock_folder(out: Path) -> int:
    """A lock on the folder that this process and its jobs hold; returns its file descriptor."""
    out.mkdir(parents=True, exist_ok=True)
    file = os.open(out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Failed(
            f"{out} is in use by a process of another run, perhaps one that outlived its driver: wait for it, or end it"
        ) from None
    return file


def turns_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """The turns of a trace of `remem answer`, each with what the agent was shown, read and wrote."""
    told = []
    for line in lines:
        parts = {
            "reads": line["chunk"],
            "recalls": line["recalled"],
            "remembers": None if line["final"] else line["memory"],
            "calls for": line["callback"],
            "breaks the format": None if line["valid"] or line["final"] else line["reply"],
            "writes": line["reply"] if line["final"] else None,
        }
        head = "answer" if line["final"] else f"turn {line['turn'] + 1}"
        for name, text in parts.items():
            if text:
                told.append(f"{head:<8}{name:<19}{' '.join(text.split())}")
                head = ""
    return "\n".join(told) + "\n"


def show_answer(out: Path, job: Job, question: Record) -> None:
    """The command, the turns of the agent's reading and its answer."""
    lines = [json.loads(line) for line in (out / TRACE_FILE).read_text(encoding="utf-8").splitlines()]
    print(f"\n$ {spelt(job.command)}\n{question.question}?\n{turns_text(lines)}")
    print(f"answer: {lines[-1]['answer'] or 'none'}; right is {question.answers[0]}", flush=True)


def run(out: Path, budget: Budget, agents: Sequence[str], workers: int) -> None:
    """The whole experiment, or what is left of it."""
    began = time.monotonic()
    lock = lock_folder(out)
    write_settings(out, dataclasses.asdict(budget) | {"agents": list(agents)})
    question = questions("distant", budget.documents[0], 1)[0]
    (out / QUESTION_FILE).write_text(json.dumps(dataclasses.asdict(question)) + "\n", encoding="utf-8")
    every = stages(out, budget, agents)
    told = Progress(every, out, workers)
    for at, stage in enumerate(every):
        told.begin(at)
        if all(job.done for job in stage.jobs):
            told.line(f"{told.head()} done before", stays=True)
            continue
        told.tell()
        try:
            run_stage(stage, workers, lock, out / "cache", told.tell)
        except Failed as error:
            told.line("", stays=told.terminal)
            raise Failed(f"stage {at + 1}, {stage.name}, {error}") from None
        told.end()
        if stage.name == REPORT:
            print("\n" + stage.jobs[0].log.read_text(encoding="utf-8"), flush=True)
        if stage.name == ANSWER:
            show_answer(out, stage.jobs[0], question)
    print(f"\nDone in {spell(time.monotonic() - began)}. {out}: results.md, results.json, curve.png, accuracy.png")
    print(f"trajectories: {out}/seed*/*/trajectories; model: {run_folder(out, 0, agents[0]) / 'model'}")


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description="The relay experiment: callbacks against none, trained on the spot.")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the experiment")
    parser.add_argument("--budget", choices=BUDGETS, default="demo")
    parser.add_argument("--seeds", type=int, help="trainings of each agent, in place of the budget's")
    parser.add_argument("--questions", type=int, help="of a cell, in place of the budget's")
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="commands that run side by side")
    given = parser.parse_args()
    changed = {name: value for name in ("seeds", "questions") if (value := getattr(given, name)) is not None}
    if min([given.jobs, *changed.values()]) < 1:
        parser.error("expected at least 1 for seeds, questions and jobs")

    def stop(number: int, _frame) -> NoReturn:
        raise Stopped(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        run(given.out, dataclasses.replace(BUDGETS[given.budget], **changed), given.agents, given.jobs)
    except Failed as error:
        sys.exit(f"relay: error: {error}")
    except Stopped:
        print(f"\nstopped; what was done is saved. Go on with: python {' '.join(sys.argv)}", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
