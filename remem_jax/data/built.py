"""Sets that `remem data build` made: opened, checked, and read as records of any of their sizes.

A folder holds `manifest.json` and two TFDS datasets, `questions` and `documents` (`data.tables`).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from remem_jax.data.records import Record
from remem_jax.errors import RememError
from remem_jax.paths import local

FORMAT = 1
MANIFEST = "manifest.json"


def load_contexts(folder: str | Path, documents: int) -> "Contexts":
    """A built set's questions, sorted by id, with their contexts of `documents` documents; each is read when asked for.

    Raises:
        RememError: no built set, a file of another size than it was made with, or a size that the set does not have.
    """
    folder = local(folder)
    manifest = read_manifest(folder)
    sizes = manifest["documents"]
    if documents not in sizes:
        known = ", ".join(map(str, sizes))
        raise RememError(f"{folder}: no contexts of {documents} documents: it has {known}; build a set that has them")
    return Contexts(folder, manifest["split"], documents)


class Contexts(Sequence[Record]):
    """Records by random access, lazily: `record.paragraphs` are the documents of the context, in reading order.

    A slice is a view, nothing is read. May be sent to other processes, and read by several threads.
    """

    def __init__(self, folder: Path, split: str, documents: int, rows: range | None = None):
        """`rows`: questions of the set that this view has; None: all."""
        from remem_jax.data.tables import DocumentTable, open_table

        self.folder, self.split, self.documents = folder, split, documents
        self._questions = open_table(folder / "questions", split)
        self._table = DocumentTable(folder / "documents", split)
        self._rows = range(len(self._questions)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> "Contexts": ...
    def __getitem__(self, index: int | slice) -> "Record | Contexts":
        if isinstance(index, slice):
            return Contexts(self.folder, self.split, self.documents, self._rows[index])
        try:
            row = self._rows[index]
        except IndexError:
            raise IndexError(f"question {index} of {len(self)}") from None  # what a loop over a sequence ends by
        try:
            question = self._questions[row]
            rows = question["documents"][question["joined"] < self.documents]
            paragraphs = tuple(self._table.read(rows.tolist()))
        except Exception as error:  # whatever ArrayRecord and TFDS make of bytes that are not theirs
            raise RememError(
                f"{self.folder}: question {row} cannot be read ({' '.join(str(error).split())}): "
                "see `remem data check` and build it again"
            ) from None
        return Record(
            id=question["id"].decode(),
            question=question["question"].decode(),
            answers=_texts(question["answers"]),
            supporting_titles=_texts(question["supporting_titles"]),
            paragraphs=paragraphs,
            type=question["type"].decode() or None,
            level=question["level"].decode() or None,
        )

    def __reduce__(self):
        return Contexts, (self.folder, self.split, self.documents, self._rows)


def questions_of(folder: str | Path) -> Iterator[tuple[str, str]]:
    """Id and question of every question of a built set."""
    from remem_jax.data.tables import open_table

    folder = local(folder)
    for row in open_table(folder / "questions", read_manifest(folder)["split"]):
        yield row["id"].decode(), row["question"].decode()


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What a built set says of itself; its files must be there and as long as it says.

    Raises:
        RememError: no built set, one of another format, or a file that is missing or of another length.
    """
    path = local(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        files, sizes, split = manifest["files"], manifest["documents"], manifest["split"]
        lengths = {name: file["bytes"] for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RememError(
            f"{folder}: expected a folder made by `remem data build`, found none with a readable {MANIFEST}"
        ) from None
    if manifest.get("format") != FORMAT or not isinstance(sizes, list) or not isinstance(split, str):
        raise RememError(f"{folder}: expected a set of format {FORMAT}, found {manifest.get('format')}: build it again")
    for name, length in lengths.items():
        file = path.parent / name
        found = file.stat().st_size if file.is_file() else None
        if found != length:
            what = "none" if found is None else f"{found}"
            raise RememError(f"{file}: expected {length} bytes, found {what}: build the set again")
    return manifest


def check_built(folder: str | Path) -> dict[str, Any]:
    """The manifest of a set, every byte of whose files was compared with it.

    Raises:
        RememError: as `read_manifest`, or a file whose bytes are not those that were written.
    """
    folder = local(folder)
    manifest = read_manifest(folder)
    for name, file in manifest["files"].items():
        if hash_file(folder / name) != file["sha256"]:
            raise RememError(f"{folder / name}: its bytes are not those that were written: build the set again")
    return manifest


def hash_file(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    try:
        with local(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise RememError(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise RememError(f"{path}: cannot be read ({error.strerror})") from None


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value.decode() for value in np.asarray(values).tolist())
