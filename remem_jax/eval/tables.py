"""Tables of agents against the order of the evidence and the number of documents, as aligned text and as Markdown.

A table always tells its metric, its interval and its questions; agents are compared pair by pair on the same questions.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from remem_jax.errors import RememError
from remem_jax.eval.harness import Result
from remem_jax.eval.intervals import Interval, mean_interval, paired_interval, share_interval, unpaired_interval

NOTHING = "–"  # in a table, where nothing was measured
UNPAIRED = "u"  # after a difference of two agents that cannot be compared question by question
METRIC_NAMES = {
    "exact_match": "exact match",
    "f1": "F1",
    "sub_exact_match": "sub-exact match",
    "sub_exact_match_published": "sub-exact match as published",
}
"""Fields of a result in a reader's words."""
Column = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One agent on one set of questions: its results, or only a known accuracy on so many questions.

    Cells that differ in `seed` alone are one agent trained several times.
    """

    agent: str
    order: str
    """Of the evidence in the documents: forward, reverse, distant ..."""
    documents: int
    results: Sequence[Result] = ()
    accuracy: float | None = None
    """Share of right answers, where there are no results."""
    n: int = 0
    """Questions behind `accuracy`."""
    scripted: bool = False
    """A bound computed by a script, not a trained agent."""
    seed: int = 0
    """Of the training."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What is known of one agent in one column, over all its seeds."""

    interval: Interval
    seeds: tuple[float, ...]
    """Mean of each seed, in the order of the seeds."""
    scores: dict[str, float] | None
    """By question, mean over seeds; None where only an accuracy is known."""
    no_answer: int
    """Questions without an answer, failed ones among them, counted as wrong."""
    failed: int = 0
    """Questions that could not be asked."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of texts; `rows` and `columns` have names."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    notes: tuple[str, ...] = ()

    def to_text(self, width: int = 100) -> str:
        """Aligned plain text; where the columns need more than `width` characters, each order is a block of its own, or
        several."""
        blocks = [self.columns]
        if self._width(self.columns) > width:
            orders = _distinct(column[0] for column in self.columns)
            blocks = [
                block
                for order in orders
                for block in self._split(tuple(c for c in self.columns if c[0] == order), width)
            ]
        parts = ["\n".join(self._lines(block)) for block in blocks]
        notes = "\n".join(textwrap.fill(note, max(width, 20), subsequent_indent="   ") for note in self.notes)
        return "\n\n".join([self.title, *parts, notes]).rstrip() + "\n"

    def to_markdown(self) -> str:
        """A Markdown table under its title."""
        lines = ["", *(f"{order} {documents}" for order, documents in self.columns)]
        head = [_pipes(lines), _pipes(["---", *["---:" for _ in self.columns]])]
        body = [_pipes([label, *cells]) for label, cells in self.rows]
        notes = [f"{note}  " for note in self.notes]
        return "\n".join([f"**{self.title}**", "", *head, *body, "", *notes]).rstrip() + "\n"

    def _split(self, columns: tuple[Column, ...], width: int) -> list[tuple[Column, ...]]:
        """The columns in equal runs, as few as fit; a single one is never too wide."""
        for count in range(1, len(columns) + 1):
            size = -(-len(columns) // count)
            runs = [columns[i : i + size] for i in range(0, len(columns), size)]
            if size == 1 or max(map(self._width, runs)) <= width:
                return runs
        return [columns]

    def _width(self, columns: Sequence[Column]) -> int:
        return max(map(len, self._lines(columns)))

    def _lines(self, columns: Sequence[Column]) -> list[str]:
        """The block of some columns: two lines of head, a rule, the rows."""
        where = [self.columns.index(column) for column in columns]
        label_width = max(map(len, ["documents", *(label for label, _ in self.rows)]))
        wide = max([len(cells[i]) for _, cells in self.rows for i in where] + [len(str(d)) for _, d in columns])
        orders = _distinct(order for order, _ in columns)
        # A group is as wide as its columns and the gaps between them, and no narrower than its name.
        counts = {order: sum(c[0] == order for c in columns) for order in orders}
        wide = max([wide, *(-(-(len(order) - 2 * (counts[order] - 1)) // counts[order]) for order in orders)])
        groups = [order.center(counts[order] * (wide + 2) - 2) for order in orders]
        head = ["".ljust(label_width) + "   " + "   ".join(groups)]
        rows = [("documents", [str(documents) for _, documents in columns])]
        rows += [(label, [cells[i] for i in where]) for label, cells in self.rows]
        for label, cells in rows:
            grouped = [
                "  ".join(cell.rjust(wide) for cell, column in zip(cells, columns, strict=True) if column[0] == order)
                for order in orders
            ]
            head.append(label.ljust(label_width) + "   " + "   ".join(grouped))
        head.insert(2, "─" * max(map(len, head)))
        return [line.rstrip() for line in head]


def share(value: float, *, sign: bool = False) -> str:
    """A share with two decimals and no leading zero: `.53`, `1.00`, with `sign` also `+.09`, `-.09`."""
    text = f"{abs(value):.2f}".removeprefix("0") if abs(value) < 0.995 else f"{abs(value):.2f}"
    if text == ".00":
        return text
    return ("-" if value < 0 else "+" if sign else "") + text


def with_interval(interval: Interval, *, sign: bool = False) -> str:
    """`.53 ±.04`: the mean and half of the interval's length."""
    return f"{share(interval.mean, sign=sign)} ±{share(interval.half_width)}"


def percent_with_interval(interval: Interval, *, sign: bool = False) -> str:
    """`62.50 ±8.4`: the same in percent, with the decimals of published tables."""
    mean = f"{100 * interval.mean:{'+' if sign else ''}.2f}"
    return f"{'0.00' if float(mean) == 0 else mean} ±{100 * interval.half_width:.1f}"


def measured(
    cells: Iterable[Cell], *, seed: int = 0, metric: str = "exact_match"
) -> dict[tuple[str, Column], Measured]:
    """What the cells say of each agent and column; the seeds of an agent are taken together.

    A question that several seeds answered counts once, with the mean of its scores, so that the interval is over
    questions.

    Raises:
        RememError: no cells, one given twice, or neither results nor an accuracy in it.
    """
    grouped: dict[tuple[str, Column], dict[int, Cell]] = {}
    for cell in cells:
        same = grouped.setdefault((cell.agent, (cell.order, cell.documents)), {})
        if cell.seed in same:
            raise RememError(f"expected one cell of {_name(cell)}, found two: give each training seed its own")
        same[cell.seed] = cell
    if not grouped:
        raise RememError("expected at least one cell for the table, found none")
    return {key: _measure([same[s] for s in sorted(same)], seed, metric) for key, same in grouped.items()}


def comparison_table(
    cells: Sequence[Cell],
    *,
    title: str = "Exact match by order of evidence and documents",
    seed: int = 0,
    metric: str = "exact_match",
    show: Callable[..., str] = with_interval,
) -> Table:
    """Agents in rows, the scripted ones last; `.53 ±.04` in each cell, or what `show` makes of it."""
    known = measured(cells, seed=seed, metric=metric)
    notes = [f"±: half of the 95 % bootstrap interval over questions; {_counts(cells, known)}."]
    if any(len(one.seeds) > 1 for one in known.values()):
        notes.append("Several training seeds: the mean over them; the interval does not cover their spread.")
    failed = sum(one.failed for one in known.values())
    if failed:
        notes.append(f"{failed:,} {'question' if failed == 1 else 'questions'} failed, counted as wrong.")
    missing = sum(one.no_answer for one in known.values()) - failed
    if missing:
        notes.append(f"{missing:,} {'reply' if missing == 1 else 'replies'} without an answer, counted as wrong.")
    return _table(title, cells, known, lambda one: show(one.interval), notes)


def seed_table(cells: Sequence[Cell], *, title: str = "Exact match of each training seed") -> Table:
    """The agents that were trained several times, with every seed's own mean: `.49 .53 .56`."""
    several = {cell.agent for cell in cells if cell.seed != cells[0].seed}
    several = [cell for cell in cells if cell.agent in several]
    known = measured(several)
    order = sorted({cell.seed for cell in several})
    notes = [f"Seeds in the order {', '.join(map(str, order))}."]
    return _table(title, several, known, lambda one: " ".join(map(share, one.seeds)), notes)


def difference_table(
    cells: Sequence[Cell],
    pairs: Sequence[tuple[str, str]],
    *,
    title: str = "Differences in exact match, paired by question",
    seed: int = 0,
    metric: str = "exact_match",
    show: Callable[..., str] = with_interval,
) -> Table:
    """First minus second agent of each pair, `+.19 ±.05`, with `*` where the interval leaves 0 out.

    Raises:
        RememError: an agent without any cell, or two agents' results in one column on different questions.
    """
    known = measured(cells, seed=seed, metric=metric)
    agents = _distinct(cell.agent for cell in cells)
    for name in (name for pair in pairs for name in pair):
        if name not in agents:
            raise RememError(f"expected the name of an agent in the table ({', '.join(agents)}), found {name}")
    columns = _columns(cells)
    rows = []
    for first, second in pairs:
        texts = []
        for column in columns:
            one, other = known.get((first, column)), known.get((second, column))
            try:
                texts.append(NOTHING if one is None or other is None else _difference(one, other, seed, show))
            except RememError as error:
                raise RememError(f"{first} and {second}, {column[0]} {column[1]}: {error}") from None
        rows.append((f"{first} - {second}", tuple(texts)))
    notes = ["±: half of the 95 % interval, whole pairs resampled; *: the interval leaves 0 out."]
    if any(UNPAIRED in text for _, texts in rows for text in texts):
        notes.append(f"{UNPAIRED}: not paired, since only an accuracy is known of one of the two.")
    return Table(title, columns, tuple(rows), tuple(notes))


def _difference(one: Measured, other: Measured, seed: int, show: Callable[..., str]) -> str:
    """First minus second with its marks, which take two places everywhere so that the numbers stay aligned."""
    if one.scores is not None and other.scores is not None:
        found, marks = paired_interval(one.scores, other.scores, seed=seed), ""
    else:
        found, marks = unpaired_interval(one.interval, other.interval), UNPAIRED
    marks = ("*" if found.low > 0 or found.high < 0 else "") + marks
    return show(found, sign=True) + marks.ljust(2)


def _measure(cells: Sequence[Cell], seed: int, metric: str) -> Measured:
    """The cells of one agent and column, one a seed."""
    by_results = [bool(cell.results) for cell in cells]
    if not any(by_results):
        for cell in cells:
            if cell.accuracy is None:
                raise RememError(f"expected results or an accuracy of {_name(cell)}, found neither")
        seeds = tuple(float(cell.accuracy or 0.0) for cell in cells)
        n = sum(cell.n for cell in cells)
        mean = sum(one * cell.n for one, cell in zip(seeds, cells, strict=True)) / max(n, 1)
        return Measured(share_interval(mean, n, seed=seed), seeds, None, 0)
    if not all(by_results):
        lacking = cells[by_results.index(False)]
        raise RememError(f"expected results of {_name(lacking)} as of the agent's other seeds, found none")
    scores: dict[str, list[float]] = {}
    for cell in cells:
        for result in cell.results:
            scores.setdefault(result.id, []).append(getattr(result, metric))
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    return Measured(
        mean_interval(list(means.values()), seed=seed),
        tuple(float(np.mean([getattr(result, metric) for result in cell.results])) for cell in cells),
        means,
        sum(result.prediction is None for cell in cells for result in cell.results),
        sum(result.error is not None for cell in cells for result in cell.results),
    )


def _table(title, cells: Sequence[Cell], known, show: Callable[[Measured], str], notes: Sequence[str]) -> Table:
    columns = _columns(cells)
    scripted = {cell.agent for cell in cells if cell.scripted}
    agents = sorted(_distinct(cell.agent for cell in cells), key=lambda agent: agent in scripted)
    rows = [
        (
            f"{agent} (scripted)" if agent in scripted else agent,
            tuple(show(known[agent, column]) if (agent, column) in known else NOTHING for column in columns),
        )
        for agent in agents
    ]
    return Table(title, columns, tuple(rows), tuple(notes))


def _columns(cells: Iterable[Cell]) -> tuple[Column, ...]:
    """Orders as they come, documents ascending."""
    cells = list(cells)
    orders = _distinct(cell.order for cell in cells)
    return tuple(sorted({(c.order, c.documents) for c in cells}, key=lambda c: (orders.index(c[0]), c[1])))


def _counts(cells: Sequence[Cell], known: dict[tuple[str, Column], Measured]) -> str:
    """How many questions a cell has: once where all have the same, else of the trained and the scripted agents."""
    scripted = {cell.agent for cell in cells if cell.scripted}
    counts = [sorted({one.interval.n for (agent, _), one in known.items() if (agent in scripted) is kind})
              for kind in (False, True)]  # fmt: skip
    trained, bounds = (" to ".join(f"{n:,}" for n in dict.fromkeys([*kind[:1], *kind[-1:]])) for kind in counts)
    if not bounds or not trained or bounds == trained:
        return f"n = {trained or bounds} questions a cell"
    return f"n = {trained} questions a cell, {bounds} of the scripted agents"


def _name(cell: Cell) -> str:
    return f"{cell.agent}, {cell.order} {cell.documents}, seed {cell.seed}"


def _pipes(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.strip().replace("|", "\\|") for text in texts) + " |"


def _distinct(names: Iterable[str]) -> list[str]:
    """Names in the order of their first appearance."""
    return list(dict.fromkeys(names))
