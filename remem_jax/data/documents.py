"""Documents in: text files, JSON lines, directories and standard input, each fault named by file and place.

Documents out: the one rendering that a prompt holds (METHOD 1), and the paragraphs the retrieval agent chooses from.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from remem_jax.errors import RememError
from remem_jax.paths import local, url_of

SUFFIXES = (".txt", ".md", ".jsonl")
LONG_PARAGRAPH = 2000
HALF_PAIR = re.compile("[\ud800-\udfff]")  # an expression, not a loop: a set holds hundreds of millions of characters


@dataclass(frozen=True)
class Document:
    """A piece of text with its title, both as the user wrote them."""

    title: str
    text: str


def read_documents(paths: Sequence[str | Path], stdin: BinaryIO | None = None) -> list[Document]:
    """Documents of files, directories (every readable file below, sorted, hidden ones left out) and `-` for stdin.

    `.txt` and `.md` are one document titled by the file's name. A line of `.jsonl` is `{title, text}`, or a question's
    record, which stands for its paragraphs. A document without text is returned: whether to warn is the caller's.
    """
    documents = []
    for path in paths:
        if not str(path):
            raise RememError("documents: expected a path, found an empty one")
        if str(path) == "-":
            if stdin is None:
                raise RememError("documents: '-' reads standard input, which is not open: name a file instead")
            documents.append(Document("standard input", _text(stdin.read(), "standard input")))
        elif (place := local(path)).is_dir():
            files = _files_below(place)
            if not files:
                raise RememError(
                    f"{path}: no readable document in this directory: put {', '.join(SUFFIXES)} files there"
                )
            documents += [document for file in files for document in _read_file(file)]
        else:
            documents += _read_file(place)
    return documents


def render_documents(documents: Sequence[Document], form: str = "numbered") -> str:
    """One text of all documents; those without text are left out and not counted.

    Args:
        form: `numbered` is `Document i:`, title and text on lines of their own, a blank line between (METHOD 1);
            `plain` is the texts alone, one a line.
    """
    shown = [document for document in documents if document.text.strip()]
    if form == "plain":
        return "\n".join(document.text.strip("\n") for document in shown)
    blocks = []
    for i, document in enumerate(shown, 1):
        title, text = document.title.replace("\n", " "), document.text.strip("\n")
        blocks.append(f"Document {i}:\n{title}\n{text}")
    return "\n\n".join(blocks)


def paragraphs(documents: Sequence[Document]) -> list[Document]:
    """Every document split where it has blank lines; each paragraph keeps the title of its document.

    A paragraph of more than `LONG_PARAGRAPH` characters is split between lines, so that a text without blank lines is
    not one paragraph.
    """
    return [
        Document(document.title, piece)
        for document in documents
        for paragraph in re.split(r"\n(?:[^\S\n]*\n)+", document.text)
        for piece in _pieces(paragraph.strip("\n"))
        if piece.strip()
    ]


def _pieces(paragraph: str) -> list[str]:
    """A paragraph as runs of whole lines of up to `LONG_PARAGRAPH` characters."""
    pieces: list[str] = []
    for line in paragraph.split("\n"):
        if pieces and len(pieces[-1]) + 1 + len(line) <= LONG_PARAGRAPH:
            pieces[-1] += "\n" + line
        else:
            pieces.append(line)
    return pieces


def json_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of a `.jsonl` or `.jsonl.gz` file, each with its place ("FILE line 3"); blank lines are passed over."""
    name = url_of(path) or path
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            place = f"{name} line {number}"
            yield place, json_object(line, place)


def json_object(text: str, place: str) -> dict[str, Any]:
    """A text that holds one JSON object; `place` names it in an error."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RememError(
            f"{place}: expected a JSON object, found bad JSON ({error.msg} at column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise RememError(f"{place}: expected a JSON object, found bad JSON ({error})") from None
    if not isinstance(value, dict):
        raise RememError(f"{place}: expected a JSON object, found {kind_of_value(value)}")
    return value


def string_field(value: dict[str, Any], name: str, place: str, *, blank: bool = False) -> str:
    """A string of a JSON object; a missing, blank or wrong one is an error with file, line and field."""
    if name not in value:
        raise RememError(f"{place}: field {name!r} is missing, found {', '.join(map(repr, value)) or 'none'}")
    return check_string(value[name], f"{place}: field {name!r}", blank=blank)


def check_string(value: Any, what: str, *, blank: bool = False) -> str:
    """`value` if it is a string that can be written as UTF-8 and, unless `blank`, holds more than white space."""
    if not isinstance(value, str):
        raise RememError(f"{what} must be a string, found {kind_of_value(value)}")
    if not blank and not value.strip():
        raise RememError(f"{what} must not be blank")
    if HALF_PAIR.search(value):
        raise RememError(f"{what} holds half of a surrogate pair, which is no character: write the whole character")
    return value


def list_field(value: dict[str, Any], name: str, place: str) -> list[Any]:
    """A list of a JSON object."""
    if not isinstance(value.get(name), list):
        found = kind_of_value(value[name]) if name in value else "none"
        raise RememError(f"{place}: field {name!r} must be a list, found {found}")
    return value[name]


def document_of(value: Any, place: str) -> Document:
    """A `{title, text}` object as a document; other fields are passed over."""
    if not isinstance(value, dict):
        raise RememError(f"{place}: expected an object with title and text, found {kind_of_value(value)}")
    return Document(string_field(value, "title", place, blank=True), string_field(value, "text", place, blank=True))


def paragraphs_field(value: dict[str, Any], place: str) -> list[Document]:
    """The paragraphs of a question's record."""
    return [
        document_of(item, f"{place}: paragraphs[{i}]") for i, item in enumerate(list_field(value, "paragraphs", place))
    ]


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, unzipped if its name ends in `.gz`; what cannot be read or is no UTF-8 is named."""
    data, path = _bytes(local(path)), url_of(path) or str(path)
    if path.endswith(".gz"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise RememError(f"{path}: expected a gzip file, found a broken one ({error}): fetch it again") from None
    return _text(data, path)


def _files_below(folder: Path) -> list[Path]:
    found = []
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(base) / name for name in files if not name.startswith(".") and name.lower().endswith(SUFFIXES)]
    found = [file for file in found if file.is_file()]  # no pipes, which would wait, and no links to nothing
    return sorted(found, key=lambda file: file.relative_to(folder).parts)


def _read_file(path: Path) -> list[Document]:
    if path.exists() and not path.is_file():
        raise RememError(f"{path}: expected a file or a directory, found something else: for a pipe use '-'")
    if path.suffix.lower() not in SUFFIXES and path.exists():
        raise RememError(f"{path}: expected a document in {', '.join(SUFFIXES)}, found {path.suffix or 'no suffix'!r}")
    if path.suffix.lower() != ".jsonl":
        return [Document(path.name, read_text(path))]
    documents = []
    for place, value in json_lines(path):
        documents += paragraphs_field(value, place) if "paragraphs" in value else [document_of(value, place)]
    return documents


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RememError(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise RememError(f"{path}: cannot be read ({error.strerror})") from None


def _text(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RememError(
            f"{name}: expected UTF-8, found byte 0x{data[error.start]:02x} at offset {error.start}: save it as UTF-8"
        ) from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def kind_of_value(value: Any) -> str:
    """What a JSON value is, as an error says it."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
