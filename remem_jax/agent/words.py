"""The words of a text as a set (METHOD 3), and exact integer ids for them so that a device can compare sets.

Characters are classed by Unicode category; Han, Hiragana and Katakana have no spaces, so each character is a word.
"""

from bisect import bisect_right
from unicodedata import category, normalize

import numpy as np

# Letters, marks and numbers of the scripts Han, Hiragana and Katakana (Unicode's Scripts.txt), first and last.
# U+30FC, the long vowel mark, is of no script there and stays an ordinary letter.
_ONE_CHARACTER_WORDS = (
    (0x3005, 0x3005),
    (0x3007, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303B),
    (0x3041, 0x3096),
    (0x309D, 0x309F),
    (0x30A1, 0x30FA),
    (0x30FD, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAD9),
    (0xFF66, 0xFF6F),
    (0xFF71, 0xFF9D),
    (0x16FE3, 0x16FE3),
    (0x16FF0, 0x16FF6),
    (0x1AFF0, 0x1AFFE),
    (0x1B000, 0x1B167),
    (0x20000, 0x3FFFD),
)
_FIRSTS = [first for first, _ in _ONE_CHARACTER_WORDS]


class _Spaced(dict[int, str]):
    """Table for `str.translate`: a separator becomes a space, a one-character word gets spaces around it."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if category(character)[0] not in "LMN":
            spaced = " "
        else:
            nearest = bisect_right(_FIRSTS, code) - 1
            alone = nearest >= 0 and code <= _ONE_CHARACTER_WORDS[nearest][1]
            spaced = f" {character} " if alone else character
        self[code] = spaced
        return spaced


_SPACED = _Spaced()


def words(text: str) -> frozenset[str]:
    """The set of words of a text: case, compatibility forms, repeats and punctuation do not count."""
    return frozenset(split_words(text))


def split_words(text: str) -> list[str]:
    """The words of a text in order, repeats included."""
    folded = normalize("NFKC", normalize("NFKC", text).casefold())
    return folded.translate(_SPACED).split()


class WordTable:
    """Word ids of one question: the same word has the same id, another word has another (no hashing).

    Ids count from 0 in the order in which words are first met, so equal inputs give equal arrays. A table lives as
    long as its question and is dropped with it.
    """

    def __init__(self):
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, text: str, size: int) -> tuple[np.ndarray, int]:
        """Distinct word ids of a text, `[size]` int32, sorted and padded with -1, and how many words did not fit.

        The words that come first in the text are kept.
        """
        distinct = list(dict.fromkeys(split_words(text)))
        kept = sorted(self._ids.setdefault(word, len(self._ids)) for word in distinct[:size])
        row = np.full(size, -1, np.int32)
        row[: len(kept)] = kept
        return row, len(distinct) - len(kept)
