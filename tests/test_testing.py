"""The public dummy model and tokenizer do what their documentation says."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remem_jax.testing import DummyTokenizer, tiny_model

TOKENIZER = DummyTokenizer()


def test_ids_are_bytes_and_special_strings_are_text_unless_asked_for():
    assert TOKENIZER.encode("aé") == [97, 0xC3, 0xA9]
    assert TOKENIZER.encode("a<|end|>", special=True) == [97, 257]
    assert TOKENIZER.encode("a<|end|>") == [97, *b"<|end|>"]
    assert TOKENIZER.decode([256, 97, 0xC3, 257]) == "a\ufffd"
    assert TOKENIZER.cut([97, 0xC3, 0xA9, 98], 2) == [97]
    assert TOKENIZER.cut([97, 0xC3, 0xA9, 98], 3) == [97, 0xC3, 0xA9]
    assert TOKENIZER.chat() == ([256, 258], [257, 259])


@given(st.text())
def test_any_text_comes_back_and_never_holds_a_special_id(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert not TOKENIZER.special_ids.intersection(ids)


def test_the_same_seed_gives_the_same_model_and_another_seed_another():
    one, same, other = tiny_model(1), tiny_model(1), tiny_model(2)
    jax.tree.map(np.testing.assert_array_equal, one.params, same.params)
    assert not np.array_equal(one.params["layers"][1]["q"], other.params["layers"][1]["q"])
    assert not np.array_equal(one.params["layers"][1]["q"], one.params["layers"][0]["q"])
