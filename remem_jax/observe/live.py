"""What a person sees while an agent trains: a live view of the step at work, notes and validation scores above it.

It goes to standard error. Where that is no terminal, each step is one plain line, and a step that takes long tells
from time to time where it is.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from remem_jax.observe.terminal import clean

RECENT = 9  # steps whose median duration the remaining time is told from
PLAIN_SECONDS = 10.0  # between lines of a log within a step
RATE = "tokens_per_second"
PARTS = ("memory", "callback", "format")  # of the reward; the outcome is told as EM


class TrainScreen:
    """Progress of one run of `steps` steps, of which `done` were taken before; a context manager.

    Steps are told by how many are done: the first `step(1, metrics)`, the last `step(steps, metrics)`.
    """

    def __init__(self, steps: int, *, done: int = 0, quiet: bool = False, file: IO[str] | None = None):
        """`quiet` shows nothing; `file` takes the place of standard error."""
        self.steps, self.done, self.quiet = steps, done, quiet
        self.console = Console(file=file, stderr=file is None, highlight=False, emoji=False, quiet=quiet)
        self._durations: deque[float] = deque(maxlen=RECENT)
        self._compiled = False  # the first step of this process, which compiles, is over
        self._metrics: Mapping[str, float] = {}
        self._phase = "starting"
        self._began = self._phase_began = self._told = time.perf_counter()
        self._view: Live | None = None

    def __enter__(self) -> "TrainScreen":
        self._began = self._phase_began = self._told = time.perf_counter()
        if not self.quiet and self.console.is_terminal:
            self._view = Live(console=self.console, transient=True, get_renderable=self._render, refresh_per_second=4)
            self._view.start()
        else:
            self.note(f"{self._at()}: the first step compiles")
        return self

    def __exit__(self, *exception) -> None:
        if self._view is not None:
            self._view.stop()
            self._view = None
            if self.done and self._metrics:  # the live view vanishes: leave where the run stood
                self._print(self._line())

    def phase(self, name: str, done: int = 0, total: int = 0, of: str = "") -> None:
        """What is at work now, such as `phase("rollout turn", 3, 7, "of wave 1/2")`; call it as often as you like."""
        now, counted = time.perf_counter(), f" {done}/{total}" if total else ""
        text = f"{name}{counted}{' ' if of else ''}{of}"
        if text != self._phase:
            self._phase, self._phase_began = text, now
        if self._view is None and now - self._told >= PLAIN_SECONDS:
            self._print(f"{self._at()} · {text} · {duration(now - self._began)} in this step")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done, with its metrics (`observe.metrics` has the names' form)."""
        now = time.perf_counter()
        if self._compiled:
            self._durations.append(now - self._began)
        self._compiled, self.done, self._metrics = True, step, dict(metrics)
        self._began = self._phase_began = now
        self._phase = "done" if step >= self.steps else "next step"
        if self._view is None:
            self._print(self._line())

    def note(self, text: str) -> None:
        """A line that stays."""
        self._print(text)

    def validation(self, step: int, scores: Mapping[str, float]) -> None:
        """A line that stays, with the scores of a validation after so many steps."""
        self._print(f"validation after step {step}: {_named(scores)}")

    def remaining(self) -> float | None:
        """Seconds that the rest will take, by the median of the last steps; None before this process's second step."""
        if not self._durations:
            return None
        one = statistics.median(self._durations)
        return max(one * (self.steps - self.done) - min(time.perf_counter() - self._began, one), 0.0)

    def _at(self) -> str:
        """The step at work."""
        return f"step {min(self.done + 1, self.steps)} of {self.steps}"

    def _print(self, text: str) -> None:
        self._told = time.perf_counter()
        self.console.print(Text(clean(text)), soft_wrap=self._view is None)

    def _line(self) -> str:
        """The step done last, in one line."""
        told = [f"step {self.done} of {self.steps}", _headline(self._metrics), _rewards(self._metrics)]
        return " · ".join(part for part in (*told, _seconds(self._metrics), self._left()) if part)

    def _left(self) -> str:
        if self.done >= self.steps:
            return ""
        seconds = self.remaining()
        return "time left is known after two steps" if seconds is None else f"{duration(seconds)} left"

    def _render(self) -> Group:
        """The live view: a bar, what is at work, then the step done last."""
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        left = self._left() if self._compiled else "first step compiles"
        bar.add_row(self._at(), ProgressBar(total=max(self.steps, 1), completed=self.done), left)
        elapsed = time.perf_counter() - self._phase_began
        told = [part for part in (_headline(self._metrics), _rewards(self._metrics), _seconds(self._metrics)) if part]
        names = [f"step {self.done}", *[""] * len(told)]
        rows = [("now", f"{self._phase} · {duration(elapsed)}"), *zip(names, told)]
        return Group(bar, *(_row(name, text) for name, text in rows))


def _row(name: str, text: str) -> Text:
    return Text.assemble((f"{name:<9}", "dim"), clean(text), no_wrap=True, overflow="ellipsis")


def _headline(metrics: Mapping[str, float]) -> str:
    """Exact match of the rollouts, call rate, tokens a second: those that were measured."""
    parts = [
        f"{label} {_number(metrics[name])}"
        for label, name in (("EM", "reward/outcome"), ("call rate", "health/call_rate"))
        if name in metrics
    ]
    parts += [f"{value:,.0f} tokens/s" for name, value in metrics.items() if name.endswith(RATE)]
    return " · ".join(parts)


def _rewards(metrics: Mapping[str, float]) -> str:
    """The parts of the reward; the loss where a run has none, as when learning from demonstrations."""
    rewards = _group(metrics, "reward")
    shown = {name: rewards[name] for name in PARTS if name in rewards}
    if shown:
        return f"reward {_named(shown)}"
    losses = _group(metrics, "loss")
    return f"loss {_named(losses)}" if losses else ""


def _seconds(metrics: Mapping[str, float]) -> str:
    parts = [f"{name} {value:.1f} s" for name, value in _group(metrics, "time").items() if not name.endswith(RATE)]
    return " ".join(parts)


def _group(metrics: Mapping[str, float], group: str) -> dict[str, float]:
    return {name[len(group) + 1 :]: value for name, value in metrics.items() if name.startswith(f"{group}/")}


def _named(values: Mapping[str, float]) -> str:
    return " ".join(f"{name} {_number(value)}" for name, value in values.items())


def _number(value: float) -> str:
    """Two decimals where they say something, else three digits."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.2f}" if value == 0 or 0.1 <= abs(value) < 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as `12 s`, `3:05` or `2:03:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
