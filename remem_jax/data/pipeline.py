"""Questions for training and evaluation: records tokenised into chunks, and a Grain dataset of batches of them.

The order is a function of seed and position alone, so that a position is all a checkpoint needs to go on.

Axes: `N` questions of a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import grain.python as grain

from remem_jax.agent.prompts import PromptBlocks
from remem_jax.agent.reading import Reading, prepare
from remem_jax.config import AgentConfig
from remem_jax.data.records import Record
from remem_jax.errors import RememError
from remem_jax.tokenizer import Tokenizer

T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True)
class Example:
    """A question with its gold answers, and its documents as token chunks."""

    record: Record
    reading: Reading


def make_example(
    record: Record, tokenizer: Tokenizer, config: AgentConfig, blocks: PromptBlocks, context: int
) -> Example:
    """Tokenise a record's documents and cut them into chunks; `context` is the model's limit in tokens.

    Raises RememError that names the question where its lengths do not fit.
    """
    try:
        named = [(record.id, record.question)]
        reading = prepare(tokenizer, config, blocks, context, named, record.paragraphs)[0]
    except RememError as error:
        raise RememError(f"question {record.id}: {error}") from None
    return Example(record, reading)


class Batches(Generic[T, E]):
    """Batch `b` of an endless stream of shuffled epochs, by random access: nothing to save but `b`."""

    def __init__(self, elements: Sequence[T], size: int, seed: int, make: Callable[[T], E]):
        """`make` is called when an element is read; it may tokenise.

        Raises RememError when there are fewer elements than a batch holds.
        """
        if len(elements) < size:
            raise RememError(f"data.train: expected at least {size} lines, the size of a batch, found {len(elements)}")
        self.size = size
        self._stream = grain.MapDataset.source(list(elements)).seed(seed).shuffle().repeat(None).map(make)

    def __getitem__(self, batch: int) -> list[E]:
        """The `N` elements of a batch; none stands in it twice unless an epoch ends inside it."""
        first = batch * self.size
        return [self._stream[i] for i in range(first, first + self.size)]  # pyright: ignore[reportReturnType]
