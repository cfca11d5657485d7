"""What a person sees while a set is built, on standard error: a bar, or a line every ten seconds where it is a log."""

import time
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0  # between lines of a log


class BuildScreen:
    """Progress of one build, a context manager; call it with what is being done, how much of it, and of how much."""

    def __init__(self, *, quiet: bool = False, file: IO[str] | None = None):
        """`quiet` shows nothing; `file` takes the place of standard error."""
        self.console = Console(file=file, stderr=file is None, highlight=False, emoji=False, quiet=quiet)
        self._told = time.perf_counter()
        self._bar: Progress | None = None
        if self.console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> "BuildScreen":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if self._bar is not None:
            self._bar.update(self._task, description=what, completed=done, total=total)
        elif now - self._told >= PLAIN_SECONDS:
            self._told = now
            self.console.print(f"{what} {done:,} of {total:,}", soft_wrap=True, markup=False)
