"""Which questions a built set holds: read from their sources, without those of other sets, eligible, and chosen.

The choice depends on ids and seed alone, never on the order of sources, lines or contexts.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remem_jax.data.built import questions_of
from remem_jax.data.long_context import not_distant
from remem_jax.data.records import Record
from remem_jax.data.sources import read_source
from remem_jax.errors import RememError
from remem_jax.eval.normalise import normalise
from remem_jax.paths import local


@dataclass(frozen=True)
class Selected:
    """The questions of a set, and what became of the others.

    records: sorted by id. kinds: of the sources, in their order. skipped: a line each for questions that could not be
    read. excluded: ids of questions that stand in a set to keep away from. not_eligible: id and reason.
    """

    records: list[Record]
    kinds: list[str]
    skipped: list[str]
    excluded: list[str]
    not_eligible: dict[str, str]
    other_level: int
    """Questions of another level than the one asked for."""


def select(
    sources: Sequence[str | Path],
    *,
    exclude: Sequence[str | Path] = (),
    order: str = "random",
    questions: int | None = None,
    level: str | None = None,
    seed: int = 0,
    kind: str | None = None,
    on_error: str = "stop",
) -> Selected:
    """Read sources and choose of their questions.

    Args:
        exclude: question files and built sets, none of whose questions may be chosen.
        level: only questions of this level, such as HotpotQA's `hard`; None: all.
        questions: how many to choose, by a hash of seed and id, so that a larger number only adds; None: all.

    Raises:
        RememError: a question that cannot be read, an id in two sources, or too few questions left.
    """
    found, kinds, skipped = _read(sources, kind, on_error)
    read, found = len(found), [record for record in found if level is None or record.level == level]
    other_level = read - len(found)
    ids, texts = _others(exclude, on_error)
    excluded = sorted(r.id for r in found if r.id in ids or normalise(r.question) in texts)
    left = sorted((r for r in found if r.id not in set(excluded)), key=lambda record: record.id)
    reasons = {record.id: not_distant(record) for record in left} if order == "reverse" else {}
    not_eligible = {name: why for name, why in reasons.items() if why}
    left = [record for record in left if record.id not in not_eligible]
    if not left or (questions is not None and questions > len(left)):
        asked = "at least 1 question" if questions is None else f"{questions} questions"
        raise RememError(
            f"expected {asked}, found {len(left)} ({len(excluded)} excluded, {len(not_eligible)} not eligible, "
            f"{len(skipped)} skipped, {other_level} of another level): ask fewer, or add a source"
        )
    if questions is not None:
        left = sorted(sorted(left, key=lambda record: _chance(seed, record.id))[:questions], key=lambda r: r.id)
    return Selected(left, kinds, skipped, excluded, not_eligible, other_level)


def _read(sources: Sequence[str | Path], kind: str | None, on_error: str) -> tuple[list[Record], list[str], list[str]]:
    """All questions, the sources' kinds, and what was skipped, told by the source's number and not by its path."""
    records, kinds, skipped = [], [], []
    first: dict[str, str | Path] = {}
    for number, path in enumerate(sources, 1):
        source = read_source(path, kind=kind, on_error=on_error)
        for record in source.records:
            if record.id in first:
                raise RememError(
                    f"{path}: question id {record.id!r} stands in {first[record.id]} too: give each question once"
                )
            first[record.id] = path
        records += source.records
        kinds.append(source.kind)
        skipped += [line.replace(str(path), f"source {number}") for line in source.skipped]
    return records, kinds, skipped


def _others(exclude: Sequence[str | Path], on_error: str) -> tuple[set[str], set[str]]:
    """Ids and normal forms of the questions to keep away from. A bare number says where a question stood in its file,
    not which question it is, so it is no id here."""
    ids, texts = set(), set()
    for path in exclude:
        for name, question in _named(path, on_error):
            if not name.isdecimal():
                ids.add(name)
            texts.add(normalise(question))
    return ids, texts


def _named(path: str | Path, on_error: str) -> Iterable[tuple[str, str]]:
    if local(path).is_dir():
        return questions_of(path)
    return ((record.id, record.question) for record in read_source(path, on_error=on_error).records)


def _chance(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}:{name}:chosen".encode()).digest()
