"""How long contexts are: characters, words and tokens of their rendered form, from one count a document.

A context of thousands of documents is so measured without being rendered.

Axes: `D` documents of the table, `n` documents of a context.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from remem_jax.data.documents import Document
from remem_jax.tokenizer import Tokenizer


@dataclass(frozen=True)
class Lengths:
    """Counts by unit ("characters", "words", and "tokens" where a tokenizer was given).

    documents: [D] of each document's title and text. headers: [n + 1] of the lines "Document 1:" ... "Document n:".
    shown: [D] false for a document without text, which a prompt leaves out.
    """

    documents: dict[str, np.ndarray]
    headers: dict[str, np.ndarray]
    shown: np.ndarray

    def of(self, rows: np.ndarray) -> dict[str, int]:
        """Lengths of the context of these documents. Characters and words are exact; tokens are the sum of pieces."""
        rows = rows[self.shown[rows]]
        apart = {"characters": 2 * max(len(rows) - 1, 0)}  # line breaks between two documents
        return {
            unit: int(counts[rows].sum() + self.headers[unit][len(rows)]) + apart.get(unit, 0)
            for unit, counts in self.documents.items()
        }


def measure(documents: Sequence[Document], largest: int, tokenizer: Tokenizer | None, workers: int) -> Lengths:
    """Count every document once; `largest` is the most documents that a context has."""
    blocks = [f"{document.title}\n" + document.text.strip("\n") for document in documents]
    headers = [f"Document {i}:\n" for i in range(1, largest + 1)]
    counts = {"characters": _array(map(len, blocks)), "words": _array(len(block.split()) for block in blocks)}
    of_headers = {"characters": _array(map(len, headers)), "words": np.full(largest, 2)}
    if tokenizer is not None:
        with ThreadPoolExecutor(workers) as pool:  # tokenizers let go of Python's lock
            counts["tokens"] = _array(pool.map(lambda text: len(tokenizer.encode(text + "\n\n")), blocks))
            of_headers["tokens"] = _array(pool.map(lambda text: len(tokenizer.encode(text)), headers))
    summed = {unit: np.concatenate([[0], np.cumsum(values)]) for unit, values in of_headers.items()}
    return Lengths(counts, summed, _array(bool(document.text.strip()) for document in documents).astype(bool))


def _array(values) -> np.ndarray:
    return np.fromiter(values, np.int64)


class Summary:
    """Mean, least and most of each unit, by the contexts' size; integers till the end, so that order is nothing."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, list[int]]] = {}

    def add(self, size: int, lengths: dict[str, int]) -> None:
        """One context's lengths."""
        units = self._seen.setdefault(size, {})
        for unit, value in lengths.items():
            count, total, least, most = units.get(unit, (0, 0, value, value))
            units[unit] = [count + 1, total + value, min(least, value), max(most, value)]

    def as_json(self) -> dict[str, dict[str, dict[str, float]]]:
        """By size and unit."""
        return {
            str(size): {
                unit: {"mean": round(total / count, 1), "min": least, "max": most}
                for unit, (count, total, least, most) in units.items()
            }
            for size, units in sorted(self._seen.items())
        }
