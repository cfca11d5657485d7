"""The plan of an evaluation: which questions, in which waves, and what its results depend on."""

import dataclasses
import json
import shutil

import pytest

from remem_jax.config import AgentConfig
from remem_jax.data.token_cache import TokenCache
from remem_jax.errors import RememError
from remem_jax.eval.plan import make_plan, make_waves, model_identity
from remem_jax.model import load_model
from tests.eval.made_evaluation import settings, write_evaluation


def quiet(what, done, total):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_evaluation(tmp_path_factory.mktemp("plan"))


def test_waves_go_by_turns_then_by_id_and_hold_so_many_questions():
    agent = AgentConfig(chunk_tokens=10)
    ids, tokens = ["e", "d", "c", "b", "a"], [11, 30, 20, 0, 9]  # 2, 3, 2, 0 and 1 chunks
    assert make_waves(agent, ids, tokens, 2) == ((3, 4), (2, 0), (1,))
    assert make_waves(agent, ids, tokens, 9) == ((3, 4, 2, 0, 1),)
    capped = dataclasses.replace(agent, max_chunks=1)
    assert make_waves(capped, ids, tokens, 9) == ((3, 4, 2, 1, 0),)
    without_loop = dataclasses.replace(agent, agent="retrieval")
    assert make_waves(without_loop, ids, tokens, 9) == ((4, 3, 2, 1, 0),)


def test_cells_are_every_agent_on_every_size_with_the_first_questions_by_id(folder):
    plan = make_plan(settings(folder, questions=3), None, quiet)
    assert [(c.player.name, c.questions.documents) for c in plan.cells] == [
        ("rememr1", 4), ("rememr1", 8), ("memagent", 4), ("memagent", 8), ("retrieval", 4), ("retrieval", 8)
    ]  # fmt: skip
    eight = plan.cells[1]
    assert eight.questions.ids == tuple(f"relay-distant-8-evaluation-{i}" for i in range(3))
    # 8 documents of 3 words are 24 tokens, 4 chunks of 6.
    assert eight.tokens == (24, 24, 24) and eight.memory_turns(0) == 4 and eight.turns((0, 1)) == 10
    assert eight.waves == ((0, 1), (2,)) and str(eight.file) == "results/relay/8/rememr1@tiny.jsonl"
    assert plan.cells[5].turns((0, 1, 2)) == 3 and plan.dtype == "float32"


def test_an_agent_on_two_models_is_two_lines_and_cells_of_a_model_stand_together(folder):
    models = {"one": str(folder / "start"), "two": str(folder / "start")}
    agents = {"rememr1": {}, "memagent": {"models": ["two"]}}
    plan = make_plan(settings(folder, models=models, agents=agents, questions=1), None, quiet)
    names = [cell.player.name for cell in plan.cells]
    assert names == ["rememr1@one"] * 2 + ["rememr1@two"] * 2 + ["memagent"] * 2


def test_a_file_without_sizes_is_one_column_named_by_its_largest_question(folder):
    lines = (folder / "data" / "distant_8.jsonl").read_text().splitlines()
    lines.append((folder / "data" / "distant_4.jsonl").read_text().splitlines()[0])
    path = folder / "mixed.jsonl"
    path.write_text("\n".join(lines[::-1]) + "\n")
    config = settings(folder, datasets={"own": {"path": str(path)}}, agents={"memagent": {}}, questions=None)
    (cell,) = make_plan(config, None, quiet).cells
    assert cell.questions.documents == 8 and len(cell.questions.ids) == 6
    assert list(cell.questions.ids) == sorted(cell.questions.ids)
    assert cell.waves[0][0] == cell.questions.ids.index("relay-distant-4-evaluation-0")  # the shortest is first


def test_an_override_is_told_once_and_lengths_are_fitted_where_a_model_has_none(folder):
    plan = make_plan(settings(folder, sampling={"temperature": 0.0}, agents={"rememr1": {}}), None, quiet)
    (note,) = {note for cell in plan.cells for note in cell.player.notes}
    assert note.startswith("other settings than the model's remem.json: temperature 0.0 (not 1.0)")
    bare = folder / "bare"
    shutil.copytree(folder / "start", bare)
    (bare / "remem.json").unlink()
    small = {"question_tokens": 8, "max_reply_tokens": 16, "prompts": {"rules": "", "rules_callback": ""}}
    config = settings(folder, models={"tiny": str(bare)}, agents={"memagent": small})
    cell = make_plan(config, None, quiet).cells[0]
    assert cell.player.agent.config.chunk_tokens < 512 and cell.player.agent.config.max_reply_tokens == 16
    assert "lengths fitted to the model's context of 512" in cell.player.notes[0]
    assert (cell.player.agent.config.sampling.temperature, cell.player.agent.config.sampling.top_p) == (0.7, 0.95)


def test_the_identity_tells_models_settings_and_data_apart(folder, tmp_path):
    first = make_plan(settings(folder), None, quiet).identity
    assert make_plan(settings(folder, metric="f1"), None, quiet).identity == first
    assert json.loads(json.dumps(first)) == first
    changed = make_plan(settings(folder, agents={"rememr1": {"memory_tokens": 3}}), None, quiet).identity
    assert changed["agents"]["rememr1@tiny"]["memory_tokens"] == 3 != first["agents"]["rememr1@tiny"]["memory_tokens"]
    assert changed["data"] == first["data"] and changed["models"] == first["models"]
    shutil.copytree(folder / "start", tmp_path / "start")
    same = load_model(tmp_path / "start", weights=False)
    assert model_identity(same) == first["models"]["tiny"]
    file = tmp_path / "start" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert model_identity(same) != first["models"]["tiny"]


def test_token_ids_of_long_documents_are_kept_and_give_the_same_plan(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("remem_jax.data.token_cache.SHORT", 0)
    cached = make_plan(settings(folder), TokenCache(tmp_path), quiet)
    assert len(list(tmp_path.rglob("*.npy"))) == 10  # 5 questions of 2 sizes, once for all agents
    assert [cell.tokens for cell in cached.cells] == [
        cell.tokens for cell in make_plan(settings(folder), None, quiet).cells
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": {"d": {"path": "none.jsonl"}}}, "datasets.d: none.jsonl: no such file"),
        ({"models": {"tiny": "nowhere/else/x"}}, "path nowhere/else/x does not exist"),
        ({"agents": {"rememr1": {"chunk_tokens": 600}}}, "agents.rememr1, model tiny: question 1 + reply 9 + prompt"),
        ({"agents": {"rememr1": {"chunks": 6}}}, "agents.rememr1, model tiny: chunks: expected a known setting"),
        ({"attention": "cudnn"}, "attention: "),
    ],
)
def test_what_cannot_run_is_refused_before_any_question(folder, changes, message):
    with pytest.raises(RememError) as told:
        make_plan(settings(folder, **changes), None, quiet)
    assert str(told.value).startswith(message), told.value


def test_a_model_that_no_agent_uses_is_refused(folder):
    models = {"tiny": str(folder / "start"), "idle": str(folder / "start")}
    with pytest.raises(RememError, match="found idle unused"):
        make_plan(settings(folder, models=models, agents={"memagent": {"models": ["tiny"]}}), None, quiet)
