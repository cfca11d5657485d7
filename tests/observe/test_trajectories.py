"""Traces: what a line holds, that each turn is written once, and when a file is touched at all.

Trajectories with rewards: every reward and advantage follows from the lines alone, in plain Python.
"""

import json
import os
import re
from collections import defaultdict

import pytest

from remem_jax.agent.loop import Progress
from remem_jax.agent.reading import Reading
from remem_jax.errors import RememError
from remem_jax.observe.trajectories import (
    TraceWriter,
    check_trace,
    chunk_text,
    scored_records,
    turn_record,
    write_records,
)
from remem_jax.rl.scoring import Reward, score
from remem_jax.testing import DummyTokenizer
from tests.made_turns import made_episode, made_turn, told_episode

TOKENIZER = DummyTokenizer()


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_tells_what_was_shown_what_was_written_and_what_was_recalled():
    recalled = made_turn(2, recalled_step=0, recalled_score=0.5, recalled="old", callback="where", memory="new")
    record = turn_record(made_episode(recalled), recalled, None)
    assert record["recalled_step"] == 0 and record["recalled_score"] == 0.5 and record["recalled"] == "old"
    assert record["memory"] == "new" and record["callback"] == "where" and record["turn"] == 2
    assert record["reply_tokens"] == 3 and record["seconds"] == 1.2346 and "answer" not in record
    nothing = turn_record(made_episode(made_turn(0)), made_turn(0), None)
    assert nothing["recalled_step"] is None and nothing["recalled"] is None and nothing["memory"] is None


def test_the_final_line_holds_the_answer():
    final = made_turn(1, final=True, reply="So \\boxed{Ada}.")
    record = turn_record(made_episode(made_turn(0), final), final, None)
    assert record["final"] and record["answer"] == "Ada"
    final = made_turn(1, final=True, reply="I do not know")
    assert turn_record(made_episode(final), final, None)["answer"] is None


def test_questions_with_fewer_chunks_are_written_once_a_turn(tmp_path):
    """Two questions with 2 and 1 chunks: turns 0 (both), 1 (the first), final (both) are five lines."""
    writer = TraceWriter(tmp_path / "t.jsonl", TOKENIZER)
    long, short = made_episode(id="long"), made_episode(id="short")
    played = [[(long, 0), (short, 0)], [(long, 1)], [(long, 2), (short, 1)]]
    for done, step in enumerate(played, 1):
        for episode, number in step:
            episode.turns.append(made_turn(number, final=done == 3))
        writer(Progress(done, 3, 0, 1.0, [[long], [short]]))
    writer.close()
    assert [(line["question_id"], line["turn"], line["final"]) for line in lines(tmp_path / "t.jsonl")] == [
        ("long", 0, False), ("short", 0, False), ("long", 1, False), ("long", 2, True), ("short", 1, True),
    ]  # fmt: skip


def test_lines_are_in_the_file_as_soon_as_a_turn_ends_and_keep_every_character(tmp_path):
    writer = TraceWriter(tmp_path / "t.jsonl", TOKENIZER)
    text = "é \u2028 \x00 \ud7ff 🗼\n" * 5000  # over any buffer's size
    writer(Progress(1, 2, 0, 1.0, [[made_episode(made_turn(0, reply=text))]]))
    whole = (tmp_path / "t.jsonl").read_bytes()
    assert whole.endswith(b"\n") and whole.count(b"\n") == 1
    assert json.loads(whole)["reply"] == text
    writer.close()


def test_a_path_is_checked_without_making_a_file(tmp_path):
    assert check_trace(tmp_path / "t.jsonl") == tmp_path / "t.jsonl"
    assert list(tmp_path.iterdir()) == []
    for path, reason in (
        (tmp_path / "no" / "t.jsonl", "the directory .*no does not exist; make it first"),
        (tmp_path, "cannot be written: it is a directory; give another path"),
    ):
        with pytest.raises(RememError, match=reason):
            check_trace(path)


def test_a_path_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write anywhere
    with pytest.raises(RememError, match="cannot be written: permission denied"):
        TraceWriter(tmp_path / "t.jsonl", TOKENIZER)
    assert list(tmp_path.iterdir()) == []


def test_a_reading_is_named_in_every_line():
    turn = made_turn(0)
    record = turn_record(made_episode(turn, id="q7"), turn, None)
    assert (record["question_id"], record["question"], record["rollout"]) == ("q7", "Who?", 0)
    assert isinstance(made_episode(turn).reading, Reading)


def test_a_line_holds_what_a_demonstration_needs(tmp_path):
    """The chunk shown and the memory before it; a loop's final turn shows no chunk, a prompt without a loop does."""
    episode = told_episode(["red fox", "blue é"], made_turn(0, memory="a"))
    episodes = [episode, told_episode(["red fox"], id="short")]
    writer = TraceWriter(tmp_path / "t.jsonl", TOKENIZER)
    writer(Progress(1, 3, 0, 1.0, [[e] for e in episodes]))
    episode.turns.append(made_turn(1, memory="b"))
    writer(Progress(2, 3, 0, 1.0, [[e] for e in episodes]))
    episode.turns.append(made_turn(2, final=True, memory="b", reply="\\boxed{x}", ended=False))
    episodes[1].turns.append(made_turn(0, final=True))
    writer(Progress(3, 3, 0, 1.0, [[e] for e in episodes]))
    writer.close()
    names = ("question", "final", "chunk", "memory_before", "recalled", "reply", "ended")
    assert [[line[name] for name in names] for line in lines(tmp_path / "t.jsonl")] == [
        ["Who?", False, "red fox", None, None, "text", True],
        ["Who?", False, "blue é", "a", None, "text", True],
        ["Who?", True, None, "b", None, "\\boxed{x}", False],
        ["Who?", True, "red fox", None, None, "text", True],
    ]
    assert chunk_text(episode.reading, 1, TOKENIZER) == "blue é" and chunk_text(episode.reading, 2, TOKENIZER) is None


def batch():
    """Two rollouts each of three questions: two chunks and aliases, one chunk, and an answer that is no."""

    def final(at, memory, reply, **more):
        return made_turn(at, final=True, memory=memory, reply=reply, valid=reply.count("boxed") == 1, **more)

    tale = ["Ada Moss keeps it.", "She is of Visby."]
    lost = made_turn(1, memory="Ada", callback="Moss")
    return [
        [
            told_episode(tale, made_turn(0, memory="Ada Moss"), lost,
                         final(2, "Ada", "\\boxed{Ada Moss}", recalled_step=0, recalled="Ada Moss"), id="a"),
            told_episode(tale, made_turn(0, valid=False, reason="no_memory"), made_turn(1, memory="of Visby, Ada Moss"),
                         final(2, "of Visby, Ada Moss", "Moss"), id="a", rollout=1),
        ],
        [
            told_episode(["In 1934."], made_turn(0, memory="1934", callback="1934"), final(1, "1934", "\\boxed{1934.}"),
                         id="b"),
            told_episode(["In 1934."], made_turn(0, memory="then"), final(1, "then", "\\boxed{1} \\boxed{1935}"),
                         id="b", rollout=1),
        ],
        [
            told_episode(["It is no."], made_turn(0, memory=memory), final(1, memory, "\\boxed{No}"), id="c", rollout=g)
            for g, memory in enumerate(["no", "it is"])
        ],
    ]  # fmt: skip


ANSWERS = [["Ada Moss", "Visby of Gotland"], ["1934"], ["no"]]


def plain_words(text):
    return set(re.findall(r"[a-z0-9]+", (text or "").lower()))


def plain_best(answers, *texts):
    """The best share of an answer's words that these texts hold together; 0 where all answers are yes or no."""
    if all(answer in ("yes", "no") for answer in answers):
        return 0.0
    held = set().union(*map(plain_words, texts))
    return max(len(plain_words(answer) & held) / len(plain_words(answer)) for answer in answers)


def plain_rewards(line, after):
    """Outcome, memory gain, callback gain, format and state reward of one line, from it and the line that follows."""
    answers, weights = line["answers"], line["reward_settings"]
    if line["final"]:
        gain = callback = 0.0
        kept = len(re.findall(r"\\boxed\{[^}]*\}", line["reply"])) == 1
    else:
        gain = plain_best(answers, line["memory"]) - plain_best(answers, line["memory_before"])
        seen = (line["memory"], after["chunk"])
        callback = plain_best(answers, line["recalled_by_query"], *seen) - plain_best(answers, *seen)
        kept = line["valid"]
    state = weights["memory"] * gain + weights["callback"] * callback + weights["format"] * kept
    return {"memory_gain": gain, "callback_gain": callback, "format": float(kept), "state_reward": state}


def centred(values):
    mean = sum(values.values()) / len(values)
    return {name: value - mean if len(values) > 1 else 0.0 for name, value in values.items()}


def test_every_reward_and_advantage_follows_from_the_lines_alone(tmp_path):
    reward = Reward(memory=2.0, callback=0.5, format=0.25, outcome=3.0, alpha=0.6)
    episodes = batch()
    scores = score(episodes, ANSWERS, reward, TOKENIZER, writes_queries=True)
    path = write_records(
        tmp_path / "trajectories" / "step_000020.jsonl",
        scored_records(episodes, scores, ANSWERS, reward, TOKENIZER, step=20),
    )
    written = lines(path)
    assert len(written) == 14 and {line["step"] for line in written} == {20} and all(line["live"] for line in written)
    assert [p.name for p in path.parent.iterdir()] == ["step_000020.jsonl"]

    outcomes, states = defaultdict(dict), defaultdict(dict)
    for line, after in zip(written, [*written[1:], None]):
        found = plain_rewards(line, after)
        assert {name: line[name] for name in found} == pytest.approx(found)
        if line["final"]:
            right = (line["answer"] or "").lower().strip(".") in [answer.lower() for answer in line["answers"]]
            outcomes[line["question_id"]][line["rollout"]] = line["reward_settings"]["outcome"] * right
        states[line["question_id"], line["turn"]][line["rollout"]] = found["state_reward"]
    for line in written:
        g, alpha = line["rollout"], line["reward_settings"]["alpha"]
        assert line["outcome"] == outcomes[line["question_id"]][g] / 3.0
        level = centred(outcomes[line["question_id"]])[g], centred(states[line["question_id"], line["turn"]])[g]
        assert line["advantage"] == pytest.approx(alpha * level[0] + (1 - alpha) * level[1], abs=1e-6)


def test_some_rewards_and_an_advantage_of_the_lines_by_hand():
    """Rollout 0 of the first question: memory "Ada Moss", then "Ada", and "Ada Moss" comes back by a query."""
    reward, episodes = Reward(), batch()
    scores = score(episodes, ANSWERS, reward, TOKENIZER, writes_queries=True)
    first, second, final = list(scored_records(episodes, scores, ANSWERS, reward, TOKENIZER, step=0))[:3]
    assert (first["memory_gain"], first["callback_gain"], first["format"], first["state_reward"]) == (
        1.0,
        0.0,
        1.0,
        2.0,
    )
    assert (second["memory_gain"], second["callback_gain"], second["state_reward"]) == (-0.5, 0.5, 1.0)
    assert second["recalled_by_query"] == "Ada Moss" and first["recalled_by_query"] is None
    # Outcomes 1 and 0: .5. States at turn 0 are 2 and 0 (invalid): 1. So .8 * .5 + .2 * 1.
    assert first["advantage"] == pytest.approx(0.6)
    # Final formats 1 and 0.
    assert final["advantage"] == pytest.approx(0.8 * 0.5 + 0.2 * 0.5)
    assert json.loads(json.dumps(final))["reward_settings"]["alpha"] == 0.8


def test_a_file_of_trajectories_appears_whole_or_not_at_all(tmp_path):
    def records():
        yield {"a": 1}
        raise KeyboardInterrupt

    path = tmp_path / "step.jsonl"
    write_records(path, [{"a": 0}])
    with pytest.raises(KeyboardInterrupt):
        write_records(path, records())
    assert lines(path) == [{"a": 0}]
    (tmp_path / "file").write_text("")
    with pytest.raises(RememError, match=r"step\.jsonl cannot be written: "):
        write_records(tmp_path / "file" / "step.jsonl", [])
