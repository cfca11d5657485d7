"""Health of a rollout batch, every number counted by hand; and that counting costs little beside a training step.

Axes: `N` questions, `T1` turns (the last is the final turn), `G` rollouts.
"""

import math
import time

import numpy as np
import pytest

from remem_jax.agent.protocol import parse_reply
from remem_jax.rl.health import INVALID, health_metrics
from remem_jax.rl.scoring import Scores
from remem_jax.testing import DummyTokenizer
from tests.made_turns import made_turn, told_episode


def scores_of(episodes, callback=None):
    """Scores whose mask is that of the episodes' turns, with some callback gains at (question, turn, rollout)."""
    turns = max(len(episode.turns) for group in episodes for episode in group)
    shape = (len(episodes), turns, len(episodes[0]))
    mask = np.zeros(shape, bool)
    for n, group in enumerate(episodes):
        for g, episode in enumerate(group):
            for turn in episode.turns:
                mask[n, -1 if turn.final else turn.turn, g] = True
    gains = np.zeros(shape, np.float32)
    for at, gain in (callback or {}).items():
        gains[at] = gain
    nothing = np.zeros(shape, np.float32)
    return Scores(np.zeros((shape[0], shape[2]), np.float32), nothing, gains, nothing, nothing, mask, nothing)


def health(episodes, answers=None, *, callback=None, prompt_texts=(), scores=None):
    """Metrics by name without the group."""
    found = health_metrics(
        episodes,
        scores or scores_of(episodes, callback),
        tokenizer=DummyTokenizer(),
        answers=answers or [["x"]] * len(episodes),
        prompt_texts=prompt_texts,
    )
    assert all(name.startswith("health/") and type(value) is float for name, value in found.items())
    return {name.removeprefix("health/"): value for name, value in found.items()}


def final(number, **changes):
    return made_turn(number, final=True, **changes)


def test_queries_are_counted_hits_and_gains_among_those_written():
    """Five memory turns; three write a query, two of these find a memory, one finds an answer word worth .5."""
    long = told_episode(
        ["a", "b", "c"],
        made_turn(0, callback="p"),
        made_turn(1, callback="q", recalled_step=-1),
        made_turn(2, callback="", recalled_step=0),
        final(3),
    )
    short = told_episode(["a", "b"], made_turn(0), made_turn(1, callback="r"), final(2, recalled_step=0))
    found = health([[long], [short]], callback={(0, 1, 0): 0.5})
    assert found["call_rate"] == 3 / 5
    assert found["hit_rate"] == 2 / 3
    assert found["callback_gain"] == pytest.approx(0.5 / 3)
    assert found["useful_call_rate"] == 1 / 3
    # Later turns are 1, 2, 3 and 1, 2; turn 2 shows what turn 0 wrote, and so does the short one's final turn 2.
    assert found["recalled_rate"] == 2 / 5 and found["recalled_distance"] == 2.0


def test_distances_of_recalled_memories_are_averaged_over_turns_that_show_one():
    episode = told_episode(
        ["a", "b", "c"], made_turn(0), made_turn(1, recalled_step=0), made_turn(2), final(3, recalled_step=0)
    )
    assert health([[episode]])["recalled_distance"] == (1 + 3) / 2


def test_a_query_that_repeats_the_question_or_a_prompt_text_says_nothing_of_its_own():
    queries = [
        "harbour the keeps, WHO?",  # the question's words in another order
        "who keeps",  # a part of it
        "keeper of Dune Harbor",  # stands in the prompt text, word for word
        "keeper Dune",  # its words, not one after the other
        "keep",  # not a whole word of it
        "!",  # no word at all
    ]
    text = "For example: <callback>Keeper of Dune  Harbor</callback>."
    turns = [made_turn(i, callback=query) for i, query in enumerate(queries)]
    episode = told_episode(["a"] * 6, *turns, final(6), question="Who keeps the harbour?")
    assert health([[episode]], prompt_texts=["Rules.", text])["query_from_prompt"] == 2 / 6
    assert health([[episode]])["query_from_prompt"] == 1 / 6


def test_equal_queries_of_two_questions_are_judged_by_their_own_question():
    episodes = [
        [told_episode(["a"], made_turn(0, callback="who is it"), final(1), question=question)]
        for question in ("Who is it?", "Who was it?")
    ]
    assert health(episodes)["query_from_prompt"] == 0.5


def test_memories_have_lengths_and_a_share_of_distinct_words():
    episode = told_episode(
        ["a", "b", "c"],
        made_turn(0, valid=False, reason="no_memory"),
        made_turn(1, memory="The cat, the dog.", memory_tokens=4, memory_cut=True, dropped_words=2),
        made_turn(2, memory="so So SO", memory_tokens=8, dropped_words=3),
        final(3, memory="so So SO", memory_tokens=8),
    )
    found = health([[episode]])
    assert found["memory_tokens"] == 4.0 and found["memory_tokens_max"] == 8.0  # 0, 4, 8; the final turn writes none
    assert found["distinct_words"] == pytest.approx((3 / 4 + 1 / 3) / 2)
    assert found["memory_cut"] == pytest.approx(1 / 3) and found["dropped_words"] == 5.0


def test_a_memory_kept_by_an_invalid_turn_is_no_memory_written():
    kept = made_turn(1, valid=False, reason="nested", memory="a b", memory_tokens=2)
    episode = told_episode(["x", "y"], made_turn(0, memory="a a", memory_tokens=2), kept, final(2, memory="a b"))
    found = health([[episode]])
    assert found["distinct_words"] == 0.5 and found["memory_tokens"] == 2.0


def test_answer_words_of_a_chunk_that_the_new_memory_lacks_are_counted_for_every_rollout():
    """Chunk 0 holds ada and moss, chunk 1 visby; four and two places, of which the memories lack one and two."""
    chunks = ["Ada's father MOSS sails.", "To Visby", "nothing"]

    def rollout(g, *memories):
        turns = [made_turn(i, memory=memory) for i, memory in enumerate(memories)]
        return told_episode(chunks, *turns, final(3), rollout=g)

    group = [rollout(0, "Ada Moss", "Ada Moss", "Ada"), rollout(1, "Mossy, Ada", None, "Visby")]
    assert health([group], [["Ada Moss", "Visby"]])["answer_words_missed"] == 3 / 6
    # A word of two gold answers is one word.
    assert health([group], [["Moss", "Moss Moss"]])["answer_words_missed"] == 1 / 2
    assert health([group], ["Ada Moss"])["answer_words_missed"] == 1 / 4


def test_questions_of_yes_or_no_miss_no_answer_words():
    no = [told_episode(["no way"], made_turn(0, memory="m"), final(1))]
    name = [told_episode(["Ada"], made_turn(0, memory="Ada"), final(1), id="n")]
    assert math.isnan(health([no], [["no"]])["answer_words_missed"])
    assert health([no, name], [["no"], ["Ada"]])["answer_words_missed"] == 0.0


def test_invalid_turns_are_told_by_cause_and_missing_boxes_apart():
    episode = told_episode(
        ["a", "b", "c", "d"],
        made_turn(0, valid=False, reason="nested"),
        made_turn(1),
        made_turn(2, valid=False, reason="nested"),
        made_turn(3, valid=False, reason="two_memories"),
        final(4, valid=False, reason="not_one_box"),
    )
    good = told_episode(["a", "b", "c", "d"], *(made_turn(i) for i in range(4)), final(4), rollout=1)
    found = health([[episode, good]])
    assert found["invalid"] == 3 / 8
    assert found["invalid_nested"] == 2 / 8 and found["invalid_two_memories"] == 1 / 8
    assert {name for name in found if name.startswith("invalid_")} == {f"invalid_{reason}" for reason in INVALID}
    assert sum(found[f"invalid_{reason}"] for reason in INVALID) == 3 / 8
    assert found["no_single_box"] == 1 / 2


def test_the_reasons_told_are_those_of_the_protocol():
    m, c = "<memory>m</memory>", "<callback>c</callback>"
    replies = ["<thinking>" + m, "m", "<memory>m", m + m, c + c + m, m + "</callback>",
               "<memory><callback>c</callback></memory>", "<memory> </memory>"]  # fmt: skip
    assert tuple(parse_reply(reply).reason for reply in replies) == INVALID


def test_reply_lengths_and_truncations_count_final_turns_too():
    episode = told_episode(
        ["a"], made_turn(0, reply_ids=np.arange(9), ended=False), final(1, reply_ids=np.arange(2))
    )  # fmt: skip
    found = health([[episode]])
    assert found["reply_tokens"] == 5.5 and found["reply_tokens_max"] == 9.0 and found["truncated"] == 0.5


def test_turns_outside_the_mask_count_nowhere():
    def group():
        alive = told_episode(["a"], made_turn(0, callback="who"), final(1, recalled_step=0))
        dead = told_episode(
            ["a"],
            made_turn(
                0, valid=False, reason="nested", memory="a a", memory_tokens=99, dropped_words=7, memory_cut=True
            ),
            final(1, valid=False, ended=False, reply_ids=np.arange(50)),
            rollout=1,
        )
        return [alive, dead]

    scores = scores_of([group()])
    scores.mask[:, :, 1] = False
    alone = [group()[:1]]
    assert health([group()], scores=scores) == pytest.approx(health(alone), nan_ok=True)


def test_a_batch_without_queries_and_without_memory_turns_has_no_shares_but_is_no_error():
    found = health([[told_episode([], final(0))]])
    for name in ("call_rate", "hit_rate", "callback_gain", "recalled_distance", "invalid", "distinct_words"):
        assert math.isnan(found[name])
    assert found["memory_tokens_max"] == 0.0 and found["truncated"] == 0.0 and found["reply_tokens"] == 3.0
    written = health([[told_episode(["a"], made_turn(0), final(1))]])
    assert written["call_rate"] == 0.0 and math.isnan(written["hit_rate"])


def test_two_thousand_rollouts_of_seven_turns_are_counted_in_seconds_and_a_chunk_is_decoded_once(monkeypatch):
    numbers = np.random.default_rng(0)
    texts = [" ".join(f"word{i}" for i in numbers.integers(0, 300, 100)) for _ in range(500)]
    decoded = []
    decode = DummyTokenizer.decode
    monkeypatch.setattr(DummyTokenizer, "decode", lambda self, ids: decoded.append(1) or decode(self, ids))

    def rollout(n, g):
        turns = [
            made_turn(t, memory=texts[(16 * n + g + t) % 500], callback=f"query {n} {g} {t}", recalled_step=t - 2)
            for t in range(6)
        ]
        return told_episode(chunks, *turns, final(6, recalled_step=4), id=f"q{n}", rollout=g)

    chunks = texts[:6]
    episodes = [[rollout(n, g) for g in range(16)] for n in range(128)]
    scores = scores_of(episodes)
    began = time.process_time()
    found = health(episodes, [["word1 word2"]] * 128, prompt_texts=texts[:12], scores=scores)
    assert time.process_time() - began < 6.0  # some .7 s were seen
    assert len(decoded) == 128 * 6
    assert found["call_rate"] == 1.0 and found["query_from_prompt"] == 0.0
