"""The loop with a scripted policy: parsing, storing, looking up and prompts are the real ones, told as stories by hand.

Axes: `N` questions, `G` rollouts. In the prompts here `Q[..]` is the question, `C[..]` the chunk, `M[..]` the memory
and `R[..]` the recalled one.
"""

import random
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from remem_jax.agent import loop
from remem_jax.agent.loop import Agent
from remem_jax.agent.prompts import assemble, prompt_parts
from remem_jax.agent.protocol import Tags
from remem_jax.agent.reading import Reading, prepare
from remem_jax.config import AgentConfig
from remem_jax.data.documents import Document
from remem_jax.rollout.generate import Generation
from remem_jax.testing import SPECIAL, DummyTokenizer, make_episode

TOKENIZER = DummyTokenizer()
EOS = TOKENIZER.eos_ids[0]
PROMPTS = {
    "rules": "Rules.",
    "rules_bare": "Bare.",
    "rules_callback": "Ask.",
    "question": "Q[{question}]",
    "chunk": "C[{chunk}]",
    "recalled": "R[{recalled}]",
    "memory": "M[{memory}]",
    "cue": "Write.",
    "cue_bare": "Write.",
    "final_rules": "End.",
    "final_cue": "Answer.",
    "document_rules": "All.",
    "document": "C[{document}]",
    "no_memory": "none",
    "no_recall": "nothing",
}


def reading(name, question, *chunks):
    """A question over chunks given as texts."""
    ids = tuple(np.array(TOKENIZER.encode(chunk), np.int32) for chunk in chunks)
    return Reading(name, question, tuple(TOKENIZER.encode(question)), ids, sum(map(len, ids)))


def said(memory, query=None):
    return f"<memory>{memory}</memory>" if query is None else f"<callback>{query}</callback><memory>{memory}</memory>"


class Script:
    """Stands for `generate`: looks its reply up by the question and the chunk in the prompt, None in the final turn.

    A reply is a text (ended by EOS), a tuple of ids as they are, or a list of one of these for each rollout.
    """

    def __init__(self, replies):
        self.replies, self.calls = replies, []

    def __call__(self, model, prefixes, suffixes, sampling, *, max_new_tokens, keys, backend=None, between=None):
        n, g = suffixes.lengths.shape
        assert prefixes.lengths.shape == (n,) and keys.shape == (n, g) and suffixes.ids.shape[:2] == (n, g)
        ids, lengths = np.zeros((n, g, max_new_tokens), np.int32), np.zeros((n, g), np.int32)
        ended, call = np.zeros((n, g), bool), []
        for row, member in np.ndindex(n, g):
            if suffixes.lengths[row, member] == 0:
                continue
            prompt = [prefixes.ids[row, : prefixes.lengths[row]].tolist()]
            prompt.append(suffixes.ids[row, member, : suffixes.lengths[row, member]].tolist())
            call.append(prompt)
            text = TOKENIZER.decode([*prompt[0], *prompt[1]])
            reply = self.replies[shown("Q", text), shown("C", text)]
            reply = reply[member] if isinstance(reply, list) else reply
            out = [*TOKENIZER.encode(reply), EOS] if isinstance(reply, str) else list(reply)
            ids[row, member, : len(out)], lengths[row, member] = out, len(out)
            ended[row, member] = out[-1] == EOS
        self.calls.append(call)
        numbers = np.zeros(ids.shape, np.float32)
        return Generation(ids, lengths, numbers, numbers, ended, 0.0, 0.0)


def shown(name, text):
    """What a prompt shows in the block `name`, None where it has no such block."""
    found = re.search(rf"{name}\[(.*?)\]", text, re.DOTALL)
    return found and found[1]


def play(monkeypatch, readings, replies, *, rollouts=1, **config):
    """Episodes `[N][G]` of a scripted run, prompts kept."""
    sizes: dict[str, Any] = dict(chunk_tokens=40, memory_tokens=48, max_reply_tokens=120, prompts=PROMPTS)
    script = Script(replies)
    monkeypatch.setattr(loop, "generate", script)
    agent = Agent(SimpleNamespace(tokenizer=TOKENIZER), AgentConfig(**sizes | config))
    return agent.run(readings, rollouts=rollouts, keep_prompts=True), script, agent


def kept_ids(turn):
    return [turn.prefix_ids.tolist(), turn.suffix_ids.tolist()]


def prompt(turn):
    return TOKENIZER.decode([i for ids in kept_ids(turn) for i in ids])


def blocks(episode, name):
    """The block `name` in each turn's prompt."""
    return [shown(name, prompt(turn)) for turn in episode.turns]


QUESTION = "Where was the director of Dune Harbor born?"
FILM, RAIN, BORN = "film Dune Harbor, director Ada Lind", "mild rain, no film", "Ada Lind, born in Visby"
STORY = reading("dune", QUESTION, "Dune Harbor is by Ada Lind.", "It rains.", "Ada Lind is of Visby.")
REPLIES = {
    (QUESTION, "Dune Harbor is by Ada Lind."): f"<thinking>a film</thinking> {said(f'  {FILM} ')}",
    (QUESTION, "It rains."): said(RAIN, "director of Dune Harbor"),
    (QUESTION, "Ada Lind is of Visby."): said(BORN, "the rain"),
    (QUESTION, None): "I read \\boxed{x}, no: \\boxed{Visby}",
}


def test_a_dropped_memory_comes_back_when_it_is_called(monkeypatch):
    [[episode]], script, _ = play(monkeypatch, [STORY], REPLIES)
    assert [prompt(turn) for turn in episode.turns] == [
        f"Rules.\n\nAsk.\n\nQ[{QUESTION}]\n\nC[Dune Harbor is by Ada Lind.]\n\nR[nothing]\n\nM[none]\n\nWrite.",
        f"Rules.\n\nAsk.\n\nQ[{QUESTION}]\n\nC[It rains.]\n\nR[nothing]\n\nM[{FILM}]\n\nWrite.",
        f"Rules.\n\nAsk.\n\nQ[{QUESTION}]\n\nC[Ada Lind is of Visby.]\n\nR[{FILM}]\n\nM[{RAIN}]\n\nWrite.",
        f"End.\n\nQ[{QUESTION}]\n\nR[{RAIN}]\n\nM[{BORN}]\n\nAnswer.",
    ]
    turns = episode.turns
    assert [turn.recalled_step for turn in turns] == [-1, -1, 0, 1]
    assert [turn.recalled_score for turn in turns] == [0.0, 0.0, 0.75, 0.5]  # "of" is not in the memory, nor is "the"
    assert [turn.recalled for turn in turns] == [None, None, FILM, RAIN]
    assert [turn.memory for turn in turns] == [FILM, RAIN, BORN, BORN] and episode.memory == BORN
    assert [turn.callback for turn in turns] == [None, "director of Dune Harbor", "the rain", None]
    assert [turn.turn for turn in turns] == [0, 1, 2, 3] and [turn.final for turn in turns] == [False] * 3 + [True]
    assert [turn.valid for turn in turns] == [True, True, True, False] and turns[3].reason == "not_one_box"
    assert episode.answer == "Visby" and all(turn.ended for turn in turns)
    assert [turn.reply for turn in turns] == list(REPLIES.values())  # without the EOS that ended them
    assert turns[3].reply_ids.tolist() == [*TOKENIZER.encode(REPLIES[QUESTION, None]), EOS]
    assert [turn.prompt_tokens for turn in turns] == [len(p) + len(s) for [[p, s]] in script.calls]


def test_the_lookup_follows_the_storing_of_the_same_turn(monkeypatch):
    """The published code looks up first in training and last in evaluation, so the two see different prompts."""
    replies = {("who", "a"): said("red fox", "fox"), ("who", "b"): said("blue hen", "hen"), ("who", None): "\\boxed{1}"}
    story = [reading("x", "who", "a", "b")]
    [[every]], _, _ = play(monkeypatch, story, replies, candidates="all")
    assert blocks(every, "R") == ["nothing", "red fox", "blue hen"]
    [[others]], _, _ = play(monkeypatch, story, replies, candidates="not_current")
    assert blocks(others, "R") == ["nothing", "nothing", "nothing"]


def test_which_memories_may_be_recalled_is_a_setting(monkeypatch):
    replies = {
        ("who", "a"): said("red fox"),
        ("who", "b"): said("red fox hen", "red fox hen"),
        ("who", None): "\\boxed{1}",
    }
    for candidates, step, memory in (("not_current", 0, "red fox"), ("all", 1, "red fox hen")):
        [[episode]], _, _ = play(monkeypatch, [reading("x", "who", "a", "b")], replies, candidates=candidates)
        assert (episode.turns[2].recalled_step, shown("R", prompt(episode.turns[2]))) == (step, memory)


@pytest.mark.parametrize("broken", [said("hen", "fox") + "<memory>", said(" ", "fox"), "fox", ""])
def test_an_invalid_reply_changes_nothing_and_asks_nothing(monkeypatch, broken):
    chunks = ("a", "b", "c", "d")
    replies = {
        ("who", "a"): said("red fox"),
        ("who", "b"): said("blue hen", "fox"),
        ("who", "c"): broken,
        ("who", "d"): said("grey owl", "fox hen owl"),
        ("who", None): "\\boxed{1}",
    }
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who", *chunks)], replies)
    assert blocks(episode, "M") == ["none", "red fox", "blue hen", "blue hen", "grey owl"]
    assert blocks(episode, "R") == ["nothing", "nothing", "red fox", "nothing", "red fox"]
    turn = episode.turns[2]
    assert (turn.valid, turn.memory, turn.callback, turn.memory_tokens) == (False, "blue hen", None, 8) and turn.reason
    assert not turn.memory_cut and episode.turns[3].recalled_step == -1


def test_the_slot_of_an_invalid_turn_stays_empty_and_later_slots_keep_their_number(monkeypatch):
    replies = {
        ("who", "a"): "no memory at all",
        ("who", "b"): said("blue hen"),
        ("who", "c"): said("grey owl", "hen"),
        ("who", None): "\\boxed{1}",
    }
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who", "a", "b", "c")], replies)
    assert blocks(episode, "M") == ["none", "none", "blue hen", "grey owl"]
    assert episode.turns[0].memory is None and episode.turns[3].recalled_step == 1


def test_of_two_equal_memories_the_earlier_is_recalled(monkeypatch):
    replies = {
        ("who", "a"): said("red fox"),
        ("who", "b"): said("blue hen"),
        ("who", "c"): said("red fox", "fox"),
        ("who", "d"): said("grey owl", "the fox"),
        ("who", None): "\\boxed{1}",
    }
    story = [reading("x", "who", "a", "b", "c", "d")]
    for candidates in ("not_current", "all"):
        [[episode]], _, _ = play(monkeypatch, story, replies, candidates=candidates)
        assert [turn.recalled_step for turn in episode.turns] == [-1, -1, -1, 0, 0]
        assert [turn.recalled_score for turn in episode.turns[3:]] == [1.0, 0.5]


def test_a_blank_query_asks_nothing(monkeypatch):
    replies = {("who", "a"): said("fox"), ("who", "b"): said("hen", "  "), ("who", None): "\\boxed{1}"}
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who", "a", "b")], replies)
    assert episode.turns[1].valid and blocks(episode, "R") == ["nothing"] * 3


def test_the_rule_asks_with_the_question_at_every_turn_and_reads_callback_marks_as_text(monkeypatch):
    memory = "<callback>rain</callback> fox"
    replies = {
        ("what fox", "a"): said(memory),
        ("what fox", "b"): said("rain", "rain"),
        ("what fox", "c"): "invalid",
        ("what fox", None): "\\boxed{1}",
    }
    [[episode]], _, _ = play(monkeypatch, [reading("x", "what fox", "a", "b", "c")], replies, agent="rule_callback")
    assert blocks(episode, "M") == ["none", memory, "rain", "rain"]
    assert blocks(episode, "R") == ["nothing", "nothing", memory, memory]  # also after the invalid turn
    assert [turn.callback for turn in episode.turns] == [None] * 4
    assert [turn.recalled_score for turn in episode.turns] == [0.0, 0.0, 0.5, 0.5]
    assert prompt(episode.turns[0]).startswith("Rules.\n\nQ[")


def test_memagent_recalls_nothing_and_reads_callback_marks_as_text(monkeypatch):
    memory = "<callback>fox</callback> fox"
    replies = {("fox", "a"): said("fox"), ("fox", "b"): said(memory), ("fox", None): "\\boxed{1}"}
    [[episode]], _, _ = play(monkeypatch, [reading("x", "fox", "a", "b")], replies, agent="memagent", candidates="all")
    assert prompt(episode.turns[1]) == "Rules.\n\nQ[fox]\n\nC[b]\n\nM[fox]\n\nWrite."
    assert prompt(episode.turns[2]) == f"End.\n\nQ[fox]\n\nM[{memory}]\n\nAnswer."
    assert [turn.recalled_step for turn in episode.turns] == [-1] * 3 and episode.turns[2].lookup_seconds == 0


def test_a_long_memory_is_cut_and_the_cut_text_is_the_memory_everywhere(monkeypatch):
    # 12 tokens are "red fox hen" and the first byte of the second letter é.
    replies = {
        ("who", "a"): said("red fox henéé owl"),
        ("who", "b"): said("grey", "owl"),
        ("who", "c"): said("blue", "hen"),
        ("who", None): "\\boxed{1}",
    }
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who", "a", "b", "c")], replies, memory_tokens=12)
    assert blocks(episode, "M") == ["none", "red fox hen", "grey", "blue"]
    assert blocks(episode, "R") == ["nothing", "nothing", "nothing", "red fox hen"]  # nothing holds "owl" now
    assert [turn.memory for turn in episode.turns] == ["red fox hen", "grey", "blue", "blue"]
    assert [(turn.memory_cut, turn.memory_tokens) for turn in episode.turns] == [(True, 11), *[(False, 4)] * 3]


def test_words_that_do_not_fit_the_comparison_are_counted(monkeypatch):
    query = " ".join(map(str, range(300)))
    replies = {("who", "a"): said("red fox", query), ("who", None): "\\boxed{1}"}
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who", "a")], replies, max_reply_tokens=2000)
    assert [turn.dropped_words for turn in episode.turns] == [300 - loop.QUERY_WORDS, 0]


def test_without_memory_marks_the_whole_reply_is_the_memory(monkeypatch):
    replies = {
        ("who", "a"): "<thinking>hm</thinking> <memory>red fox</memory>\n",
        ("who", "b"): "<callback>fox</callback>blue hen",
        ("who", "c"): "\n ",
        ("who", None): "\\boxed{1}",
    }
    tags = Tags(memory=None)
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who", "a", "b", "c")], replies, tags=tags)
    assert blocks(episode, "M") == ["none", "<memory>red fox</memory>", "blue hen", "blue hen"]
    assert blocks(episode, "R") == ["nothing", "nothing", "<memory>red fox</memory>", "nothing"]
    assert prompt(episode.turns[0]).startswith("Bare.") and episode.turns[2].reason == "blank_memory"


def test_a_reply_that_met_its_limit_counts_by_what_it_holds(monkeypatch):
    whole = tuple(TOKENIZER.encode(said("red fox")))
    replies = {("who", "a"): whole, ("who", "b"): whole[:-1], ("who", None): tuple(TOKENIZER.encode("\\boxed{fox}"))}
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who", "a", "b")], replies)
    assert [(turn.valid, turn.ended, turn.memory) for turn in episode.turns] == [
        (True, False, "red fox"),
        (False, False, "red fox"),
        (True, False, "red fox"),
    ]
    assert episode.answer == "fox" and episode.turns[1].reason == "unclosed_memory"


def test_special_strings_and_special_ids_in_a_reply_add_no_special_id_to_a_prompt(monkeypatch):
    hostile = "".join(SPECIAL)
    sampled = (*TOKENIZER.encode("<memory>red "), 258, *TOKENIZER.encode("fox</memory>"), EOS)
    replies = {(hostile, hostile): said(hostile), (hostile, "b"): sampled, (hostile, None): "\\boxed{1}"}
    [[episode]], _, _ = play(monkeypatch, [reading("x", hostile, hostile, "b")], replies)
    assert blocks(episode, "M") == ["none", hostile, "red fox"]
    for turn in episode.turns:
        assert [i for ids in kept_ids(turn) for i in ids if i in TOKENIZER.special_ids] == [256, 258, 257, 259]


def test_questions_with_zero_one_and_three_chunks_share_a_wave(monkeypatch):
    readings = [reading("z", "none"), STORY, reading("o", "one", "Rain in Oslo.")]
    replies = REPLIES | {
        ("none", None): "\\boxed{unknown}",
        ("one", "Rain in Oslo."): said("rain in Oslo", "Oslo"),
        ("one", None): "\\boxed{rain}",
    }
    told = []
    monkeypatch.setattr(loop, "generate", script := Script(replies))
    agent = Agent(SimpleNamespace(tokenizer=TOKENIZER), AgentConfig(prompts=PROMPTS, memory_tokens=48))
    episodes = agent.run(readings, on_turn=lambda p: told.append((p.turn, p.turns, p.tokens_read)), keep_prompts=True)
    assert [e.reading.id for [e] in episodes] == ["z", "dune", "o"]
    assert [e.answer for [e] in episodes] == ["unknown", "Visby", "rain"]
    assert [[t.turn for t in e.turns] for [e] in episodes] == [[0], [0, 1, 2, 3], [0, 1]]
    assert [len(call) for call in script.calls] == [2, 1, 1, 3]  # live rows only
    assert told == [(1, 4, 27 + 13), (2, 4, 27 + 13 + 9), (3, 4, 27 + 13 + 9 + 21), (4, 4, 70)]
    assert prompt(episodes[0][0].turns[0]) == "End.\n\nQ[none]\n\nR[nothing]\n\nM[none]\n\nAnswer."
    assert blocks(episodes[2][0], "M") == ["none", "rain in Oslo"]
    [[alone]], _, _ = play(monkeypatch, [STORY], replies)
    assert [prompt(turn) for turn in alone.turns] == [prompt(turn) for turn in episodes[1][0].turns]


def test_each_rollout_goes_its_own_way(monkeypatch):
    replies = {
        ("who", "a"): [said("red fox"), said("blue hen"), "invalid"],
        ("who", "b"): [said("1", "fox"), said("2", "fox hen"), said("3", "fox")],
        ("who", None): ["\\boxed{1}", "\\boxed{2}", "nothing"],
    }
    [episodes], _, _ = play(monkeypatch, [reading("x", "who", "a", "b")], replies, rollouts=3)
    assert [blocks(e, "M") for e in episodes] == [
        ["none", "red fox", "1"],
        ["none", "blue hen", "2"],
        ["none", "none", "3"],
    ]
    assert [shown("R", prompt(e.turns[2])) for e in episodes] == ["red fox", "blue hen", "nothing"]
    assert [(e.rollout, e.answer, e.turns[-1].valid) for e in episodes] == [
        (0, "1", True),
        (1, "2", True),
        (2, None, False),
    ]


@pytest.mark.parametrize("order", ["section_last", "section_first"])  # test_state.py has all orders
def test_the_prompt_kept_for_training_is_the_one_that_was_answered_and_the_plain_assembly(monkeypatch, order):
    replies = REPLIES | {
        (QUESTION, "It rains."): [said(RAIN, "director of Dune Harbor"), "invalid"],
        ("one", "a"): [said("x"), said("y")],
        ("one", None): "\\boxed{1}",
    }
    readings = [STORY, reading("o", "one", "a")]
    episodes, script, agent = play(monkeypatch, readings, replies, rollouts=2, prompt_order=order)
    assert episodes[0][0].turns[2].recalled == FILM
    answered = [[prefix, suffix] for call in script.calls for prefix, suffix in call]
    for episode in (e for of_question in episodes for e in of_question):
        memory = None
        for turn in episode.turns:
            values = {
                "question": episode.reading.question_ids,
                "chunk": () if turn.final else episode.reading.chunks[turn.turn].tolist(),
                "memory": agent.blocks.no_memory if memory is None else TOKENIZER.encode(memory),
                "recalled": agent.blocks.no_recall if turn.recalled is None else TOKENIZER.encode(turn.recalled),
            }
            parts = prompt_parts(agent.blocks, "rememr1", order, turn.final)
            assert kept_ids(turn) == [assemble(part, values) for part in parts]
            answered.remove(kept_ids(turn))
            memory = turn.memory
    assert not answered


@pytest.mark.parametrize("order", ["section_last", "section_first"])  # test_state.py has all orders
@pytest.mark.parametrize("agent", ["full_context", "retrieval"])
def test_agents_without_a_loop_answer_from_one_prompt_and_report_the_cut(monkeypatch, agent, order):
    monkeypatch.setattr(loop, "generate", script := Script({}))
    settings = AgentConfig(agent, order, prompts=PROMPTS, max_reply_tokens=30, retrieval_paragraphs=1)
    player = Agent(SimpleNamespace(tokenizer=TOKENIZER), settings)
    documents = [Document("t", "rain " * 10 + "fox"), Document("u", "no")]
    asked = [("a", "What rain?"), ("b", "Who?")]
    # Room for 40 tokens of the document beside the longer question, the reply and the prompt's own 27 tokens.
    readings = prepare(TOKENIZER, settings, player.blocks, 40 + 10 + 30 + 27, asked, documents)
    whole = "Document 1:\nt\n" + "rain " * 10 + "fox"
    total = len(whole) + len("\n\nDocument 2:\nu\nno")
    if agent == "full_context":
        whole += "\n\nDocument 2:\nu\nno"
    cut = whole[:20] + whole[-20:]
    script.replies = {("What rain?", cut): "\\boxed{1}", ("Who?", cut): "\\boxed{2}"}
    told = []
    episodes = player.run(readings, rollouts=2, keep_prompts=True, on_turn=lambda p: told.append(p.tokens_read))
    assert [[e.answer for e in group] for group in episodes] == [["1", "1"], ["2", "2"]]
    assert told == [80] and [r.cut_tokens for r in readings] == [len(whole) - 40] * 2
    assert [r.document_tokens for r in readings] == [total] * 2
    (turn,) = episodes[0][1].turns
    assert (turn.final, turn.turn, turn.memory, turn.recalled) == (True, 0, None, None)
    assert blocks(episodes[1][0], "C") == [cut] and "M[" not in prompt(turn) and "R[" not in prompt(turn)


def test_a_document_free_question_of_an_agent_without_a_loop_still_gets_its_prompt(monkeypatch):
    replies = {("who", ""): "\\boxed{1}"}
    [[episode]], _, _ = play(monkeypatch, [reading("x", "who")], replies, agent="full_context")
    assert prompt(episode.turns[0]) == "All.\n\nQ[who]\n\nC[]\n\nAnswer." and episode.answer == "1"


@pytest.mark.parametrize("agent", ["rememr1", "memagent"])
def test_an_episode_made_of_an_agents_replies_is_the_agents_own(monkeypatch, agent):
    """`testing.make_episode` against 16 scripted rollouts of 5 memory turns: valid, broken, hits and misses."""
    chance = random.Random(5)
    animals = ["red fox", "blue hen", "Fox, red", "old hen", "cat"]
    forms = ["<memory>{0}</memory>", "<callback>{1}</callback><memory> {0}\n</memory>", "<memory>{0}"]
    forms += ["<callback> </callback><memory>{0}</memory>", "<thinking>{1}</thinking>{0}"]
    weights, texts = [3, 6, 1, 1, 1], [f"part {t}" for t in range(5)]

    def reply(_):
        return chance.choices(forms, weights)[0].format(chance.choice(animals), chance.choice(animals))

    replies: dict = {("who", text): [reply(g) for g in range(16)] for text in texts}
    replies["who", None] = [chance.choice(["\\boxed{fox}", "\\boxed{a}\\boxed{b}", "hen"]) for _ in range(16)]
    [group], _, _ = play(monkeypatch, [reading("x", "who", *texts)], replies, rollouts=16, agent=agent)
    names = ["turn", "final", "reply", "ended", "recalled_step", "recalled", "valid", "reason", "memory", "callback"]
    names += ["memory_tokens", "memory_cut"]
    for episode in group:
        made = make_episode(
            *(turn.reply for turn in episode.turns), question="who", chunks=texts, agent=agent, rollout=episode.rollout
        )
        assert (made.answer, made.memory, made.rollout) == (episode.answer, episode.memory, episode.rollout)
        for turn, again in zip(episode.turns, made.turns, strict=True):
            assert [getattr(again, name) for name in names] == [getattr(turn, name) for name in names]
            assert again.reply_ids.tolist() == turn.reply_ids.tolist()
            assert again.recalled_score == pytest.approx(turn.recalled_score)
    recalls = sum(turn.recalled is not None for episode in group for turn in episode.turns)
    assert recalls > 16 if agent == "rememr1" else recalls == 0
