"""A built set's two tables, questions and documents, as TFDS datasets in ArrayRecord files; TensorFlow is not needed.

Rows keep the order in which they are written, so that a row's number is its name.
"""

import contextlib
import io
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.writer import ExampleWriter
from tensorflow_datasets.proto import tf_example_pb2

from remem_jax.data.documents import Document

_Example = tf_example_pb2.Example  # pyright: ignore[reportAttributeAccessIssue] (made when imported)
TEXT, TEXTS = tfds.features.Text(), tfds.features.Sequence(tfds.features.Text())
NUMBERS = tfds.features.Tensor(shape=(None,), dtype=np.int32)


class _Table(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Rows in the order given. TFDS makes a builder of folder and format alone; `rows` and `split` are set after."""

    VERSION = tfds.core.Version("1.0.0")
    code_path = pkg_dir_path = None  # no checksums or metadata lie beside this file: TFDS need not look for them
    about: str
    columns: dict[str, Any]
    split: str
    rows: Iterable[dict[str, Any]]

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(self.columns)
        return tfds.core.DatasetInfo(builder=self, description=self.about, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {self.split: self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(self.rows)

    def _example_writer(self) -> ExampleWriter:
        assert self.info.file_format is not None
        return _SortedWriter(self.info.file_format)


class _SortedWriter(ExampleWriter):
    """Columns by name. TFDS leaves them in the order of a hash table whose seed changes with the process."""

    def write(self, path, examples):
        return super().write(path, ((key, _sorted(example)) for key, example in examples))


def _sorted(example: bytes) -> bytes:
    return _Example.FromString(example).SerializeToString(deterministic=True)


class Questions(_Table, skip_registration=True):
    """One row a question, sorted by id."""

    name = "questions"
    about = (
        "Questions, and which documents their contexts hold. own: rows of the table documents that hold the "
        "question's own paragraphs. documents: rows of the largest context, in reading order. The context of n "
        "documents is documents[joined < n]. type and level are empty where the source has none."
    )
    columns = {  # noqa: RUF012 (TFDS reads it only)
        "id": TEXT,
        "question": TEXT,
        "answers": TEXTS,
        "supporting_titles": TEXTS,
        "type": TEXT,
        "level": TEXT,
        "own": NUMBERS,
        "documents": NUMBERS,
        "joined": NUMBERS,
    }


class Documents(_Table, skip_registration=True):
    """One row a distinct document: the corpus in its order, then own paragraphs that it lacks."""

    name = "documents"
    about = "Distinct documents of all contexts; the table questions names them by row."
    columns = {"title": TEXT, "text": TEXT}  # noqa: RUF012


def write_table(table: type[_Table], folder: Path, split: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows to `folder/<name of the table>`."""
    inside = folder / "tfds"
    builder = table(data_dir=inside, file_format="array_record")
    builder.split, builder.rows = split, rows
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # it tells where it writes, which is not where the set will be
        builder.download_and_prepare()
    Path(builder.data_dir).rename(folder / table.name)
    shutil.rmtree(inside)


def open_table(folder: Path, split: str) -> Sequence[dict[str, Any]]:
    """Rows by random access, texts as bytes."""
    builder: Any = tfds.builder_from_directory(folder)
    return builder.as_data_source(split=split)


class DocumentTable:
    """Documents by row, read in one go and taken apart without TFDS's features, which take three times as long."""

    def __init__(self, folder: Path, split: str):
        builder: Any = tfds.builder_from_directory(folder)
        self._rows = builder.as_data_source(split=split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Sequence[int]) -> list[Document]:
        """The documents of these rows, in this order."""
        return [_document(row) for row in self._rows.__getitems__(rows)]


def _document(row: bytes) -> Document:
    columns = _Example.FromString(row).features.feature
    title, text = (columns[name].bytes_list.value[0].decode() for name in ("title", "text"))
    return Document(title, text)
