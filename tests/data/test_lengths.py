"""Lengths of contexts against the rendered text itself."""

import numpy as np
import pytest

from remem_jax.data.documents import Document, render_documents
from remem_jax.data.lengths import Summary, measure

DOCUMENTS = [
    Document("Title one", "Two words."),
    Document("", "no title here"),
    Document("Empty", " \n"),
    Document("A\nbroken title", "\nlines\n\nof text\n"),
    Document("Ünïcode", "日本 語"),
]


class Letters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text):
        return list(text)


@pytest.mark.parametrize("rows", [[0], [2], [1, 0], [0, 2, 3], [4, 3, 2, 1, 0], [0, 1] * 6])
def test_characters_and_words_are_those_of_the_rendered_context(rows):
    lengths = measure(DOCUMENTS, 12, Letters(), 2).of(np.array(rows))  # pyright: ignore[reportArgumentType]
    text = render_documents([DOCUMENTS[i] for i in rows])
    shown = sum(i != 2 for i in rows)
    assert lengths["characters"] == len(text) and lengths["words"] == len(text.split())
    # Two line breaks stand behind every piece, in the text only between two.
    assert lengths["tokens"] == len(text) + (2 if shown else 0)


def test_without_a_tokenizer_no_tokens_are_told():
    assert set(measure(DOCUMENTS, 3, None, 1).of(np.array([0, 1]))) == {"characters", "words"}


def test_a_summary_has_mean_least_and_most_by_size_in_order():
    summary = Summary()
    for size, value in ((100, 7), (50, 3), (50, 4), (50, 6)):
        summary.add(size, {"words": value})
    assert summary.as_json() == {
        "50": {"words": {"mean": 4.3, "min": 3, "max": 6}},
        "100": {"words": {"mean": 7.0, "min": 7, "max": 7}},
    }
    assert list(summary.as_json()) == ["50", "100"]


@pytest.mark.needs_data
def test_the_sum_of_pieces_is_within_a_hundredth_of_a_real_tokenizers_count(smollm2_path, data_dir):
    from remem_jax.data.long_context import read_corpus
    from remem_jax.tokenizer import load_tokenizer

    documents = read_corpus(data_dir / "corpus_musique.jsonl.gz")[:50]
    tokenizer = load_tokenizer(smollm2_path)
    told = measure(documents, 50, tokenizer, 1).of(np.arange(50))["tokens"]
    assert told == pytest.approx(len(tokenizer.encode(render_documents(documents))), rel=0.01)
