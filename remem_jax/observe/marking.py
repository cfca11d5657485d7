"""Texts of models and documents made fit to be shown: nothing invisible, gold-answer words and changes marked.

What is marked are the words of METHOD 3, which the rewards count; small English words such as "the" are left plain.
"""

import difflib
import functools
import re
from collections.abc import Iterator
from itertools import pairwise

from remem_jax.agent.words import split_words, words
from remem_jax.eval.metrics import Answers, as_answers
from remem_jax.rl.rewards import is_yes_no

SMALL_WORDS = frozenset({"a", "an", "and", "at", "by", "for", "in", "is", "of", "on", "or", "the", "to"})
# Control characters, what turns the direction of writing, and what has no width: each could make a text seem another.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
Segments = list[str]
"""Pieces of a text in turns plain and marked, the first one plain (and maybe empty)."""


def visible(text: str) -> str:
    """The text with each invisible character written out, as [U+202E]; line ends and tabs stay."""
    return _INVISIBLE.sub(lambda match: f"[U+{ord(match.group()):04X}]", text.replace("\r\n", "\n"))


def gold_words(answers: Answers | None) -> frozenset[str]:
    """Words of the gold answers that are marked; none where all answers are yes or no, as for the rewards."""
    if not answers or is_yes_no(answers):
        return frozenset()
    every = frozenset().union(*map(words, as_answers(answers)))
    return every - SMALL_WORDS or every


def marked(text: str, gold: frozenset[str]) -> Segments:
    """The text cut at the words that are gold answers' words."""
    pieces = [""]
    plain = []  # since the last mark: joined at once, as most of a chunk is
    for part in re.findall(r"\s+|\S+", text) if gold else [text]:
        if not gold or gold.isdisjoint(_words(part)):
            plain.append(part)
            continue
        for run in _runs(part):
            if gold.isdisjoint(_words(run)):
                plain.append(run)
                continue
            _append(pieces, "".join(plain), mark=False)
            _append(pieces, run, mark=True)
            plain = []
    _append(pieces, "".join(plain), mark=False)
    return pieces


_words = functools.lru_cache(maxsize=2**16)(words)


def _runs(text: str) -> Iterator[str]:
    """The text cut at the borders of words."""
    start = 0
    for at in range(1, len(text)):
        before, here = _kind(text[at - 1]), _kind(text[at])
        if here != before or here == _ALONE:
            yield text[start:at]
            start = at
    yield text[start:]


_ALONE = 2


@functools.lru_cache(maxsize=2**16)
def _kind(character: str) -> int:
    """0 for what separates words, 1 for what joins with its like to a word, 2 for a word of its own."""
    return min(len(split_words(character + character)), _ALONE)


def shortened(segments: Segments, limit: int) -> Segments:
    """At most about `limit` characters: the start, the end and what stands around marks; what is left out is told."""
    text = "".join(segments)
    if len(text) <= limit:
        return segments
    ends = [0]
    for piece in segments:
        ends.append(ends[-1] + len(piece))
    around = max(limit // 8, 40)
    spans, room = [(0, limit // 4), (len(text) - limit // 8, len(text))], limit - limit // 4 - limit // 8
    for at in range(1, len(segments), 2):
        if room <= 0:
            break
        spans.append((max(ends[at] - around, 0), min(ends[at + 1] + around, len(text))))
        room -= spans[-1][1] - spans[-1][0]
    kept: Segments = [""]
    position = 0
    for first, last in sorted(spans):
        first = max(first, position)
        if first >= last:
            continue
        if first > position:
            _append(kept, f" [… {first - position:,} characters left out …] ", mark=False)
        for at, (start, end) in enumerate(pairwise(ends)):
            if (piece := text[max(start, first) : min(end, last)]) and start < last and end > first:
                _append(kept, piece, mark=at % 2 == 1)
        position = last
    return kept


def _append(segments: Segments, piece: str, *, mark: bool) -> None:
    if not piece:
        return
    if mark == (len(segments) % 2 == 0):
        segments[-1] += piece
    else:
        segments.append(piece)


def changes(before: str, after: str) -> list[tuple[str, str]]:
    """From one memory to the next by words: ("same" | "dropped" | "added", text), whose white space is kept."""
    old, new = (re.findall(r"\s*\S+|\s+$", text) for text in (before, after))
    matcher = difflib.SequenceMatcher(None, [one.strip() for one in old], [one.strip() for one in new], autojunk=False)
    found: list[tuple[str, str]] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            found.append(("same", "".join(new[k:m])))
        if kind in ("delete", "replace"):
            found.append(("dropped", "".join(old[i:j])))
        if kind in ("insert", "replace"):
            found.append(("added", "".join(new[k:m])))
    return found
