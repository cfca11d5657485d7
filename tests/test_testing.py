"""The public dummy model and tokenizer do what their documentation says."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remem_jax.errors import RememError
from remem_jax.rl.scoring import Reward, score
from remem_jax.testing import DummyTokenizer, make_episode, tiny_model

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


def test_the_parts_of_a_made_groups_reward_are_those_worked_out_by_hand():
    # Memory words of the answer "old bridge": a rollout goes 0, 1, 1/2 (turn 1 forgets old) and calls turn 0 back.
    chunks = ["The old bridge.", "Nothing.", "Nothing either."]
    replies = ["old bridge", "bridge", "bridge"]
    wrote = [f"<memory>{text}</memory>" for text in replies]
    wrote[1] += "<callback>old</callback>"
    group = [
        make_episode(*wrote, "\\boxed{The old bridge!}", chunks=chunks),
        make_episode(*["no marks"] * 3, "\\boxed{a bridge}", chunks=chunks, rollout=1),
    ]
    assert [turn.recalled for turn in group[0].turns] == [None, None, "old bridge", None]
    assert [len(turn.reply_ids) for turn in group[1].turns] == [9, 9, 9, 17]
    found = score([group], [["old bridge"]], Reward(), TOKENIZER, writes_queries=True)
    np.testing.assert_array_equal(found.outcome, [[1, 0]])
    np.testing.assert_array_equal(found.memory[0, :, 0], [1, -0.5, 0, 0])
    np.testing.assert_array_equal(found.callback[0, :, 0], [0, 0.5, 0, 0])
    np.testing.assert_array_equal(found.format[0], [[1, 0], [1, 0], [1, 0], [1, 1]])


def test_an_episode_without_replies_or_with_other_chunks_is_refused():
    with pytest.raises(RememError, match="at least the final reply"):
        make_episode()
    with pytest.raises(RememError, match="expected 1 chunks for 2 replies, found 2"):
        make_episode("<memory>a</memory>", "\\boxed{a}", chunks=["a", "b"])
    with pytest.raises(RememError, match="agent must be"):
        make_episode("\\boxed{a}", agent="retrieval")
