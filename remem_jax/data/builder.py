"""`remem data build`: a folder of questions with contexts of many sizes, the same bytes for the same input and seed.

Texts are stored once, contexts as row numbers, and the folder appears whole or not at all.

Axes: `n` documents of a question's largest context.
"""

import dataclasses
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remem_jax import __version__
from remem_jax.data.built import FORMAT, MANIFEST, hash_file, read_manifest
from remem_jax.data.documents import Document
from remem_jax.data.lengths import Lengths, Summary, measure
from remem_jax.data.long_context import check_order, place, read_corpus
from remem_jax.data.records import Record
from remem_jax.data.selection import Selected, select
from remem_jax.errors import RememError
from remem_jax.locks import lock_folder
from remem_jax.paths import expanded, local, only_here
from remem_jax.tokenizer import Tokenizer, load_tokenizer

BLOCK = 64  # questions a worker may be ahead of the writer
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SetOptions:
    """What a set is to hold; checked when made."""

    documents: tuple[int, ...]
    """Documents of the contexts, such as (50, 100, 200); sorted, each once."""
    split: str
    """Name of the split, letters, digits and _."""
    order: str = "random"
    """`random`, or `reverse`: the distant-evidence variant."""
    min_gap: float = 0.5
    """Share of all documents that evidence is more than apart, for order `reverse`."""
    questions: int | None = None
    """How many questions, chosen by seed and id; None: all."""
    level: str | None = None
    """Only questions of this level, such as HotpotQA's hard; None: all."""
    seed: int = 0
    """Of places, distractors and the choice of questions."""
    kind: str | None = None
    """Kind of the source files; None: told from their fields."""
    on_error: str = "stop"
    """`stop` at a question that cannot be read, or `skip` it and list it."""

    def __post_init__(self) -> None:
        sizes = sorted(set(self.documents))
        if not sizes or sizes[0] < 1:
            raise RememError(f"documents must be numbers from 1, found {list(self.documents)}")
        object.__setattr__(self, "documents", tuple(sizes))
        if not (self.split.isascii() and self.split.isidentifier()) or self.split == "all":
            raise RememError(f"split must be a name of letters, digits and _, and not all, found {self.split!r}")
        if self.questions is not None and self.questions < 1:
            raise RememError(f"questions must be at least 1, found {self.questions}")
        if not 0 <= self.seed < 2**32:
            raise RememError(f"seed must be from 0 to 4294967295, found {self.seed}")
        check_order(self.order, self.min_gap)


@dataclass(frozen=True)
class BuiltSet:
    """A folder's manifest, and whether this call wrote it or found it there, made from the same input."""

    manifest: dict[str, Any]
    written: bool


def build_set(
    sources: Sequence[str | Path],
    corpus: Sequence[str | Path],
    out: str | Path,
    options: SetOptions,
    *,
    exclude: Sequence[str | Path] = (),
    tokenizer: str | Path | None = None,
    workers: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> BuiltSet:
    """Build a set, or find that the folder holds it already.

    Args:
        sources: question files of any kind that `read_source` knows.
        corpus: files of distractors, `{title, text}` a line. Their order counts, as places in it are drawn.
        out: new or empty folder, or one with the same set.
        exclude: question files and built sets; a question with an id or a text of theirs is left out.
        tokenizer: model whose tokens are counted; None: characters and words only.
        workers: processes, started by spawn; the files are the same for any number.
        progress: told what is being done, how much of it, and of how much.

    Raises:
        RememError: input that cannot be read, too small a corpus, or a folder that holds something else.
    """
    only_here(out, "out")
    out = Path(os.path.abspath(expanded(str(out))))
    if workers < 1:
        raise RememError(f"workers must be at least 1, found {workers}")
    if not sources or not corpus:
        raise RememError("expected at least one file of questions and one of a corpus")
    counted = load_tokenizer(tokenizer) if tokenizer is not None else None
    inputs: dict[str, Any] = {
        "sources": [_input(path) for path in sources],
        "corpus": [_input(path) for path in corpus],
        "exclude": [_input(path) for path in exclude],
        "tokenizer": None if counted is None else counted.fingerprint,
    }
    made_from = _digest({"format": FORMAT, "options": dataclasses.asdict(options), "inputs": inputs})
    if (found := _already_there(out, made_from)) is not None:
        return BuiltSet(found, written=False)
    chosen = select(
        sources,
        exclude=exclude,
        order=options.order,
        questions=options.questions,
        level=options.level,
        seed=options.seed,
        kind=options.kind,
        on_error=options.on_error,
    )
    for file, kind in zip(inputs["sources"], chosen.kinds, strict=True):
        file["kind"] = kind
    pool = read_corpus(*corpus)
    with _appearing(out) as part:
        head = {"format": FORMAT, "remem_jax": __version__, **dataclasses.asdict(options), "made_from": made_from}
        body = _write_tables(part, chosen, pool, options, counted, workers, progress)
        manifest = _write_manifest(part, head | body | {"inputs": inputs})
    return BuiltSet(manifest, written=True)


def _write_manifest(part: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest last, with the hash of every other file; returns it as it reads back."""
    files = {
        path.relative_to(part).as_posix(): {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in sorted(part.rglob("*"))
        if path.is_file()
    }
    text = json.dumps(about | {"files": files}, indent=1, ensure_ascii=False) + "\n"
    (part / MANIFEST).write_text(text, encoding="utf-8", newline="\n")
    return json.loads(text)


def _write_tables(
    part: Path,
    chosen: Selected,
    pool: list[Document],
    options: SetOptions,
    tokenizer: Tokenizer | None,
    workers: int,
    progress: Progress,
) -> dict[str, Any]:
    """Write both tables; returns the manifest's counts and lengths."""
    from remem_jax.data.tables import Documents, Questions, write_table

    documents, own = _numbered(pool, chosen.records)
    progress("documents", 0, len(documents))
    write_table(Documents, part, options.split, ({"title": d.title, "text": d.text} for d in documents))
    if tokenizer is not None:
        progress("counting tokens", 0, len(documents))
    most = len(pool) + max(len(record.paragraphs) for record in chosen.records)  # what is asked for may be any number
    lengths = measure(documents, min(options.documents[-1], most), tokenizer, workers)
    summary = Summary()
    titles = [document.title.casefold() for document in pool]
    rows = _rows(chosen.records, own, titles, options, workers, lengths, summary, progress)
    write_table(Questions, part, options.split, rows)
    unlike = len(documents) - len(pool)
    counts = {
        "questions": len(chosen.records),
        "documents": len(documents),
        "corpus_documents": len(pool),
        "own_documents": sum(map(len, own)),
        "own_documents_not_in_corpus": unlike,
        "skipped": len(chosen.skipped),
        "excluded": len(chosen.excluded),
        "not_eligible": len(chosen.not_eligible),
        "other_level": chosen.other_level,
    }
    left_out = {"skipped": chosen.skipped, "excluded": chosen.excluded, "not_eligible": chosen.not_eligible}
    return {"counts": counts, "lengths": summary.as_json(), "left_out": left_out}


def _rows(
    records: list[Record],
    own: list[list[int]],
    titles: list[str],
    options: SetOptions,
    workers: int,
    lengths: Lengths,
    summary: Summary,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    """Rows of the table of questions, as they are placed."""
    placed = _all_placed(records, titles, options, workers)
    for done, (record, rows, (distractors, joined)) in enumerate(zip(records, own, placed, strict=True), 1):
        documents = np.concatenate([np.array(rows, np.int32), distractors])[joined]
        for size in options.documents:
            summary.add(size, lengths.of(documents[joined < size]))
        yield {
            "id": record.id,
            "question": record.question,
            "answers": list(record.answers),
            "supporting_titles": list(record.supporting_titles),
            "type": record.type or "",
            "level": record.level or "",
            "own": np.array(rows, np.int32),
            "documents": documents,
            "joined": joined,
        }
        progress("questions", done, len(records))


def _numbered(pool: list[Document], records: list[Record]) -> tuple[list[Document], list[list[int]]]:
    """Distinct documents, the corpus first, so that a place in it is a row; and the rows of each record's own."""
    documents = list(pool)
    rows: dict[Document, int] = {}
    for row, document in enumerate(pool):
        rows.setdefault(document, row)
    own = []
    for record in records:
        for document in record.paragraphs:
            if document not in rows:
                rows[document] = len(documents)
                documents.append(document)
        own.append([rows[document] for document in record.paragraphs])
    return documents, own


Placed = tuple[np.ndarray, np.ndarray]
_shared: tuple[list[str], SetOptions]  # of a worker


def _all_placed(records: list[Record], titles: list[str], options: SetOptions, workers: int) -> Iterator[Placed]:
    """Distractors and places of every record, in order; a block at a time, so that results never pile up."""
    if workers == 1 or len(records) == 1:
        for record in records:
            yield _placed(record, titles, options)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(records)), _start_worker, (titles, options)) as pool:
        for first in range(0, len(records), BLOCK * workers):
            block = [_without_texts(record) for record in records[first : first + BLOCK * workers]]
            yield from pool.imap(_place_in_worker, block, chunksize=4)


def _placed(record: Record, titles: list[str], options: SetOptions) -> Placed:
    placed = place(record, titles, options.documents, order=options.order, min_gap=options.min_gap, seed=options.seed)
    return np.array(placed.distractors, np.int32), np.array(placed.joined, np.int32)


def _start_worker(titles: list[str], options: SetOptions) -> None:
    global _shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the main process, which ends this one
    _shared = titles, options


def _place_in_worker(record: Record) -> Placed:
    return _placed(record, *_shared)


def _without_texts(record: Record) -> Record:
    """What placing needs of a record."""
    return dataclasses.replace(record, paragraphs=tuple(Document(d.title, "") for d in record.paragraphs))


def _input(path: str | Path) -> dict[str, Any]:
    """An input by its bytes, not by its name or place; a built set by its manifest, which has hashes of the rest."""
    path = local(path)
    if path.is_dir():
        read_manifest(path)
        path = path / MANIFEST
    return {"bytes": path.stat().st_size if path.is_file() else 0, "sha256": hash_file(path)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _already_there(out: Path, made_from: str) -> dict[str, Any] | None:
    """The manifest of a folder made from the same input; None where there is nothing yet."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if (out / MANIFEST).is_file():
        manifest = read_manifest(out)
        if manifest.get("made_from") == made_from:
            return manifest
        raise RememError(f"{out}: holds a set made from other input or options: remove it, or name another folder")
    raise RememError(f"{out}: expected a new or empty folder, found something else: name another")


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that becomes `out` at the end. What a killed build left there is removed."""
    part = out.with_name(f".{out.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(part, f"{out}: another build is writing it: wait for that one, or name another folder")
    try:
        try:
            for left in part.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield part
            part.rename(out)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    finally:
        os.close(lock)
