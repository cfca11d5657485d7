"""The questions of a dataset file one by one, whether it is a JSON list, JSON lines or parquet.

A question that cannot be read comes as its error, so that the caller may stop there or go on with the next.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remem_jax.data.documents import json_object, kind_of_value, read_text
from remem_jax.errors import RememError
from remem_jax.paths import local

ROWS_AT_ONCE = 16  # a row may hold millions of characters


def source_items(path: str | Path) -> Iterator[tuple[str, dict[str, Any] | RememError]]:
    """Each question's object with its place: "FILE line 3" (JSON lines), "FILE item 3" (JSON list), "FILE row 3".

    What the file is, is seen from its content. Items of a list are decoded one by one from the text, so that a file
    of half a gigabyte needs its text in memory and not ten times that. Raises RememError for a file that is broken
    as a whole: none of it can be trusted then.
    """
    path = local(path)
    if _is_parquet(path):
        yield from _parquet_rows(path)
        return
    text = read_text(path)
    first = _after_space(text, 0)
    if text[first : first + 1] == "[":
        yield from _list_items(text, path)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{path} line {number}"
            try:
                yield place, json_object(line, place)
            except RememError as error:
                yield place, error


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            found = file.read(4) == b"PAR1"
    except FileNotFoundError:
        raise RememError(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise RememError(f"{path}: cannot be read ({error.strerror})") from None
    if path.suffix == ".parquet" and not found:
        raise RememError(f"{path}: expected a parquet file, found something else by that name: fetch it again")
    return found


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any] | RememError]]:
    """Rows as objects; a field that is null in a row counts as missing, since a table has every column in every row."""
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield f"{path} row {number}", {name: value for name, value in row.items() if value is not None}
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0]
        raise RememError(f"{path}: expected a parquet file, found a broken one ({reason}): fetch it again") from None


def _list_items(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any] | RememError]]:
    decoder = json.JSONDecoder()
    at, number = _after_space(text, text.index("[") + 1), 0
    while text[at : at + 1] != "]":
        place = f"{path} item {number + 1}"
        if number:
            if text[at : at + 1] != ",":
                raise RememError(f"{place}: expected ',' or ']' at character {at}, found {_found(text, at)}")
            at = _after_space(text, at + 1)
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise RememError(
                f"{place}: expected a JSON object, found bad JSON ({error.msg} at character {error.pos})"
            ) from None
        except (ValueError, RecursionError) as error:
            raise RememError(f"{place}: expected a JSON object, found bad JSON ({error})") from None
        at, number = _after_space(text, at), number + 1
        if isinstance(value, dict):
            yield place, value
        else:
            yield place, RememError(f"{place}: expected a JSON object, found {kind_of_value(value)}")
    if text[at + 1 :].strip():
        raise RememError(f"{path}: expected the file to end with the list, found {_found(text, at + 1)} behind it")


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at


def _found(text: str, at: int) -> str:
    return repr(text[at : at + 20].strip()) if at < len(text) else "the end of the file: fetch it again"
