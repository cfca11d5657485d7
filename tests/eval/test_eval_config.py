"""Settings of an evaluation: what may be written, what follows from it, and how each fault is told."""

from pathlib import Path

import pytest
import yaml

from remem_jax.errors import RememError
from remem_jax.eval.config import Dataset, EvalConfig, agent_models, agent_settings, dataset_file
from remem_jax.settings import field_docs, from_mapping, load_config, settings_of
from tests.eval.made_evaluation import settings, values

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_an_agent_is_its_own_name_runs_on_all_models_and_takes_the_sampling_of_all(tmp_path):
    config = settings(
        tmp_path,
        models={"a": "x", "b": "y"},
        agents={"memagent": None, "short": {"agent": "rememr1", "models": ["b"], "chunk_tokens": 100}},
        sampling={"temperature": 0},
    )
    assert agent_models(config, "memagent") == ("a", "b") and agent_models(config, "short") == ("b",)
    assert agent_settings(config, "memagent") == {"agent": "memagent", "temperature": 0}
    assert agent_settings(config, "short") == {"agent": "rememr1", "chunk_tokens": 100, "temperature": 0}


def test_an_agents_own_sampling_tags_and_prompts_go_before(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "cue.txt").write_text("Now.")
    own = {"sampling": {"temperature": 1.0}, "tags": {"memory": None}, "prompts": str(tmp_path / "prompts")}
    config = settings(tmp_path, agents={"rememr1": own}, sampling={"temperature": 0, "top_p": 0.5})
    found = agent_settings(config, "rememr1")
    assert (found["temperature"], found["top_p"]) == (1.0, 0.5) and found["tags"].memory is None
    assert found["prompts"]["cue"] == "Now."


def test_a_path_with_a_place_for_the_size_names_a_file_for_each():
    assert dataset_file(Dataset("d/x_{documents}.jsonl", (8,)), 8) == ("d/x_8.jsonl", None)
    assert dataset_file(Dataset("d/built", (8,)), 8) == ("d/built", 8)
    assert dataset_file(Dataset("d/own.jsonl"), None) == ("d/own.jsonl", None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents": {}}, "agents: expected at least one, found 'none'"),
        ({"agents": {"mine": {}}}, "agents.mine: expected `agent`, one of rememr1, memagent"),
        ({"agents": {"memagent": 3}}, "agents.memagent: expected settings of an agent, found 3"),
        ({"agents": {"memagent": {"models": ["other"]}}}, "agents.memagent.models: expected names of tiny, found"),
        ({"agents": {"memagent": {"models": []}}}, "agents.memagent.models: expected a list of names of models"),
        ({"agents": {"memagent": {"sampling": {"heat": 1}}}}, "agents.memagent: heat: expected a known setting"),
        ({"agents": {"memagent": {"tags": {"mem": 1}}}}, "agents.memagent: mem: expected a known setting"),
        ({"models": {"a b": "x"}}, "models: expected names of letters, digits"),
        ({"datasets": {"d": {"documents": [8]}}}, "datasets.d.path: expected text, found nothing: set it"),
        ({"datasets": {"d": {"path": "x", "documents": [8, 8]}}}, "datasets.d.documents: expected every number once"),
        ({"datasets": {"d": {"path": "x_{documents}"}}}, "datasets.d.documents: expected the sizes that stand for"),
        ({"datasets": {"d": "x"}}, "datasets.d: expected a mapping with some of path, documents, found 'x'"),
        ({"datasets": "x"}, "datasets: expected a mapping from text to"),
        ({"questions": 0}, "questions: expected at least 1, or none for all, found 0"),
        ({"questions_in_flight": 0}, "questions_in_flight: expected at least 1, found 0"),
        ({"seed": -1}, "seed: expected a number from 0"),
        ({"dtype": "int8"}, "dtype: expected one of float32, bfloat16, float16, found 'int8'"),
        ({"attention": "fast"}, "attention: expected one of blocked"),
        ({"metric": "em"}, "metric: expected one of exact_match, f1"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature: expected 0 (greedy)"),
        ({"model": "x"}, "model: expected a known setting, did you mean models?"),
    ],
)  # fmt: skip
def test_a_fault_names_its_setting(tmp_path, changes, message):
    with pytest.raises(RememError) as told:
        from_mapping(EvalConfig, values(tmp_path, **changes))
    assert str(told.value).startswith(message), told.value


def test_every_setting_is_documented():
    for cls in (EvalConfig, Dataset):
        assert field_docs(cls).keys() == settings_of(cls).keys()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("eval_*.yaml")), ids=lambda path: path.stem)
def test_a_config_of_the_tree_is_sound_and_opens_with_hardware_time_score_and_command(path):
    config = load_config(EvalConfig, path)
    assert config.out.startswith("runs/")
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = "\n".join(head)
    assert "Hardware: " in text and "Time: " in text and "Score: " in text
    assert f"#   remem eval configs/{path.name}" in text
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["out"] == config.out


def test_paths_may_begin_at_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = from_mapping(
        EvalConfig,
        {
            "out": "~/o",
            "cache": "~/c",
            "models": {"m": "m"},
            "agents": {"memagent": {}},
            "datasets": {"d": {"path": "~/s", "documents": [4]}},
        },
    )
    assert (config.out, config.cache) == (f"{tmp_path}/o", f"{tmp_path}/c")
    assert config.datasets["d"].path == f"{tmp_path}/s"
