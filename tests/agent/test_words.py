"""Words of a text and their exact ids (METHOD 3), by hand-computed examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remem_jax.agent.words import WordTable, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        (" ,.!? \n", set()),
        ("The cat, the CAT!", {"the", "cat"}),
        ("snake_case", {"snake", "case"}),
        ("don't re-read 3.14", {"don", "t", "re", "read", "3", "14"}),
        ("Straße STRASSE", {"strasse"}),
        ("ﬁne ２０２４", {"fine", "2024"}),
        ("cafe\u0301 café", {"café"}),
        ("x² ½", {"x2", "1", "2"}),
        ("東京タワー2024", {"東", "京", "タ", "ワ", "ー2024"}),
        ("ひらがな kana", {"ひ", "ら", "が", "な", "kana"}),
        ("ﾃﾞｰﾀ", {"デ", "ー", "タ"}),
        ("人々", {"人", "々"}),
        ("한국어 단어", {"한국어", "단어"}),
        ("हिन्दी", {"हिन्दी"}),
        ("a€b", {"a", "b"}),
    ],
)
def test_words_are_folded_runs_of_letters_marks_and_numbers(text, expected):
    assert words(text) == expected


@settings(deadline=None)
@given(st.text(), st.text())
def test_words_of_two_texts_apart_are_the_words_of_both(a, b):
    assert words(f"{a} {b}") == words(a) | words(b)


def test_ids_are_exact_sorted_padded_and_shared_between_texts():
    table = WordTable()
    first, overflow = table.ids("b a b", 4)
    assert first.dtype == np.int32 and (first.tolist(), overflow) == ([0, 1, -1, -1], 0)
    assert table.ids("c, A", 3)[0].tolist() == [1, 2, -1]
    assert len(table) == 3


def test_words_beyond_the_size_are_counted_and_the_first_ones_are_kept():
    table = WordTable()
    row, overflow = table.ids("one two two three four", 2)
    assert (row.tolist(), overflow, len(table)) == ([0, 1], 2, 2)
    assert table.ids("four one", 2)[0].tolist() == [0, 2]


def test_a_blank_text_and_a_size_of_zero_give_only_padding():
    assert WordTable().ids(" ", 2)[0].tolist() == [-1, -1]
    row, overflow = WordTable().ids("a b", 0)
    assert (row.shape, overflow) == ((0,), 2)


@settings(deadline=None)
@given(st.lists(st.text()))
def test_two_words_never_share_an_id(texts):
    table = WordTable()
    rows = [set(table.ids(text, 500)[0].tolist()) - {-1} for text in texts]
    every = set().union(*map(words, texts))
    assert len(table) == len(every) and set().union(*rows) == set(range(len(every)))
    for a, row_a in zip(texts, rows):
        for b, row_b in zip(texts, rows):
            assert len(row_a & row_b) == len(words(a) & words(b))
