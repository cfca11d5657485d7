"""What a person sees while agents are evaluated, on standard error: a bar with the cell at work, the questions answered
and the time left, or a line every ten seconds where it is a log.
"""

import time
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from remem_jax.observe.live import duration
from remem_jax.observe.terminal import clean

PLAIN_SECONDS = 10.0  # between lines of a log


class EvalScreen:
    """Progress of one run, a context manager."""

    def __init__(self, *, quiet: bool = False, file: IO[str] | None = None):
        """`quiet` shows nothing; `file` takes the place of standard error."""
        self.console = Console(file=file, stderr=file is None, highlight=False, emoji=False, quiet=quiet)
        self._bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                TextColumn("{task.fields[more]}", markup=False),
            )
            self._bar = Progress(*columns, console=self.console, transient=True, expand=True)
            self._task = self._bar.add_task("starting", total=None, more="")
        self._questions = self._answered = 0
        self._turns = self._done = self._wave_turns = 0  # all that are left at the start, done since, of this wave
        self._share = 0.0  # of this wave
        self._name = ""
        self._began = self._told = time.perf_counter()

    def __enter__(self) -> "EvalScreen":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        """A line that stays: what the user should know about the settings."""
        self.console.print(Text(f"note: {clean(text)}"), soft_wrap=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Something before the first question; `total` 0 where it is not counted."""
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=done, total=total or None)
        elif total and time.perf_counter() - self._told >= PLAIN_SECONDS:
            self._print(f"{what}: {done:,} of {total:,}")

    def begin(self, *, questions: int, answered: int, turns: int) -> None:
        """Questions of all cells, those answered before, and the turns that the others will take."""
        self._questions, self._answered, self._turns = questions, answered, turns
        self._began = time.perf_counter()
        before = f", {answered:,} answered before" if answered else ""
        self._print(f"{questions:,} questions{before}; {turns:,} turns to take")

    def loading(self, model: str) -> None:
        """A model's weights are read."""
        self._name = f"loading {model}"
        self._show()

    def wave(self, name: str, turns: int) -> None:
        """A wave of a cell begins, of so many turns of its questions together."""
        self._name, self._wave_turns, self._share = name, turns, 0.0
        self._show()

    def turn(self, done: int, total: int) -> None:
        """So many of the turns of the wave are done."""
        self._share = done / total
        self._show()

    def answered(self, questions: int) -> None:
        """The wave is over, and so many results are written."""
        self._answered += questions
        self._done += self._wave_turns
        self._wave_turns, self._share = 0, 0.0
        self._show()

    def seconds_left(self) -> float | None:
        """By the turns that were taken since the start; None before any."""
        done = self._done + self._share * self._wave_turns
        if not done:
            return None
        return (time.perf_counter() - self._began) / done * max(self._turns - done, 0.0)

    def _show(self) -> None:
        left = self.seconds_left()
        about = "" if left is None else f" · about {duration(left)} left"
        more = f"{self._answered:,} of {self._questions:,} questions{about}"
        if self._bar is not None:
            done = self._done + self._share * self._wave_turns
            self._bar.update(self._task, description=self._name, completed=done, total=max(self._turns, 1), more=more)
        elif time.perf_counter() - self._told >= PLAIN_SECONDS:
            self._print(f"{self._name} · {more}")

    def _print(self, text: str) -> None:
        self._told = time.perf_counter()
        if self._bar is None:
            self.console.print(Text(text), soft_wrap=True)
