"""What a person sees while an agent reads: a bar with the current memory below it, then the answer.

Everything but answers goes to standard error, so that standard output can be piped; where that is no terminal, each
turn is a few plain lines. Text of models and documents is shown as it stands: no markup or emoji codes, no control
characters.
"""

import contextlib
import re

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from remem_jax.observe.marking import gold_words, marked, shortened, visible
from remem_jax.observe.snippet import answer_text, counts, flags, recalled_from, rewards, turn_name
from remem_jax.observe.stories import Trajectory

MEMORY_LINES = 4  # of the terminal, for the memory below the bar, with room to break lines at words
LOG_CELLS = 400  # of the memory in a log
TOLD_CHARACTERS, CHUNK_CHARACTERS = 4000, 600  # of a text and of a chunk in `tell`
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # and turns of direction


class Terminal:
    """Progress and answers of one command that asks so many `questions`; `quiet` shows nothing."""

    def __init__(self, *, quiet: bool, questions: int = 1):
        self.quiet, self.questions = quiet, questions
        self.console = Console(stderr=True, highlight=False, emoji=False, quiet=quiet)
        self.out = Console(highlight=False, emoji=False, soft_wrap=True)
        self._finished = 0  # questions of earlier waves
        self._answered = False
        self._below = Group()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left", style="dim"),
            console=self.console,
            expand=True,
        )

    def status(self, text: str):
        """A spinner while something takes its time."""
        if self.quiet or not self.console.is_terminal:
            return contextlib.nullcontext()
        return self.console.status(Text(text))

    @contextlib.contextmanager
    def reading(self, chunks: int):
        """The bar, from the first turn to the last, of documents with so many chunks."""
        if self.quiet or not self.console.is_terminal:
            yield
            return
        first = f"chunk 1 of {chunks}" if chunks else "answering"
        self._task = self._bar.add_task(first, total=chunks + 1, rate="")
        self._below = Group(Text("the first turn compiles", style="dim"))
        view = Live(
            console=self.console,
            transient=True,
            get_renderable=lambda: Group(self._bar.get_renderable(), self._below),
        )
        with view:
            yield

    def turn(self, progress) -> None:
        """One more turn is done."""
        if self.quiet:
            return
        width = self.console.width * (MEMORY_LINES - 1) if self.console.is_terminal else LOG_CELLS
        final, chunks = progress.turn == progress.turns, progress.turns - 1
        episode = progress.episodes[0][0]
        lines = [] if final else _turn_lines(episode.turns[-1], width)
        if lines and len(progress.episodes) > 1:  # one memory is shown of many: say whose
            lines.insert(0, _named("asked", episode.reading.question, "", width))
        rate = f"{progress.tokens_read / max(progress.seconds, 1e-9):,.0f} tokens/s"
        which = self._which(len(progress.episodes))
        if final:
            self._finished += len(progress.episodes)
        if self.console.is_terminal:
            self._advance(progress.turn, chunks, which, rate)
            self._below = Group(*lines)
            return
        done = "final turn done" if final else f"chunk {progress.turn} of {chunks} read"
        self.console.print(Text(f"{which}{done} · {progress.tokens_read:,} tokens · {rate}"), soft_wrap=True)
        for line in lines:
            self.console.print(Text("  ") + line, soft_wrap=True)

    def answer(self, found) -> None:
        """The question and its answer, on standard output, a blank line between one and the next."""
        if self._answered:
            self.out.print()
        self._answered = True
        self.out.print(Text.assemble(("Question: ", "bold"), clean(found.question)))
        self.out.print(Text.assemble(("Answer:   ", "bold"), clean(str(found))))
        if found.text is None and found.turns[-1].reply.strip():
            reply = " ".join(clean(found.turns[-1].reply).split())
            self.out.print(Text.assemble(("without a box: ", "dim"), reply))
        counts = [f"{len(found.turns)} turn{'' if len(found.turns) == 1 else 's'}"]
        if found.invalid_turns:
            counts.append(f"{found.invalid_turns} with an invalid reply")
        counts += [f"{found.tokens_read:,} tokens read", f"{found.seconds:.1f} s"]
        self.out.print(Text(" · ".join(counts), style="dim"))

    def _advance(self, turn: int, chunks: int, which: str, rate: str) -> None:
        """Move the bar to the turn that comes now; after a final turn, to the next questions."""
        if turn <= chunks:
            now = f"chunk {turn + 1} of {chunks}" if turn < chunks else "answering"
        elif self._finished < self.questions:
            turn, now = 0, "next questions"
        else:
            now = "done"
        self._bar.update(self._task, completed=turn, total=chunks + 1, description=which + now, rate=rate)

    def _which(self, in_flight: int) -> str:
        """Which questions are being answered, where there are several."""
        if self.questions == 1:
            return ""
        first, last = self._finished + 1, self._finished + in_flight
        span = f"question {first}" if in_flight == 1 else f"questions {first}-{last}"
        return f"{span} of {self.questions}: "


def tell(trajectory: Trajectory, console: Console) -> None:
    """The whole story of a trajectory, for reading: a block a turn, with what it was shown, wrote and earned."""
    gold = gold_words(trajectory.answers)

    def text(value: str | None, limit: int = TOLD_CHARACTERS) -> Text:
        pieces = shortened(marked(" ".join(visible(value or "").split()), gold), limit)
        return Text.assemble(*((piece, "bold underline" if at % 2 else "") for at, piece in enumerate(pieces)))

    console.print(Text.assemble(("Question: ", "bold"), text(trajectory.question)))
    console.print(Text.assemble(("Answer:   ", "bold"), answer_text(trajectory)))
    if trajectory.answers:
        console.print(Text.assemble(("Gold:     ", "bold"), text(" | ".join(trajectory.answers))))
    step = "" if trajectory.step is None else f"step {trajectory.step} · "
    where = f"{trajectory.source} · {step}rollout {trajectory.rollout}"
    console.print(Text(f"{where} · {counts(trajectory)}", style="dim"))
    for turn in trajectory.turns:
        console.print(Text(turn_name(turn), style="bold"))
        lines = [("read", text(turn["chunk"], CHUNK_CHARACTERS))] if turn["chunk"] else []
        if turn["recalled_step"] is not None:
            recalled = f"{recalled_from(turn).removeprefix('recalled: ')}: "
            lines.append(("recalled", Text(recalled) + text(turn["recalled"])))
        if turn["final"] or turn["valid"] is False:
            lines.append(("reply", text(turn["reply"])))
        if not turn["final"]:
            lines.append(("memory", text(turn["memory"] or "(empty)")))
        if turn["callback"]:
            lines.append(("calls", text(turn["callback"])))
        lines += [("", Text(flag, style="yellow")) for flag in flags(turn)]
        if earned := rewards(turn):
            lines.append(("earned", Text(" · ".join(earned))))
        for name, told in lines:
            for part in told.wrap(console, max(console.width - len(_indent(name)), 20)):
                part.rstrip()
                console.print(Text(_indent(name), style="dim") + part, soft_wrap=True)
                name = ""


def _indent(name: str) -> str:
    return f"  {name:<9}"


def _turn_lines(turn, width: int) -> list[Text]:
    """What a memory turn did, each line cut to `width` cells."""
    lines = [("memory", turn.memory or "(empty)", "")]
    if not turn.valid:
        lines.append(("invalid", f"reply without effect ({turn.reason.replace('_', ' ')}), the memory stays", "yellow"))
    if turn.callback:
        lines.append(("calls", turn.callback, ""))
    if turn.recalled_step >= 0:
        recalled = f"chunk {turn.recalled_step + 1}, score {turn.recalled_score:.2f}: {turn.recalled}"
        lines.append(("recalled", recalled, ""))
    return [_named(name, text, style, width) for name, text, style in lines]


def _named(name: str, text: str, style: str, width: int) -> Text:
    line = Text(" ".join(clean(text).split()), style=style)
    line.truncate(width, overflow="ellipsis")
    return Text.assemble((f"{name:<9}", "dim")) + line


def clean(text: str) -> str:
    """The text without control characters, which could move the cursor or recolour the screen."""
    return _CONTROL.sub("", text)
