"""The folder of results: lines that survive a kill, one owner, and settings that may not be mixed."""

import dataclasses

import pytest

from remem_jax.errors import RememError
from remem_jax.eval.store import append_results, claim, differences, owned, stored_identity, stored_results
from tests.eval.test_tables import results

IDENTITY = {
    "written_by": "remem_jax 0", "platform": "cpu", "seed": 0, "models": {"m": "1"},
    "agents": {"a@m": {"chunk_tokens": 6, "memory_tokens": 6}}, "data": {"d/8": "2"},
}  # fmt: skip


def test_lines_are_appended_and_a_torn_one_is_as_good_as_none(tmp_path):
    path = tmp_path / "deep" / "a@m.jsonl"
    first, second, third = results(1.0, 0.0, None)
    append_results(path, [first, second])
    with path.open("a") as file:
        file.write('{"id": "q2", "predic')
    assert stored_results(path, ["q0", "q1", "q2"]) == {"q0": first, "q1": second}
    append_results(path, [third])
    assert list(stored_results(path, ["q0", "q1", "q2"])) == ["q0", "q1", "q2"]
    assert path.read_text().count("\n") == 3
    assert stored_results(tmp_path / "none.jsonl", ["q0"]) == {}
    path.write_text('{"id": ')  # nothing but a torn line
    assert stored_results(path, ["q0"]) == {}


def test_a_line_of_another_question_or_twice_is_refused(tmp_path):
    path = tmp_path / "a@m.jsonl"
    append_results(path, results(1.0))
    with pytest.raises(RememError, match="found 'q0' that is not among the questions: remove the file"):
        stored_results(path, ["q7"])
    append_results(path, results(1.0))
    with pytest.raises(RememError, match="found 'q0' twice"):
        stored_results(path, ["q0"])


def test_other_settings_are_refused_by_name_and_further_agents_sizes_and_models_are_not(tmp_path):
    claim(tmp_path, IDENTITY)
    agents = {"b@n": {"chunk_tokens": 7}}
    more = IDENTITY | {"written_by": "remem_jax 1", "agents": agents, "models": {"n": "3"}, "data": {"d/16": "4"}}
    claim(tmp_path, more)
    merged = stored_identity(tmp_path)
    assert merged is not None and merged["agents"] == IDENTITY["agents"] | more["agents"]
    assert merged["data"] == {"d/8": "2", "d/16": "4"} and merged["written_by"] == "remem_jax 1"
    other = IDENTITY | {"seed": 1, "models": {"m": "9"}, "agents": {"a@m": {"chunk_tokens": 8, "memory_tokens": 6}}}
    with pytest.raises(RememError, match=r"made with other agents.a@m.chunk_tokens, models.m, seed: give another"):
        claim(tmp_path, other)
    assert differences(IDENTITY, IDENTITY | {"data": {"d/8": "5"}}) == ["data.d/8"]
    assert stored_identity(tmp_path) == merged
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(RememError, match="expected what remem eval wrote"):
        stored_identity(tmp_path)


def test_a_folder_has_one_owner_at_a_time(tmp_path):
    refused = pytest.raises(RememError, match="another remem eval works in")
    with owned(tmp_path / "out"), refused, owned(tmp_path / "out"):
        pass
    with owned(tmp_path / "out"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(RememError, match=r"out: .*cannot be written"), owned(tmp_path / "file" / "out"):
        pass


def test_a_failed_question_keeps_its_reason_in_the_file(tmp_path):
    (failed,) = [dataclasses.replace(result, error="too long") for result in results(None)]
    append_results(tmp_path / "x.jsonl", [failed])
    assert stored_results(tmp_path / "x.jsonl", ["q0"])["q0"].error == "too long"
