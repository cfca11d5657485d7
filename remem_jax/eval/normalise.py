"""The one answer normaliser: training rewards and evaluation compare answers in the same form.

Two answers that differ in case, punctuation, symbols, articles, spacing or a LaTeX text wrapper become equal.
"""

import re
import unicodedata

ARTICLES = frozenset({"a", "an", "the"})

_BRACES = re.compile(r"\\(?:textbf|text|mathrm)\s*\{|\\[{}]|[{}]")


def unwrap(text: str) -> str:
    r"""Replace every closed `\text{x}`, `\textbf{x}` and `\mathrm{x}` by its `x`; they may be nested.

    Braces are balanced and `\{`, `\}` are characters; a wrapper that is never closed stays as it is.
    """
    opened: list[tuple[int, int] | None] = []
    removed: list[tuple[int, int]] = []
    for mark in _BRACES.finditer(text):
        if mark[0] in ("\\{", "\\}"):
            continue
        if mark[0] == "}":
            wrapper = opened.pop() if opened else None
            if wrapper is not None:
                removed += [wrapper, mark.span()]
        else:
            opened.append(None if mark[0] == "{" else mark.span())
    kept, end = [], 0
    for start, stop in sorted(removed):
        kept.append(text[end:start])
        end = stop
    return "".join(kept) + text[end:]


def fold(text: str) -> str:
    """The normal form of `text`, or an empty string where nothing of it can be compared as words.

    Wrappers are removed, then NFKC and case folding, characters of categories P and S are deleted, the words a, an and
    the are dropped unless nothing else is left, and white space becomes single spaces.
    """
    text = unicodedata.normalize("NFKC", unwrap(text)).casefold()
    text = "".join(char for char in text if unicodedata.category(char)[0] not in "PS")
    # Case folding and deletion can leave a letter and its accent apart.
    words = unicodedata.normalize("NFKC", text).split()
    return " ".join([word for word in words if word not in ARTICLES] or words)


def normalise(text: str) -> str:
    """The form in which two answers are compared for equality.

    It is `fold(text)`; an answer made of punctuation alone is its own stripped text, so that it equals nothing else.
    """
    return fold(text) or text.strip()
