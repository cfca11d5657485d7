"""Long contexts: a question's own paragraphs among distractors of a corpus, placed by the question's id (METHOD 9).

A smaller context is a subsequence of every larger one of the same question, corpus and seed. Run as a program
(`python -m remem_jax.data.long_context RECORDS --corpus FILE --documents N --question ID --out FILE`) it writes one.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remem_jax.data.documents import Document, document_of, json_lines
from remem_jax.data.records import Record, read_records
from remem_jax.data.source_files import source_items
from remem_jax.data.sources import read_source
from remem_jax.errors import RememError

ORDERS = ("random", "reverse")
DISTANT_TYPES = ("compositional", "inference")


def read_corpus(*paths: str | Path) -> list[Document]:
    """Paragraphs of `.jsonl` or `.jsonl.gz` files, `{title, text}` a line; of equal texts the first is kept.

    A file of questions (any kind of `data.sources`) stands for their paragraphs; questions that cannot be read are
    passed over.
    """
    distinct: dict[str, Document] = {}
    for path in paths:
        document = None
        for document in _paragraphs_of(path):
            distinct.setdefault(document.text, document)
        if document is None:
            raise RememError(f"{path}: expected distractors, a {{title, text}} a line, found an empty file")
    return list(distinct.values())


def _paragraphs_of(path: str | Path) -> Iterator[Document]:
    first = next((value for _, value in source_items(path) if isinstance(value, dict)), {})
    if "text" in first or not first:
        for place, value in json_lines(path):
            yield document_of(value, place)
    else:
        for record in read_source(path, on_error="skip").records:
            yield from record.paragraphs


@dataclass(frozen=True)
class Placement:
    """Which documents stand in a question's largest context, and where.

    distractors: indices into the corpus, in the order of choice. joined: [documents], in reading order; a value below
    the number of own paragraphs is that paragraph, the values after them are the distractors. The context of `n`
    documents is the subsequence of values below `n`.
    """

    distractors: list[int]
    joined: list[int]


def build_context(
    record: Record,
    corpus: Sequence[Document],
    documents: int,
    *,
    order: str = "random",
    min_gap: float = 0.5,
    seed: int = 0,
) -> list[Document]:
    """A question's own paragraphs and distractors, `documents` in all, in reading order.

    Args:
        order: `random`, every document at a place of its own chance; `reverse`, the distant-evidence variant: the
            second evidence document stands before the first, their places more than `min_gap` of all documents apart.
        min_gap: a share of the documents, for order `reverse`.

    Raises:
        RememError: too small a corpus, fewer documents than the question's own, a gap that so few documents cannot
            hold, or a question that the distant variant cannot take (`not_distant` says why).
    """
    titles = [document.title.casefold() for document in corpus]
    placed = place(record, titles, [documents], order=order, min_gap=min_gap, seed=seed)
    chosen = [*record.paragraphs, *(corpus[i] for i in placed.distractors)]
    return [chosen[i] for i in placed.joined]


def place(
    record: Record,
    titles: Sequence[str],
    sizes: Sequence[int],
    *,
    order: str = "random",
    min_gap: float = 0.5,
    seed: int = 0,
) -> Placement:
    """The largest of `sizes` contexts, which holds the smaller ones; texts are not looked at.

    Args:
        titles: of the corpus, casefolded.
        sizes: documents of the contexts wanted.

    Raises:
        RememError: as `build_context`, for any of the sizes.
    """
    check_order(order, min_gap)
    if order == "reverse" and (why := not_distant(record)):
        raise RememError(f"question {record.id}: not eligible for order reverse: {why}")
    own, smallest, largest = len(record.paragraphs), min(sizes), max(sizes)
    if smallest < own:
        raise RememError(f"question {record.id}: {smallest} documents asked for, it has {own} of its own: ask more")
    chance = random.Random(hashlib.sha256(f"{seed}:{record.id}".encode()).digest())
    distractors = _distractors(record, titles, largest - own, chance)
    # Drawn own paragraphs first and then in the order of choice: a larger context only adds.
    places = random.Random(hashlib.sha256(f"{seed}:{record.id}:places".encode()).digest())
    if order == "reverse":
        return Placement(distractors, _in_reverse(record, smallest, largest, min_gap, places))
    keys = [places.random() for _ in range(largest)]
    return Placement(distractors, sorted(range(largest), key=keys.__getitem__))


def check_order(order: str, min_gap: float) -> None:
    """Refuse an order that there is none of, and a gap that is no share."""
    if order not in ORDERS:
        raise RememError(f"order must be one of {', '.join(ORDERS)}, found {order!r}")
    if not 0 <= min_gap < 1:
        raise RememError(f"min_gap must be a share of the documents, from 0 to below 1, found {min_gap}")


def not_distant(record: Record) -> str:
    """Why a question cannot be built with its evidence far apart in reverse; "" if it can."""
    if record.type not in DISTANT_TYPES:
        return f"its type must be {' or '.join(DISTANT_TYPES)}, found {record.type}"
    if len(set(record.supporting_titles)) != 2 or len(record.supporting_titles) != 2:
        return f"it must have two evidence documents, found {list(record.supporting_titles)}"
    for title in record.supporting_titles:
        named = sum(paragraph.title == title for paragraph in record.paragraphs)
        if named != 1:
            return f"the title {title!r} must name one paragraph, found {named}"
    return ""


def _distractors(record: Record, titles: Sequence[str], count: int, chance: random.Random) -> list[int]:
    """The first `count` of the corpus in the question's own chance order, none with a title of the question."""
    taken = {title.casefold() for title in record.supporting_titles}
    taken |= {paragraph.title.casefold() for paragraph in record.paragraphs}
    keys = np.array([chance.random() for _ in titles])
    free = [i for i in np.argsort(keys, kind="stable").tolist() if titles[i] not in taken]
    if count > len(free):
        own = len(record.paragraphs)
        raise RememError(
            f"question {record.id}: {count + own} documents asked for, its paragraphs and the corpus give "
            f"{len(free) + own}: ask fewer, or add a corpus"
        )
    return free[:count]


def _in_reverse(record: Record, smallest: int, largest: int, min_gap: float, places: random.Random) -> list[int]:
    """Second evidence document before the first, their places more than `min_gap` of all documents apart.

    Every other document goes before, between or behind the two by chance, but between them where the gap of the
    context so far would not do: then the gap holds at every size, and a larger context still only adds documents.
    """
    own = [paragraph.title for paragraph in record.paragraphs]
    first, second = (own.index(title) for title in record.supporting_titles)
    share_between = places.uniform(min_gap, 1)
    share_before = places.random() * (1 - share_between)
    before, between, behind = [], [], []
    for total, i in enumerate((i for i in range(largest) if i not in (first, second)), 3):
        where, key = places.random(), places.random()
        if len(between) + 1 <= min_gap * total or where < share_between:
            between.append((key, i))
        elif where < share_between + share_before:
            before.append((key, i))
        else:
            behind.append((key, i))
    # A gap that holds at one size holds at every larger one.
    if sum(i < smallest for _, i in between) + 1 <= min_gap * smallest:
        raise RememError(
            f"question {record.id}: {smallest} documents cannot hold a gap of more than {min_gap} of them: ask more"
        )
    before, between, behind = ([i for _, i in sorted(part)] for part in (before, between, behind))
    return [*before, second, *between, first, *behind]


def _find(records: list[Record], wanted: str, path: str) -> Record:
    """A record by its id, else by its index from 0."""
    for record in records:
        if record.id == wanted:
            return record
    if wanted.isdecimal() and int(wanted) < len(records):
        return records[int(wanted)]
    raise RememError(f"{path}: expected an id or an index below {len(records)}, found {wanted!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one context as JSON lines and print the question; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m remem_jax.data.long_context", description="Write one long context."
    )
    parser.add_argument("records", help="questions, .jsonl")
    parser.add_argument("--corpus", required=True, nargs="+", help="distractors, .jsonl or .jsonl.gz")
    parser.add_argument("--documents", required=True, type=int, help="documents of the context")
    parser.add_argument("--question", required=True, help="id, or index from 0")
    parser.add_argument("--out", required=True, help="file to write, .jsonl of {title, text}")
    parser.add_argument("--order", default="random", choices=ORDERS, help="reverse: evidence far apart, backwards")
    parser.add_argument("--seed", default=0, type=int)
    given = parser.parse_args(arguments)
    try:
        record = _find(read_records(given.records), given.question, given.records)
        corpus = read_corpus(*given.corpus)
        context = build_context(record, corpus, given.documents, order=given.order, seed=given.seed)
        lines = (json.dumps({"title": d.title, "text": d.text}, ensure_ascii=False) + "\n" for d in context)
        try:
            Path(given.out).write_text("".join(lines), encoding="utf-8", newline="\n")
        except OSError as error:
            raise RememError(f"{given.out}: cannot be written ({error.strerror})") from None
    except RememError as error:
        print(f"remem: error: {error}", file=sys.stderr)
        return 2
    print(record.question)
    return 0


if __name__ == "__main__":
    sys.exit(main())
