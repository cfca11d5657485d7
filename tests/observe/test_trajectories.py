"""Traces: what a line holds, that each turn is written once, and when a file is touched at all."""

import json
import os

import pytest

from remem_jax.agent.loop import Progress
from remem_jax.agent.reading import Reading
from remem_jax.errors import RememError
from remem_jax.observe.trajectories import TraceWriter, check_trace, turn_record
from tests.made_turns import made_episode, made_turn


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_tells_what_was_shown_what_was_written_and_what_was_recalled():
    recalled = made_turn(2, recalled_step=0, recalled_score=0.5, recalled="old", callback="where", memory="new")
    record = turn_record(made_episode(recalled), recalled)
    assert record["recalled_step"] == 0 and record["recalled_score"] == 0.5 and record["recalled"] == "old"
    assert record["memory"] == "new" and record["callback"] == "where" and record["turn"] == 2
    assert record["reply_tokens"] == 3 and record["seconds"] == 1.2346 and "answer" not in record
    nothing = turn_record(made_episode(made_turn(0)), made_turn(0))
    assert nothing["recalled_step"] is None and nothing["recalled"] is None and nothing["memory"] is None


def test_the_final_line_holds_the_answer():
    final = made_turn(1, final=True, reply="So \\boxed{Ada}.")
    record = turn_record(made_episode(made_turn(0), final), final)
    assert record["final"] and record["answer"] == "Ada"
    final = made_turn(1, final=True, reply="I do not know")
    assert turn_record(made_episode(final), final)["answer"] is None


def test_questions_with_fewer_chunks_are_written_once_a_turn(tmp_path):
    """Two questions with 2 and 1 chunks: turns 0 (both), 1 (the first), final (both) are five lines."""
    writer = TraceWriter(tmp_path / "t.jsonl")
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
    writer = TraceWriter(tmp_path / "t.jsonl")
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
        TraceWriter(tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_reading_is_named_in_every_line():
    turn = made_turn(0)
    record = turn_record(made_episode(turn, id="q7"), turn)
    assert (record["question_id"], record["question"], record["rollout"]) == ("q7", "Who?", 0)
    assert isinstance(made_episode(turn).reading, Reading)
