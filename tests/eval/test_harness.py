"""Results of episodes told by hand, and of the agent's own loop with replies told by hand."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

from remem_jax.agent import loop
from remem_jax.agent.loop import Agent
from remem_jax.config import AgentConfig
from remem_jax.data.documents import Document
from remem_jax.data.pipeline import Example, make_example
from remem_jax.data.records import Record
from remem_jax.errors import RememError
from remem_jax.eval.harness import Result, evaluate, read_results, result_of, summary, write_results
from remem_jax.rollout.generate import Generation
from remem_jax.testing import tiny_model
from tests.made_turns import made_episode, made_turn
from tests.tiny_agent import LENGTHS, PROMPTS

RESULT = Result(
    id="a", prediction="Visby", answers=("Visby",), exact_match=1.0, f1=1.0, sub_exact_match=1.0, turns=5, calls=2,
    hits=1, recalled_distance=3.0, reply_tokens=20, invalid_turns=1, truncated=0, seconds=2.0, lookup_seconds=0.1,
)  # fmt: skip


def test_a_result_counts_calls_of_valid_turns_and_hits_of_all():
    episode = made_episode(
        made_turn(0, callback="Visby", lookup_seconds=0.01),
        made_turn(1, valid=False, reason="no_memory", ended=False, recalled_step=0, callback="lost"),
        made_turn(2, callback=""),
        made_turn(3, callback="the film", reply_ids=np.arange(7)),
        made_turn(4, final=True, recalled_step=1, reply="It is \\boxed{the town of Visby}"),
        chunks=4,
    )
    assert result_of(episode, "dune", ["Visby", "Gotland"]) == Result(
        id="dune",
        prediction="the town of Visby",
        answers=("Visby", "Gotland"),
        exact_match=0.0,
        f1=0.5,  # "the" is dropped: precision 1/3, recall 1
        sub_exact_match=1.0,
        turns=5,
        calls=2,
        hits=2,
        recalled_distance=2.0,  # one turn and three turns
        reply_tokens=19,
        invalid_turns=1,
        truncated=1,
        seconds=6.1728,
        lookup_seconds=0.01,
        sub_exact_match_published=1.0,
        document_tokens=32,
        prompt_tokens=50,
    )


def test_a_reply_without_a_box_is_wrong_and_an_agent_without_recall_has_no_distance():
    result = result_of(made_episode(made_turn(0), made_turn(1, final=True, reply="Visby")), "q", ["Visby"])
    assert result.prediction is None and result.recalled_distance is None
    assert (result.exact_match, result.f1, result.sub_exact_match, result.hits) == (0.0, 0.0, 0.0, 0)


def test_a_summary_means_over_questions_and_rates_over_turns():
    wrong = dataclasses.replace(
        RESULT, id="b", prediction=None, exact_match=0.0, f1=0.0, sub_exact_match=0.0, turns=3, calls=0, hits=3,
        recalled_distance=1.0, reply_tokens=4, invalid_turns=2, truncated=2,
    )  # fmt: skip
    found = summary([RESULT, wrong])
    assert found == {
        "exact_match": 0.5, "exact_match_low": 0.0, "exact_match_high": 1.0, "n": 2.0, "f1": 0.5,
        "sub_exact_match": 0.5, "turns": 4.0, "no_answer": 0.5,
        "call_rate": 2 / 6, "invalid_rate": 3 / 6,  # four and two memory turns
        "hit_rate": 4 / 2, "recalled_rate": 4 / 8, "recalled_distance": (1 * 3 + 3 * 1) / 4,
        "truncated_rate": 2 / 8, "reply_tokens": 24 / 8,
    }  # fmt: skip


def test_rates_of_nothing_are_left_out_of_a_summary():
    alone = dataclasses.replace(RESULT, turns=1, calls=0, hits=0, recalled_distance=None, invalid_turns=0)
    assert {"call_rate", "invalid_rate", "hit_rate", "recalled_distance"}.isdisjoint(summary([alone]))
    with pytest.raises(RememError, match="at least one question"):
        summary([])


def test_results_come_back_from_their_file(tmp_path):
    results = [RESULT, dataclasses.replace(RESULT, id="b", prediction=None, answers=("Ålesund", "b"))]
    write_results(tmp_path / "results.jsonl", results)
    assert read_results(tmp_path / "results.jsonl") == results
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    early = {name: value for name, value in json.loads(lines[0]).items() if name not in ("error", "history_bytes")}
    (tmp_path / "early.jsonl").write_text(json.dumps(early) + "\n")
    assert read_results(tmp_path / "early.jsonl") == [RESULT]  # what an earlier version wrote
    assert json.loads(lines[1])["answers"] == ["Ålesund", "b"]
    (tmp_path / "results.jsonl").write_text(lines[0].replace('"f1"', '"F1"'))
    with pytest.raises(RememError, match=r"line 1: expected the fields of a result, found .* differs in F1, f1"):
        read_results(tmp_path / "results.jsonl")
    with pytest.raises(RememError, match=r"results: .* cannot be written: .*; give another path"):
        write_results(tmp_path / "absent" / "results.jsonl", results)


def tiny_agent(**changes) -> Agent:
    settings: dict[str, Any] = LENGTHS | {"prompts": PROMPTS} | changes
    return Agent(tiny_model(num_layers=1), AgentConfig(**settings))


def made_examples(agent: Agent, texts: dict[str, str]) -> list[Example]:
    return [
        make_example(
            Record(name, "Who?", ("Ada",), (), (Document("t", text),)),
            agent.model.tokenizer,
            agent.config,
            agent.blocks,
            agent.model.config.max_positions,
        )
        for name, text in texts.items()
    ]


def test_every_reply_of_the_loop_is_scored_against_the_answers_of_its_own_question(monkeypatch):
    agent = tiny_agent(max_reply_tokens=16, document_format="plain")
    examples = made_examples(agent, {"right": "Ada, then Bo", "wrong": "Bo."})
    examples[1] = Example(dataclasses.replace(examples[1].record, answers=("Bo",)), examples[1].reading)
    said = np.array([*agent.model.tokenizer.encode("\\boxed{Ada}"), agent.model.tokenizer.eos_ids[0]], np.int32)
    keys = []

    def generate(model, prefixes, suffixes, sampling, **given):
        keys.append(np.asarray(jax.random.key_data(given["keys"])))
        given["between"]()
        shape = suffixes.lengths.shape
        ids = np.broadcast_to(np.pad(said, (0, 16 - len(said))), (*shape, 16))
        numbers = np.zeros(ids.shape, np.float32)
        return Generation(ids, np.full(shape, len(said)), numbers, numbers, np.ones(shape, bool), 0.0, 0.0)

    monkeypatch.setattr(loop, "generate", generate)
    told, visits = [], []
    options: dict[str, Any] = dict(on_turn=told.append, between=lambda: visits.append(1))
    right, wrong = evaluate(agent, examples, seed=3, step=5, **options)
    assert (right.id, right.prediction, right.exact_match, right.turns) == ("right", "Ada", 1.0, 3)
    assert (wrong.id, wrong.prediction, wrong.exact_match, wrong.turns) == ("wrong", "Ada", 0.0, 2)
    assert right.invalid_turns == 2 and right.truncated == 0 and right.reply_tokens == 3 * len(said)
    assert len(told) == len(visits) == len(keys) == 3  # one wave
    assert evaluate(agent, examples[1:], seed=3, step=5, questions_in_flight=1, **options)[0].id == "wrong"
    # The second question alone draws the numbers that it drew beside the first; another seed or step draws others.
    for alone, beside in ((keys[3], keys[0]), (keys[4], keys[2])):
        assert any(np.array_equal(alone[0], row) for row in beside)
    for other in (dict(seed=4, step=5), dict(seed=3, step=6)):
        evaluate(agent, examples, **other, **options)
        assert not np.array_equal(keys[-1], keys[2])


def test_a_question_given_twice_or_none_at_all_is_refused():
    agent = tiny_agent()
    twice = made_examples(agent, {"q": "Bo."}) * 2
    with pytest.raises(RememError, match="found the id 'q' again"):
        evaluate(agent, twice)
    with pytest.raises(RememError, match="at least one question to evaluate"):
        evaluate(agent, [])
