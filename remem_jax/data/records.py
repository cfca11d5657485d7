"""Questions with their gold answers and paragraphs (METHOD 9), read from JSON lines and checked field by field."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remem_jax.data.documents import (
    Document,
    check_string,
    json_lines,
    list_field,
    paragraphs_field,
    string_field,
)
from remem_jax.errors import RememError


@dataclass(frozen=True)
class Record:
    """One question.

    answers: gold answers, at least one. supporting_titles: titles of the evidence paragraphs, in reasoning order where
    the source has one. paragraphs: the question's own documents. type, level: the source's labels, None where it has
    none.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    supporting_titles: tuple[str, ...]
    paragraphs: tuple[Document, ...]
    type: str | None = None
    level: str | None = None


def read_records(path: str | Path) -> list[Record]:
    """Every record of a `.jsonl` or `.jsonl.gz` file, in its order.

    Raises RememError with file, line and field for whatever is missing or of the wrong kind, and for an id that
    stands there twice. `answers` may be one bare string, which is one answer; fields not of METHOD 9 are passed over.
    """
    records: list[Record] = []
    places: dict[str, str] = {}
    for place, value in json_lines(path):
        record = record_of(value, place)
        if record.id in places:
            raise RememError(
                f"{place}: field 'id' is {record.id!r} again, first at {places[record.id]}: make it unique"
            )
        places[record.id] = place
        records.append(record)
    if not records:
        raise RememError(f"{path}: expected one question a line, found none")
    return records


def record_of(value: dict[str, Any], place: str) -> Record:
    """A JSON object as a record; `place` names it in an error."""
    return Record(
        id=string_field(value, "id", place),
        question=string_field(value, "question", place),
        answers=_answers(value, place),
        supporting_titles=_strings(value, "supporting_titles", place),
        paragraphs=tuple(paragraphs_field(value, place)),
        type=_label(value, "type", place),
        level=_label(value, "level", place),
    )


def _answers(value: dict[str, Any], place: str) -> tuple[str, ...]:
    if isinstance(value.get("answers"), str):
        return (string_field(value, "answers", place),)
    answers = _strings(value, "answers", place)
    if not answers:
        raise RememError(f"{place}: field 'answers' must hold at least one answer, found none")
    return answers


def _strings(value: dict[str, Any], name: str, place: str) -> tuple[str, ...]:
    items = list_field(value, name, place)
    return tuple(check_string(item, f"{place}: field '{name}[{i}]'") for i, item in enumerate(items))


def _label(value: dict[str, Any], name: str, place: str) -> str | None:
    return None if value.get(name) is None else string_field(value, name, place)
