"""Readers for published question sets: HotpotQA, 2WikiMultiHopQA, MuSiQue and MemAgent's, and our own JSON lines.

Each becomes the record of METHOD 9; what does not fit is named by file, line (or item) and field.
"""

import html
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remem_jax.data.documents import Document, check_string, kind_of_value, list_field, string_field
from remem_jax.data.records import Record, record_of
from remem_jax.data.source_files import source_items
from remem_jax.errors import RememError

# Each kind with the fields that mark it.
MARKS = {
    "records": "answers, supporting_titles, paragraphs [{title, text}]",
    "hotpotqa": "answer, supporting_facts, context [[title, [sentence]]]",
    "2wikimultihopqa": "as hotpotqa, and evidences",
    "musique": "answer, paragraphs [{title, paragraph_text}], question_decomposition",
    "memagent": "context (one text), and input or prompt, and answers or reward_model",
}
KINDS = tuple(MARKS)
# The field from which a kind has its evidence titles.
EVIDENCE = {"records": "supporting_titles", "musique": "question_decomposition"}

# Soft hyphen, zero-width space, direction marks and embeddings, byte order mark.
_INVISIBLE = re.compile("[\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
# Line breaks, tabs and runs of spaces. No-break and other spaces of their own width stay as the source has them.
_BREAKS = "\t\n\r\v\f\x1c-\x1f\x85\u2028\u2029"
_SPACES = re.compile(f"[ {_BREAKS}]{{2,}}|[{_BREAKS}]")


@dataclass(frozen=True)
class Source:
    """What a file holds: its questions in its order, their kind, and a line for every one that was skipped."""

    records: list[Record]
    kind: str
    skipped: list[str]


def read_source(path: str | Path, *, kind: str | None = None, on_error: str = "stop") -> Source:
    """Every question of a published file: a JSON list, JSON lines (`.gz` too) or parquet.

    Args:
        kind: one of `KINDS`; None: told from the fields of the first question.
        on_error: "stop" raises at the first question that cannot be read; "skip" leaves it out and lists it.

    Raises RememError with file, line (or item or row) and field; also if no question is left.
    """
    if kind is not None and kind not in KINDS:
        raise RememError(f"kind must be one of {', '.join(KINDS)}, found {kind!r}")
    if on_error not in ("stop", "skip"):
        raise RememError(f"on_error must be stop or skip, found {on_error!r}")
    records: list[Record] = []
    skipped: list[str] = []
    places: dict[str, str] = {}
    for index, (place, value) in enumerate(source_items(path)):
        try:
            if isinstance(value, RememError):
                raise value
            kind = kind or _kind(value, place)
            record = _record(kind, value, place, index)
            _check(record, kind, place, places)
        except RememError as error:
            if on_error == "stop":
                raise
            skipped.append(str(error))
            continue
        places[record.id] = place
        records.append(record)
    if not records and skipped:
        raise RememError(f"{path}: none of its {len(skipped)} questions can be read; the first: {skipped[0]}")
    if not records or kind is None:
        raise RememError(f"{path}: expected at least one question, found none")
    return Source(records, kind, skipped)


def clean_text(text: str) -> str:
    """Text as our own data has it: entities unescaped, marks that show nothing removed, white space folded, NFC."""
    text = _INVISIBLE.sub("", html.unescape(text))
    return unicodedata.normalize("NFC", _SPACES.sub(" ", text).strip())


def join_sentences(sentences: Sequence[str]) -> str:
    """One text of a paragraph's sentences: a space between two where the source has none."""
    text = ""
    for sentence in sentences:
        apart = not text or not sentence or text[-1].isspace() or sentence[0].isspace()
        text += sentence if apart else " " + sentence
    return clean_text(text)


def split_documents(text: str) -> tuple[Document, ...]:
    """The documents of a text `Document 1:`, title, text, blank line, `Document 2:` ...; else one without a title.

    `render_documents` of them is the text again, but for documents without text, which it leaves out, and blank
    lines at the head or the end of a document's text.
    """
    if not text.startswith("Document 1:\n"):
        return (Document("", text),)
    documents, start, number = [], 0, 1
    while start >= 0:
        end = text.find(f"\n\nDocument {number + 1}:\n", start)
        block = text[start : end if end >= 0 else len(text)]
        _, _, block = block.partition("\n")
        title, _, body = block.partition("\n")
        documents.append(Document(title, body))
        start, number = end + 2 if end >= 0 else -1, number + 1
    return tuple(documents)


def _kind(value: dict[str, Any], place: str) -> str:
    """The kind of file that a question with these fields is from."""
    if "paragraphs" in value:
        return "records" if {"answers", "supporting_titles"} & value.keys() else "musique"
    if "context" in value:
        if {"input", "prompt", "reward_model", "solution"} & value.keys():
            return "memagent"
        if {"evidences", "evidences_id", "entity_ids"} & value.keys():
            return "2wikimultihopqa"
        if {"_id", "supporting_facts"} & value.keys():
            return "hotpotqa"
    known = "; ".join(f"{kind} ({fields})" for kind, fields in MARKS.items())
    raise RememError(f"{place}: fields {', '.join(value) or 'none'} are of no known kind of question file: {known}")


def _record(kind: str, value: dict[str, Any], place: str, index: int) -> Record:
    if kind == "records":
        return record_of(value, place)
    if kind == "musique":
        return _musique(value, place)
    if kind == "memagent":
        return _memagent(value, place, index)
    return _hotpotqa(value, place)


def _check(record: Record, kind: str, place: str, places: dict[str, str]) -> None:
    """Refuse an id that was there before, and evidence that the question's own paragraphs do not hold."""
    if record.id in places:
        raise RememError(f"{place}: field 'id' is {record.id!r} again, first at {places[record.id]}: make it unique")
    titles = {paragraph.title for paragraph in record.paragraphs}
    for title in record.supporting_titles:
        if title not in titles:
            field = EVIDENCE.get(kind, "supporting_facts")
            raise RememError(
                f"{place}: field {field!r} names {title!r}, found none of the question's {len(record.paragraphs)} "
                "paragraphs with that title and a text: such a question can only be skipped"
            )


def _hotpotqa(value: dict[str, Any], place: str) -> Record:
    """HotpotQA and 2WikiMultiHopQA: the same fields, the second without a level."""
    answer = _answer(value, place)
    paragraphs = []
    for i, (title, sentences) in enumerate(_pairs(value, "context", ("sentences", "content"), place)):
        what = f"{place}: field 'context[{i}]"
        if not isinstance(sentences, list):
            raise RememError(f"{what}' must be a title and a list of sentences, found {kind_of_value(sentences)}")
        text = join_sentences([check_string(s, f"{what}[1][{j}]'", blank=True) for j, s in enumerate(sentences)])
        paragraphs.append(Document(clean_text(title), text))
    facts = _pairs(value, "supporting_facts", ("sent_id",), place)
    return Record(
        id=_identifier(value, ("_id", "id"), place),
        question=_cleaned(value, "question", place),
        answers=(answer,),
        supporting_titles=tuple(dict.fromkeys(clean_text(title) for title, _ in facts)),
        paragraphs=tuple(paragraph for paragraph in paragraphs if paragraph.text),
        type=_label(value, "type", place),
        level=_label(value, "level", place),
    )


def _musique(value: dict[str, Any], place: str) -> Record:
    if value.get("answerable") is False:
        raise RememError(f"{place}: field 'answerable' is false: without an answer it cannot be scored, only skipped")
    aliases = list_field(value, "answer_aliases", place) if value.get("answer_aliases") is not None else []
    answers = [_answer(value, place)]
    for i, alias in enumerate(aliases):
        what = f"{place}: field 'answer_aliases[{i}]'"
        answers.append(check_string(clean_text(check_string(alias, what)), what))
    paragraphs: dict[int, Document] = {}
    supporting = []
    for i, item in enumerate(list_field(value, "paragraphs", place)):
        what = f"{place}: paragraphs[{i}]"
        if not isinstance(item, dict):
            raise RememError(f"{what}: expected an object with title and paragraph_text, found {kind_of_value(item)}")
        title = clean_text(string_field(item, "title", what, blank=True))
        text = clean_text(string_field(item, "paragraph_text", what, blank=True))
        idx = item.get("idx", i)
        if not isinstance(idx, int) or idx in paragraphs:
            raise RememError(f"{what}: field 'idx' must be a number of its own, found {idx!r}")
        paragraphs[idx] = Document(title, text)
        if item.get("is_supporting"):
            supporting.append(idx)
    # Reasoning order first; what only `is_supporting` marks follows in the order of the paragraphs.
    evidence = [paragraphs[idx].title for idx in [*_steps(value, paragraphs, place), *supporting]]
    identifier = _identifier(value, ("id",), place)
    return Record(
        id=identifier,
        question=_cleaned(value, "question", place),
        answers=tuple(dict.fromkeys(answers)),
        supporting_titles=tuple(dict.fromkeys(evidence)),
        paragraphs=tuple(paragraph for paragraph in paragraphs.values() if paragraph.text),
        type=identifier.split("__")[0] if "__" in identifier else None,
    )


def _steps(value: dict[str, Any], paragraphs: dict[int, Document], place: str) -> list[int]:
    """Paragraph numbers of the decomposition's steps, in its order; a step may have none."""
    if value.get("question_decomposition") is None:
        return []
    steps = []
    for i, step in enumerate(list_field(value, "question_decomposition", place)):
        idx = step.get("paragraph_support_idx") if isinstance(step, dict) else None
        if idx is None:
            continue
        if not isinstance(idx, int) or idx not in paragraphs:
            raise RememError(
                f"{place}: field 'question_decomposition[{i}].paragraph_support_idx' must be the idx of a paragraph, "
                f"found {idx!r}"
            )
        steps.append(idx)
    return steps


def _memagent(value: dict[str, Any], place: str, index: int) -> Record:
    """MemAgent's sets: documents already rendered, no evidence named; without a number of its own, its place's."""
    context = value.get("context")
    if isinstance(context, list):
        raise RememError(
            f"{place}: field 'context' must be a text, found a list: sets that hold only document numbers need the "
            "documents beside them; build such a length with `remem data build`"
        )
    extra = value["extra_info"] if isinstance(value.get("extra_info"), dict) else {}
    numbered = {"index": index} | {k: v for fields in (extra, value) for k, v in fields.items() if v is not None}
    return Record(
        id=_identifier(numbered, ("id", "_id", "index"), place),
        question=_question(value, extra, place),
        answers=_gold(value, place),
        supporting_titles=(),
        paragraphs=split_documents(string_field(value, "context", place)),
    )


def _question(value: dict[str, Any], extra: dict[str, Any], place: str) -> str:
    """`input`, `question` or `extra_info.question`; else the prompt, which may be a chat: its last user message."""
    for fields, name in ((value, "input"), (value, "question"), (extra, "question")):
        if fields.get(name) is not None:
            return string_field(fields, name, place)
    prompt = value.get("prompt")
    if isinstance(prompt, list):
        said = [m.get("content") for m in prompt if isinstance(m, dict) and m.get("role") == "user"]
        if not said:
            raise RememError(f"{place}: field 'prompt' must hold a user's message, found {len(prompt)} others")
        return check_string(said[-1], f"{place}: field 'prompt'")
    return string_field(value, "prompt", place)


def _gold(value: dict[str, Any], place: str) -> tuple[str, ...]:
    """`answers`, `reward_model.ground_truth`, `solution` or `answer`: one text or a list of them."""
    reward = value["reward_model"] if isinstance(value.get("reward_model"), dict) else {}
    found = {
        "answers": value.get("answers"),
        "reward_model.ground_truth": reward.get("ground_truth"),
        "solution": value.get("solution"),
        "answer": value.get("answer"),
    }
    for name, gold in found.items():
        if gold is None:
            continue
        if not isinstance(gold, list):
            return (check_string(gold, f"{place}: field {name!r}"),)
        if not gold:
            raise RememError(f"{place}: field {name!r} must hold at least one answer, found none")
        return tuple(dict.fromkeys(check_string(g, f"{place}: field '{name}[{i}]'") for i, g in enumerate(gold)))
    raise RememError(f"{place}: field 'answers' is missing, as are {', '.join(list(found)[1:])}")


def _answer(value: dict[str, Any], place: str) -> str:
    """The answer, which the test files of all three datasets lack."""
    if value.get("answer") in (None, ""):
        raise RememError(
            f"{place}: field 'answer' is missing or empty: a question without an answer (as in the test files) cannot "
            "be scored: take the train or dev file"
        )
    return _cleaned(value, "answer", place)


def _cleaned(value: dict[str, Any], name: str, place: str) -> str:
    """Text as our own data has it, of which something must be left."""
    return check_string(clean_text(string_field(value, name, place)), f"{place}: field {name!r}")


def _pairs(value: dict[str, Any], name: str, second: tuple[str, ...], place: str) -> list[tuple[str, Any]]:
    """`[[title, x], ...]`; parquet copies hold it by columns (`{title: [..], x: [..]}`) or as JSON text."""
    found, what = value.get(name), f"{place}: field {name!r}"
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise RememError(f"{what} must be a list of pairs, found a text that is not JSON") from None
    if isinstance(found, dict):
        columns = [found.get("title"), *(found[other] for other in second if other in found)][:2]
        if len(columns) < 2 or not all(isinstance(c, list) and len(c) == len(columns[0]) for c in columns):
            names = " or ".join(second)
            raise RememError(f"{what} must hold title and {names}, lists of one length, found {', '.join(found)}")
        found = [list(pair) for pair in zip(*columns)]
    if not isinstance(found, list):
        raise RememError(f"{what} must be a list, found {kind_of_value(found) if name in value else 'none'}")
    for i, pair in enumerate(found):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RememError(f"{place}: field '{name}[{i}]' must be a title and {second[0]}, found {pair!r:.60}")
        check_string(pair[0], f"{place}: field '{name}[{i}][0]'", blank=True)
    return [(title, other) for title, other in found]


def _identifier(value: dict[str, Any], names: tuple[str, ...], place: str) -> str:
    """The first of the fields that is there; a whole number is an id too."""
    for name in names:
        if value.get(name) is not None:
            if isinstance(value[name], int) and not isinstance(value[name], bool):
                return str(value[name])
            return string_field(value, name, place)
    return string_field(value, names[0], place)


def _label(value: dict[str, Any], name: str, place: str) -> str | None:
    return None if value.get(name) is None else string_field(value, name, place)
