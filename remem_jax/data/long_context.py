"""Long contexts: a question's own paragraphs among distractors of a corpus, placed by the question's id (METHOD 9).

A smaller context is a subsequence of every larger one of the same question, corpus and seed. Run as a program
(`python -m remem_jax.data.long_context RECORDS --corpus FILE --documents N --question ID --out FILE`) it writes one.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from remem_jax.data.documents import Document, document_of, json_lines
from remem_jax.data.records import Record, read_records
from remem_jax.errors import RememError

ORDERS = ("random", "reverse")
DISTANT_TYPES = ("compositional", "inference")


def read_corpus(*paths: str | Path) -> list[Document]:
    """Paragraphs of `.jsonl` or `.jsonl.gz` files, `{title, text}` a line; of equal texts the first is kept."""
    distinct: dict[str, Document] = {}
    for path in paths:
        for place, value in json_lines(path):
            document = document_of(value, place)
            distinct.setdefault(document.text, document)
    return list(distinct.values())


def build_context(
    record: Record,
    corpus: Sequence[Document],
    documents: int,
    *,
    order: str = "random",
    min_gap: float = 0.5,
    seed: int = 0,
) -> list[Document]:
    """A question's own paragraphs and distractors, `documents` in all.

      order: "random", every document at a place of its own chance; "reverse", the distant-evidence variant: the second
    XX
      Raises RememError for too small a corpus, for fewer documents than the question's own, and for a question that
      the distant variant cannot take (`not_distant` says why).
    """
    if order not in ORDERS:
        raise RememError(f"order must be one of {', '.join(ORDERS)}, found {order!r}")
    if order == "reverse" and (why := not_distant(record)):
        raise RememError(f"question {record.id}: not eligible for order reverse: {why}")
    if not 0 <= min_gap < 1:
        raise RememError(f"min_gap must be a share of the documents, from 0 to below 1, found {min_gap}")
    own = list(record.paragraphs)
    if documents < len(own):
        raise RememError(
            f"question {record.id}: {documents} documents asked for, it has {len(own)} of its own: ask more"
        )
    chance = random.Random(hashlib.sha256(f"{seed}:{record.id}".encode()).digest())
    chosen = own + _distractors(record, corpus, documents - len(own), chance)
    # One number a document, drawn own paragraphs first and then in the order of choice: a larger context only adds.
    places = random.Random(hashlib.sha256(f"{seed}:{record.id}:places".encode()).digest())
    if order == "reverse":
        return _in_reverse(record, chosen, min_gap, places)
    keys = [places.random() for _ in chosen]
    return [chosen[i] for i in sorted(range(len(chosen)), key=keys.__getitem__)]


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


def _distractors(record: Record, corpus: Sequence[Document], count: int, chance: random.Random) -> list[Document]:
    """The first `count` of the corpus in the question's own chance order, none with a title of the question."""
    taken = {title.casefold() for title in record.supporting_titles}
    taken |= {paragraph.title.casefold() for paragraph in record.paragraphs}
    keys = [chance.random() for _ in corpus]
    free = [i for i, document in enumerate(corpus) if document.title.casefold() not in taken]
    if count > len(free):
        most = len(free) + len(record.paragraphs)
        raise RememError(
            f"question {record.id}: {count + len(record.paragraphs)} documents asked for, its paragraphs and the "
            f"corpus give {most}: ask fewer, or add a corpus"
        )
    free.sort(key=keys.__getitem__)
    return [corpus[i] for i in free[:count]]


def _in_reverse(record: Record, chosen: list[Document], min_gap: float, places: random.Random) -> list[Document]:
    """Second evidence document before the first, their places more than `min_gap` of all documents apart.

    Every other document goes before, between or behind the two by chance, but between them where the gap of the
    context so far would not do: then the gap holds at every size, and a larger context still only adds documents.
    """
    first, second = record.supporting_titles
    evidence = {d.title: d for d in chosen[: len(record.paragraphs)] if d.title in (first, second)}
    others = [d for i, d in enumerate(chosen) if i >= len(record.paragraphs) or d.title not in evidence]
    share_between = places.uniform(min_gap, 1)
    share_before = places.random() * (1 - share_between)
    before, between, behind = [], [], []
    for total, document in enumerate(others, 3):
        where, key = places.random(), places.random()
        if len(between) + 1 <= min_gap * total or where < share_between:
            between.append((key, document))
        elif where < share_between + share_before:
            before.append((key, document))
        else:
            behind.append((key, document))
    if len(between) + 1 <= min_gap * len(chosen):
        raise RememError(
            f"question {record.id}: {len(chosen)} documents cannot hold a gap of more than {min_gap} of them: ask more"
        )
    before, between, behind = (
        [d for _, d in sorted(part, key=lambda pair: pair[0])] for part in (before, between, behind)
    )
    return [*before, evidence[second], *between, evidence[first], *behind]


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
