"""The folder of a run of `remem eval`: what it was made with, one owner at a time, results that a kill cannot spoil.

evaluation.json                                   what the results depend on
results/DATASET/DOCUMENTS/AGENT@MODEL.jsonl       a line a question, in the order of the plan
tokens/                                           token ids of long documents
results.md, results.json, accuracy.png            written when all is answered
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from remem_jax.errors import RememError
from remem_jax.eval.harness import Result, read_results
from remem_jax.locks import lock_folder
from remem_jax.observe.metrics import append_line, open_lines

IDENTITY_FILE = "evaluation.json"
BY_NAME = ("models", "agents", "data")
"""Parts of an identity that may gain and lose entries: what is in both must be the same."""


@contextlib.contextmanager
def owned(out: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone until it ends, however it ends.

    Raises:
        RememError: it cannot be written, or another process works in it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        lock = lock_folder(out, f"out: another remem eval works in {out}: wait for it, or give another folder")
    except OSError as error:
        raise RememError(f"out: {out} cannot be written ({error.strerror}): give another folder") from None
    try:
        yield
    finally:
        os.close(lock)


def claim(out: Path, identity: Mapping[str, Any]) -> None:
    """Note what the results are made with; entries of models, agents and data may be added to a folder.

    Raises:
        RememError: results made with other settings, models or data lie there; what differs is named.
    """
    path = out / IDENTITY_FILE
    old = stored_identity(out)
    if old is not None and (differing := differences(old, identity)):
        raise RememError(
            f"out: {out} holds results made with other {', '.join(differing)}: give another folder, or remove it"
        )
    merged = dict(identity)
    if old is not None:
        merged |= {part: old[part] | identity[part] for part in BY_NAME}
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(merged, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def stored_identity(out: Path) -> dict[str, Any] | None:
    """What `claim` noted, None where it never did."""
    path = out / IDENTITY_FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if any(not isinstance(found[part], dict) for part in BY_NAME):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise RememError(f"{path}: expected what remem eval wrote, found something else: give another folder") from None
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of what differs: settings, and entries that both have, as `agents.memagent@plain.chunk_tokens`."""
    found = [name for name in new if name not in BY_NAME and name != "written_by" and old.get(name) != new[name]]
    for part in BY_NAME:
        for name in new[part].keys() & old[part].keys():
            one, other = old[part][name], new[part][name]
            if isinstance(one, dict) and isinstance(other, dict):
                inner = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
                found += [f"{part}.{name}.{key}" for key in inner]
            elif one != other:
                found.append(f"{part}.{name}")
    return sorted(found)


def stored_results(path: Path, ids: Sequence[str]) -> dict[str, Result]:
    """By question the results that a file has; a last line without an end is as good as none.

    Raises:
        RememError: a line that is no result, of a question that is not in `ids`, or of one for the second time.
    """
    if not path.is_file():
        return {}
    open_lines(path).close()  # which takes a torn line away
    if path.stat().st_size == 0:
        return {}
    known, found = set(ids), {}
    for result in read_results(path):
        if result.id not in known or result.id in found:
            what = "twice" if result.id in found else "that is not among the questions"
            raise RememError(f"{path}: expected a line for each question, found {result.id!r} {what}: remove the file")
        found[result.id] = result
    return found


def append_results(path: Path, results: Sequence[Result]) -> None:
    """Lines at the end of a file, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(open_lines(path)) as file:
        for result in results:
            append_line(file, result.to_dict())
        os.fsync(file.fileno())
