"""The stages of the relay experiment: which commands each runs, what shows that one is done, how long it may take."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relay_layout import AGENTS, cell_file, cell_folder, cells, run_folder, scripted_file

ROOT = Path(__file__).parents[1]
REMEM = (sys.executable, "-m", "remem_jax.cli")
REPORT, ANSWER = "tables and pictures", "an answer"
QUESTION_FILE, TRACE_FILE = "question.jsonl", "trace.jsonl"
_AT = re.compile(r"(step|cell) (\d+) of (\d+)(?=\D)([^\n]*)")
_TAIL = 4096  # bytes of a log that progress is read from


@dataclass(frozen=True)
class Budget:
    """How much is trained and asked; overrides are `key=value` of `remem train`."""

    seeds: int
    questions: int
    """Of a cell."""
    documents: tuple[int, ...] = (8, 16, 32)
    practice: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    grpo: tuple[str, ...] = ()


BUDGETS = {
    "demo": Budget(seeds=1, questions=200),
    "full": Budget(seeds=3, questions=500),
    "smoke": Budget(
        seeds=1,
        questions=1,
        documents=(8,),
        practice=("steps=3", "stop.loss=null"),
        warm=("steps=3",),
        grpo=("steps=2", "data.validation=null", "rollout.questions=2", "rollout.group=4", "optimizer.mini_batch=2"),
    ),
}
"""demo: `make demo`. full: `make relay`. smoke: every stage once, in seconds, which teaches nothing."""


@dataclass(frozen=True)
class Job:
    """One command of a stage; it is done when its product is there, and runs at every call where it has none."""

    name: str
    command: tuple[str, ...]
    log: Path
    product: Path | None = None

    @property
    def done(self) -> bool:
        return self.product is not None and self.product.exists()


@dataclass(frozen=True)
class Stage:
    """Jobs that may run side by side."""

    name: str
    jobs: tuple[Job, ...]
    seconds: float
    """What one job takes on a core of its own."""
    open_ended: bool = False
    """It ends when its loss is low, so its steps tell nothing of the time left."""

    def expected(self, workers: int) -> float:
        """Seconds of all jobs that are not done, `workers` at a time."""
        return self.seconds * math.ceil(sum(not job.done for job in self.jobs) / workers)


def stages(out: Path, budget: Budget, agents: Sequence[str] = tuple(AGENTS)) -> list[Stage]:
    """The whole experiment in order; agents are names of `relay_layout.AGENTS`."""
    seeds = range(budget.seeds)
    both = [(seed, name) for seed in seeds for name in agents]

    def tag(seed: int, name: str) -> str:
        return name if budget.seeds == 1 else f"{name} {seed}"

    def data(seed: int, name: str) -> Path:
        return run_folder(out, seed, f"data-{name}")

    def training(stage: str, config: str, seed: int, run: str, model: Path, files: Mapping[str, Path], extra) -> Job:
        folder = run_folder(out, seed, run)
        given = {"run_dir": folder, "model": model, "seed": seed, **files}
        command = (*REMEM, "train", str(ROOT / "configs" / config), *(f"{k}={v}" for k, v in given.items()), *extra)
        label = tag(seed, stage if run == "practice" else run.removesuffix("-warm"))
        return Job(label, command, _log(out, f"seed{seed}-{run}"), folder / "model")

    def write_data(seed: int, name: str) -> Job:
        folder = data(seed, name)
        command = (sys.executable, "-m", "remem_jax.data.relay", "--out", str(folder), "--agent", AGENTS[name])
        log = _log(out, f"seed{seed}-data-{name}")
        return Job(tag(seed, name), (*command, "--seed", str(seed)), log, folder / "validation.jsonl")

    def practice(seed: int) -> Job:
        files = {"data.train": data(seed, agents[0]) / "practice.jsonl"}
        model = data(seed, agents[0]) / "start"
        return training("practice", "relay_practice.yaml", seed, "practice", model, files, budget.practice)

    def warm(seed: int, name: str) -> Job:
        files = {"data.train": data(seed, name) / "warm.jsonl"}
        model = run_folder(out, seed, "practice") / "model"
        extra = (f"agent.agent={AGENTS[name]}", *budget.warm)
        return training("warm", "relay_warm.yaml", seed, f"{name}-warm", model, files, extra)

    def grpo(seed: int, name: str) -> Job:
        folder = data(seed, name)
        files = {"data.train": folder / "train.jsonl", "data.validation": folder / "validation.jsonl"}
        config = {"callback": "relay.yaml", "memagent": "relay_memagent.yaml"}[name]
        model = run_folder(out, seed, f"{name}-warm") / "model"
        return training("grpo", config, seed, name, model, files, budget.grpo)

    def evaluation(seed: int, run: str) -> Job:
        folder = cell_folder(out, seed, run)
        command = _script("relay_evaluate.py", run_folder(out, seed, run) / "model", folder, "--seed", seed)
        last = cell_file(folder, *cells(budget.documents)[-1])
        return Job(tag(seed, run.removesuffix("-warm")), (*command, *asked), _log(out, f"seed{seed}-{run}-cells"), last)

    asked = ("--questions", str(budget.questions), "--documents", *map(str, budget.documents))
    work = len(cells(budget.documents)) / 9 * budget.questions / 200
    scripts = (*_script("relay_evaluate.py", "--scripted", scripted_file(out)), *asked)
    bounds = Job("policies", scripts, _log(out, "scripted"), scripted_file(out))
    question, trace = out / QUESTION_FILE, out / TRACE_FILE
    model = run_folder(out, 0, agents[0]) / "model"
    ask = ("answer", "--model", model, "--questions", question, "--documents", question, "--trace", trace)
    ask = (*ask, "--temperature", 0)  # what it finds most likely; the table's answers are drawn at temperature 1
    return [
        Stage("questions and starting weights", tuple(write_data(*one) for one in both), 10),
        Stage("scripted bounds", (bounds,), 5 * work),
        Stage("reading practice", tuple(practice(seed) for seed in seeds), 60, open_ended=True),
        Stage("warm start", tuple(warm(*one) for one in both), 90),
        Stage("evaluation of the warm start", tuple(evaluation(s, f"{name}-warm") for s, name in both), 40 * work),
        Stage("reinforcement learning", tuple(grpo(*one) for one in both), 240),
        Stage("evaluation", tuple(evaluation(*one) for one in both), 40 * work),
        Stage(REPORT, (Job("report", _script("relay_report.py", out), _log(out, "report")),), 6),
        Stage(ANSWER, (Job("answer", (*REMEM, *map(str, ask)), _log(out, "answer")),), 15),
    ]


def _log(out: Path, name: str) -> Path:
    return out / "logs" / f"{name}.log"


def _script(name: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "examples" / name), *map(str, arguments))


def seconds_left(
    expected: Sequence[float],
    elapsed: float,
    fraction: float | None = None,
    before: float = 0.0,
    measured: Sequence[tuple[float, float]] = (),
) -> float:
    """Seconds that the stage at work and those after it will take.

    Args:
        expected: recorded seconds of the stage at work and of those after it, for what they have still to do.
        elapsed, fraction: of the stage at work; a fraction of None is unknown.
        before: the fraction that an earlier call of the driver had done.
        measured: recorded and measured seconds of each stage that ended: how fast this machine is.
    """
    recorded, took = (sum(seconds) for seconds in zip(*measured)) if measured else (1.0, 1.0)
    speed = took / recorded
    here = max(expected[0] * (1 - before) * speed - elapsed, 0.0)
    if fraction is not None and fraction - before > 0.05:
        here = elapsed * (1 - fraction) / (fraction - before)
    return here + speed * sum(expected[1:])


def progress(job: Job) -> tuple[float | None, str]:
    """How far a job is by its log, as a share and in words; None and nothing where the log does not say."""
    if not job.log.is_file():
        return None, ""
    with job.log.open("rb") as file:
        file.seek(max(job.log.stat().st_size - _TAIL, 0))
        found = _AT.findall(file.read().decode(errors="replace"))
    if not found:
        return None, ""
    kind, step, total, rest = found[-1]
    score = re.search(r"EM ([\d.]+)|loss \D*([\d.]+)", rest)
    return int(step) / int(total), f"{kind} {step}/{total}" + (f" {score.group()}" if score else "")


def spell(seconds: float) -> str:
    """`6:20`, or `45 s` below a minute."""
    whole = max(round(seconds), 0)
    return f"{whole // 60}:{whole % 60:02}" if whole >= 60 else f"{whole} s"
