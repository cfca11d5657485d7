"""Questions for training and evaluation: records tokenised into chunks, and a Grain dataset of batches of them.

The order is a function of seed and position alone, so that a position is all a checkpoint needs to go on, and every
process can take its part of a batch without asking another.

Axes: `N` questions of a batch.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import grain.python as grain
import numpy as np

from remem_jax.agent.prompts import PromptBlocks
from remem_jax.agent.reading import Reading, prepare
from remem_jax.config import AgentConfig
from remem_jax.data.built import Contexts, load_contexts, questions_of
from remem_jax.data.records import Record, read_records
from remem_jax.data.token_cache import TokenCache
from remem_jax.errors import RememError
from remem_jax.paths import local
from remem_jax.tokenizer import Tokenizer

T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True)
class Example:
    """A question with its gold answers, and its documents as token chunks."""

    record: Record
    reading: Reading


def open_records(path: str | Path, documents: int | None = None) -> Sequence[Record]:
    """Questions of a file of records, or of a folder that `remem data build` made; a folder's are read when asked for.

    Args:
        path: `.jsonl` or `.jsonl.gz` (METHOD 9): each question with its own paragraphs; or the folder.
        documents: size of the contexts, for a folder only.

    Raises:
        RememError: no such file or folder, or a size that it does not have.
    """
    place = local(path)
    if place.is_dir():
        if documents is None:
            raise RememError(f"{path}: expected how many documents a context should have, found none: set documents")
        return load_contexts(place, documents)
    if documents is not None and not place.exists():
        raise RememError(f"{path}: no such file or folder: check the path")
    if documents is not None:
        raise RememError(
            f"documents: expected none with {path}, a file whose questions bring their own paragraphs, found "
            f"{documents}: leave it out, or give a folder made by remem data build"
        )
    return read_records(path)


def question_texts(records: Sequence[Record]) -> Iterable[tuple[str, str]]:
    """Id and question of each record; those of a built set are read without their contexts."""
    if isinstance(records, Contexts):
        return questions_of(records.folder)
    return ((record.id, record.question) for record in records)


def make_example(
    record: Record,
    tokenizer: Tokenizer,
    config: AgentConfig,
    blocks: PromptBlocks,
    context: int,
    cache: TokenCache | None = None,
) -> Example:
    """Tokenise a record's documents and cut them into chunks.

    Args:
        context: the model's limit in tokens.
        cache: keeps the ids of long documents for the next time.

    Raises:
        RememError: lengths that do not fit, with the question's name.
    """
    try:
        named = [(record.id, record.question)]
        reading = prepare(tokenizer, config, blocks, context, named, record.paragraphs, cache)[0]
    except RememError as error:
        raise RememError(f"question {record.id}: {error}") from None
    return Example(record, reading)


class Batches(Generic[T, E]):
    """Batch `b` of an endless stream of shuffled epochs, by random access: nothing to save but `b`.

    Batches asked for one after the other are made ahead by threads (tokenizers let go of Python's lock).
    """

    def __init__(
        self,
        elements: Sequence[T],
        size: int,
        seed: int,
        make: Callable[[T], E],
        *,
        workers: int = 1,
        shard: tuple[int, int] = (0, 1),
        lengths: Sequence[float] | None = None,
        window: int = 1,
    ):
        """Nothing is read before the first batch.

        Args:
            size: elements of a batch, of all processes together.
            make: called when an element is read; it may tokenise.
            workers: threads that make elements, of this batch and the next.
            shard: this process's index, and how many there are; process `p` of `P` has the `p`-th part of each batch.
            lengths: of each element, in any unit; batches are then of like lengths.
            window: batches among which elements are sorted by length; their order is shuffled again. 1: not at all.

        Raises:
            RememError: fewer elements than a batch holds, or a batch that the processes cannot divide.
        """
        if len(elements) < size:
            raise RememError(f"data.train: expected at least {size} lines, the size of a batch, found {len(elements)}")
        process, processes = shard
        if size % processes:
            raise RememError(f"a batch of {size} cannot be divided among {processes} processes: take a multiple")
        self.size, self.own, self.first = size, size // processes, process * (size // processes)
        self._elements, self._make, self._workers, self._seed = elements, make, workers, seed
        self._order = grain.MapDataset.source(range(len(elements))).seed(seed).shuffle().repeat(None)
        self._lengths = None if lengths is None or window == 1 else np.asarray(lengths)
        self._window = window
        self._window_order = functools.lru_cache(maxsize=2)(self._sorted_window)
        self._next, self._ahead = -1, iter(())

    def __getitem__(self, batch: int) -> list[E]:
        """This process's elements of a batch; none stands in it twice unless an epoch ends inside it."""
        if batch != self._next:
            self._ahead = self._from(batch)
        self._next = batch + 1
        return [next(self._ahead) for _ in range(self.own)]

    def _from(self, batch: int) -> Iterator[E]:
        """Every element of this process from a batch on, made ahead."""
        stream = grain.MapDataset.source(_Positions(self._element)).slice(slice(batch * self.own, None))
        options = grain.ReadOptions(num_threads=self._workers, prefetch_buffer_size=max(self.own, self._workers))
        return iter(stream.to_iter_dataset(options, allow_nones=True))

    def _element(self, i: int) -> E:
        """The `i`-th of all elements that this process reads."""
        batch, place = divmod(i, self.own)
        position = batch * self.size + self.first + place
        if self._lengths is None:
            return self._make(self._elements[self._index(position)])
        window, place = divmod(position, self.size * self._window)
        return self._make(self._elements[self._window_order(window)[place]])

    def _index(self, position: int) -> int:
        """The element at a place of the shuffled stream."""
        index = self._order[position]
        assert index is not None
        return index

    def _sorted_window(self, window: int) -> np.ndarray:
        """Elements of `window` batches: sorted by length, then whole batches shuffled."""
        assert self._lengths is not None
        count = self.size * self._window
        members = np.array([self._index(i) for i in range(window * count, (window + 1) * count)])
        members = members[np.argsort(self._lengths[members], kind="stable")].reshape(self._window, self.size)
        return np.random.default_rng([self._seed, window]).permutation(members).ravel()


@dataclass(frozen=True)
class _Positions(Sequence):
    """An endless source for Grain."""

    element: Callable[[int], object]

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, index: int) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.element(index)
