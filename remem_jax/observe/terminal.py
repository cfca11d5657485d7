"""What a person sees while an agent reads: a progress bar with the current memory, then the answer.

Everything but answers goes to standard error, so that standard output can be piped.
"""

import contextlib

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

MEMORY_LINE = 400  # characters of the memory shown while reading


class Terminal:
    """Progress and answers of one command; `quiet` shows nothing."""

    def __init__(self, *, quiet: bool):
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        self.out = Console(highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def status(self, text: str):
        """A spinner while something takes its time."""
        return self.console.status(escape(text)) if self.console.is_terminal else contextlib.nullcontext()

    @contextlib.contextmanager
    def reading(self):
        """The bar, from the first turn to the last."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[rate]}"),
        )
        if not self.console.is_terminal:
            yield
            return
        with Progress(*columns, console=self.console, transient=True) as self._bar:
            self._task = self._bar.add_task("reading chunk 1 (the first one compiles)", total=None, rate="")
            yield
        self._bar = None

    def turn(self, progress) -> None:
        """One more turn is done."""
        if self.quiet:
            return
        chunks = progress.turns - 1
        rate = f"{progress.tokens_read / max(progress.seconds, 1e-9):,.0f} tokens/s"
        final = progress.turn == progress.turns
        done = "final turn done" if final else f"chunk {progress.turn} of {chunks} read"
        episode = progress.episodes[0][0]
        last = episode.turns[-1]
        if self._bar is not None:
            upcoming = f"reading chunk {progress.turn + 1} of {chunks}" if progress.turn < chunks else "answering"
            self._bar.update(self._task, completed=progress.turn, total=progress.turns, description=upcoming, rate=rate)
        self.console.print(f"[bold]{done}[/] · {progress.tokens_read:,} tokens · {rate}")
        if final:
            return
        if not last.valid:
            self.console.print(f"  [yellow]invalid reply ({last.reason}): the memory stays[/]")
        if last.recalled_step >= 0:
            self.console.print(
                f"  recalled the memory of chunk {last.recalled_step + 1} (score {last.recalled_score:.2f})"
            )
        if last.callback:
            self.console.print(f"  calls back: {escape(_line(last.callback))}")
        self.console.print(f"  [dim]memory: {escape(_line(last.memory or '(empty)'))}[/]")

    def answer(self, found) -> None:
        """The question and its answer, on standard output."""
        self.out.print(f"[bold]Question:[/] {escape(found.question)}")
        self.out.print(f"[bold]Answer:[/]   {escape(str(found))}")
        invalid = f", {found.invalid_turns} invalid" if found.invalid_turns else ""
        self.out.print(
            f"[dim]{len(found.turns)} turns{invalid} · {found.tokens_read:,} tokens read · {found.seconds:.1f} s[/]"
        )


def _line(text: str) -> str:
    """The text on one line, cut to what fits below the bar."""
    text = " ".join(text.split())
    return text if len(text) <= MEMORY_LINE else f"{text[: MEMORY_LINE - 1]}…"
