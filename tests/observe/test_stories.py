"""Trajectories read back from files: what a person may have edited, cut short or mixed up is told by its line."""

import itertools
import json
from pathlib import Path

import pytest

from remem_jax.errors import RememError
from remem_jax.observe.stories import read_trajectories, sample
from remem_jax.observe.trajectories import turn_record, write_records
from tests.made_turns import made_turn, told_episode


def turn(number: int, question: str = "Who?", **changes) -> dict:
    """A line with what must be there, and `changes`."""
    return {"question": question, "turn": number, "final": False, "reply": "r"} | changes


def written(tmp_path: Path, *turns: dict) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in turns))
    return path


def a_run(tmp_path: Path, questions: int, rollouts: int, steps: tuple[int, ...] = (1, 10)) -> Path:
    """A run's directory with so many questions and rollouts of one final turn at each step."""
    for step in steps:
        lines = [
            turn(0, f"Who is {n}?", question_id=f"id-{n}", rollout=g, step=step, final=True, answer=f"{n} {g}")
            for n in range(questions)
            for g in range(rollouts)
        ]
        write_records(tmp_path / "trajectories" / f"step_{step:06}.jsonl", lines)
    return tmp_path


def test_turns_of_rollouts_that_alternate_are_put_together_and_counted(tmp_path):
    lines = [
        turn(0, rollout=0, callback="York", valid=True, ended=True, memory="m"),
        turn(0, rollout=1, callback="lost", valid=False, ended=False, reason="nested"),
        turn(1, rollout=0, recalled_step=0, recalled="m", recalled_score=0.5, valid=True),
        turn(2, rollout=0, final=True, answer="The York.", answers=["york"], valid=True, memory_gain=0.0),
        turn(2, rollout=1, final=True, answer=None, valid=True),
    ]
    for line in lines:
        line.setdefault("answers", ["york"])
    lines[0]["memory_gain"] = 0.25
    first, second = read_trajectories(written(tmp_path, *lines))
    assert [len(first.turns), len(second.turns)] == [3, 2]
    assert (first.answer, first.exact_match, first.f1, first.calls, first.hits) == ("The York.", 1.0, 1.0, 1, 1)
    assert (second.exact_match, second.calls, second.hits, second.invalid_turns, second.truncated) == (0.0, 0, 0, 1, 1)
    assert first.total("memory_gain") == 0.25 and first.total("outcome") is None


def test_a_trace_without_gold_answers_has_no_scores_and_one_cut_short_no_answer(tmp_path):
    (done,) = read_trajectories(written(tmp_path, turn(0, final=True, answer="x")))
    assert (done.answer, done.answers, done.exact_match, done.f1) == ("x", None, None, None)
    path = written(tmp_path, turn(0, answers="York"))
    path.write_text(path.read_text() + '{"question": "Who?", "tu')
    (cut,) = read_trajectories(path)
    assert (cut.finished, cut.answer, cut.answers, cut.exact_match) == (False, None, ("York",), None)


def test_what_the_trace_writer_writes_is_read_back(tmp_path):
    turns = made_turn(0, memory="m", callback="m"), made_turn(1, final=True, recalled_step=0, recalled="m", reply="x")
    episode = told_episode(["one"], *turns)
    path = write_records(tmp_path / "t.jsonl", [turn_record(episode, one, "one") for one in turns])
    (found,) = read_trajectories(path)
    assert [one["memory"] for one in found.turns] == ["m", None] and found.turns[1]["recalled_step"] == 0
    assert (found.source, found.question_id, found.hits) == (str(path), "q", 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "line 2: expected a JSON object, found none"),
        ("{not json}", "line 2: expected a JSON object, found none"),
        ("[" * 100_000, "line 2: expected a JSON object, found none"),
        (json.dumps(turn(-1)), "line 2: turn: expected a whole number from 0 on, found -1"),
        (json.dumps(turn(True)), "line 2: turn: expected a whole number from 0 on, found true"),
        ('{"question": "Who?", "turn": 1, "final": false}', "line 2: reply: expected text, found nothing"),
        (json.dumps(turn(1, memory=["a"])), 'line 2: memory: expected text, found ["a"]'),
        (json.dumps(turn(1, answers=[1])), "line 2: answers: expected a list of texts, found [1]"),
        (json.dumps(turn(1, recalled_step=1)), "line 2: recalled_step: expected a turn before turn 1, found 1"),
        (json.dumps(turn(0)), "line 2: expected the turns of a rollout in order, each once, found turn 0 after turn 0"),
    ],
)
def test_a_wrong_line_is_told_with_its_number_and_field(tmp_path, line, message):
    path = written(tmp_path, turn(0))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RememError) as error:
        read_trajectories(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_numbers_that_are_none_are_absent(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"question": "?", "turn": 0, "final": true, "reply": "", "advantage": NaN, "outcome": 1e999}\n')
    (found,) = read_trajectories(path)
    assert found.turns[0]["advantage"] is None and found.turns[0]["outcome"] is None


def test_nothing_to_read_is_told(tmp_path):
    with pytest.raises(RememError, match=r"none\.jsonl cannot be read: No such file"):
        read_trajectories(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(RememError, match="expected a turn a line, found none"):
        read_trajectories(tmp_path / "empty.jsonl")
    assert read_trajectories(tmp_path) == []


def test_a_sample_holds_whole_questions_and_is_the_same_while_reading_and_after(tmp_path):
    run = a_run(tmp_path, questions=20, rollouts=3)
    every = read_trajectories(run)
    assert len(every) == 20 * 3 * 2
    for limit in (1, 6, 7, 40, 119, 120, 500):
        kept = read_trajectories(run, limit=limit)
        assert kept == sample(every, limit), limit
        assert len({one.question for one in kept}) == max(min(limit // 6, 20), 1)
        assert len(kept) == 6 * len({one.question for one in kept})
        assert kept == [one for one in every if one in kept]


def test_larger_samples_hold_the_smaller_ones_and_questions_of_all_ages(tmp_path):
    run = a_run(tmp_path, questions=50, rollouts=1, steps=(1,))
    samples = [{one.question for one in read_trajectories(run, limit=limit)} for limit in range(1, 51)]
    assert all(small < large for small, large in itertools.pairwise(samples))
    assert samples[9] != {f"Who is {n}?" for n in range(10)}
