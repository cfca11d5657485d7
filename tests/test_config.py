"""Settings: what is refused and how it is said, what YAML, overrides and `remem.json` make of a configuration."""

import dataclasses
import json
from dataclasses import dataclass

import pytest

from remem_jax.agent.protocol import Tags
from remem_jax.config import AgentConfig, Sampling, load_config, override, read_agent_json, write_agent_json
from remem_jax.errors import RememError
from remem_jax.settings import check_types, field_docs, from_mapping


def message(call, *arguments, **named) -> str:
    """The one line that a call is refused with."""
    with pytest.raises(RememError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_defaults_are_the_papers_settings():
    config = AgentConfig()
    assert (config.agent, config.prompt_order, config.candidates) == ("rememr1", "section_first", "not_current")
    lengths = (config.chunk_tokens, config.memory_tokens, config.question_tokens, config.max_reply_tokens)
    assert lengths == (5000, 2048, 2048, 2048)
    assert config.sampling == Sampling(temperature=0.7, top_p=0.95, top_k=0)
    assert config.tags == Tags()
    assert config.max_chunks is None and config.prompts is None


def test_sampling_is_hashable_so_that_it_can_be_static_under_jit():
    assert len({Sampling(), Sampling(0.7, 0.95, 0), Sampling(temperature=0)}) == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temperature": -0.1}, "temperature: expected 0 (greedy) or a finite number of at least 0.01, found -0.1"),
        (
            {"temperature": float("nan")},
            "temperature: expected 0 (greedy) or a finite number of at least 0.01, found nan",
        ),
        (
            {"temperature": float("inf")},
            "temperature: expected 0 (greedy) or a finite number of at least 0.01, found inf",
        ),
        ({"temperature": 1e-30}, "temperature: expected 0 (greedy) or a finite number of at least 0.01, found 1e-30"),
        ({"temperature": True}, "temperature: expected a number, found True (true or false)"),
        ({"top_p": 0.0}, "top_p: expected a number above 0 and at most 1, found 0.0"),
        ({"top_p": 1.01}, "top_p: expected a number above 0 and at most 1, found 1.01"),
        ({"top_k": -1}, "top_k: expected a number of at least 0, found -1"),
        ({"top_k": 1.5}, "top_k: expected a whole number, found 1.5 (a number)"),
    ],
)
def test_sampling_refuses_what_cannot_be_drawn_from(values, said):
    assert message(Sampling, **values) == said


def test_sampling_allows_the_ends_of_its_ranges():
    assert Sampling(temperature=0, top_p=1, top_k=0).top_p == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"agent": "rememr"},
            "agent: expected one of rememr1, memagent, rule_callback, full_context, retrieval, found 'rememr'",
        ),
        (
            {"prompt_order": "last"},
            "prompt_order: expected one of section_last, section_first, document_first, question_last, found 'last'",
        ),
        ({"candidates": "some"}, "candidates: expected one of not_current, all, found 'some'"),
        ({"chunk_tokens": 0}, "chunk_tokens: expected a number of at least 1, found 0"),
        ({"memory_tokens": -1}, "memory_tokens: expected a number of at least 1, found -1"),
        ({"question_tokens": 0}, "question_tokens: expected a number of at least 1, found 0"),
        ({"max_reply_tokens": "many"}, "max_reply_tokens: expected a whole number, found 'many' (text)"),
        ({"retrieval_paragraphs": 0}, "retrieval_paragraphs: expected a number of at least 1, found 0"),
        ({"max_chunks": 0}, "max_chunks: expected a number of at least 1, or none, found 0"),
        ({"max_chunks": "2"}, "max_chunks: expected a whole number or none, found '2' (text)"),
        (
            {"prompts": {"turn.txt": 3}},
            "prompts: expected a mapping from text to text or none, found {'turn.txt': 3} (a mapping)",
        ),
    ],
)
def test_an_agent_configuration_names_the_field_what_it_expected_and_what_it_found(values, said):
    assert message(AgentConfig, **values) == said


def test_every_field_has_a_documentation_string():
    for cls in (Sampling, AgentConfig):
        docs = field_docs(cls)
        assert list(docs) == [f.name for f in dataclasses.fields(cls)]
        assert all(text.endswith(".") for text in docs.values())
    assert field_docs(Sampling)["temperature"] == "Divides the logits; 0 is greedy."


def test_yaml_is_read_over_the_defaults_and_overrides_over_yaml(tmp_path):
    path = tmp_path / "agent.yaml"
    path.write_text("agent: memagent\nchunk_tokens: 300\nsampling:\n  top_p: 0.5\ntags:\n  memory: update\n")
    config = load_config(AgentConfig, path, ["chunk_tokens=400", "sampling.temperature=0", "max_chunks=2"])
    assert (config.agent, config.chunk_tokens, config.max_chunks) == ("memagent", 400, 2)
    assert config.sampling == Sampling(temperature=0, top_p=0.5, top_k=0)
    assert config.tags == Tags(memory="update")


def test_without_a_file_the_overrides_stand_over_the_defaults():
    assert load_config(AgentConfig, None, ["tags.memory=null"]).tags == Tags(memory=None)
    assert load_config(AgentConfig, None) == AgentConfig()


def test_an_empty_yaml_file_means_the_defaults(tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(AgentConfig, tmp_path / "empty.yaml") == AgentConfig()


def test_prompt_texts_are_taken_from_yaml_by_file_name(tmp_path):
    (tmp_path / "a.yaml").write_text("prompts:\n  cue.txt: |\n    Reply now.\n")
    assert load_config(AgentConfig, tmp_path / "a.yaml").prompts == {"cue.txt": "Reply now.\n"}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("chunk_tokns=3", "overrides: chunk_tokns: expected a known setting, did you mean chunk_tokens?"),
        (
            "sampling.temprature=1",
            "overrides: sampling.temprature: expected a known setting, did you mean temperature?",
        ),
        ("sampling.top_p=2", "overrides: sampling.top_p: expected a number above 0 and at most 1, found 2"),
        ("chunk_tokens=1e3", "overrides: chunk_tokens: expected a whole number, found 1000.0 (a number)"),
        (
            "tags=3",
            "overrides: tags: expected a mapping with some of thinking, callback, memory, found 3 (a whole number)",
        ),
        ("tags.thinking=null", "overrides: tags.thinking: expected text, found None (none)"),
        ("chunk_tokens", "override: expected name=value, such as sampling.top_p=0.9, found 'chunk_tokens'"),
        ("=3", "override: expected name=value, such as sampling.top_p=0.9, found '=3'"),
    ],
)
def test_a_bad_override_is_refused_with_its_dotted_name(item, said):
    assert message(load_config, AgentConfig, None, [item]) == said


def test_a_key_like_none_known_is_answered_with_the_list():
    assert message(load_config, Sampling, None, ["zzz=1"]).endswith("one of temperature, top_p, top_k")


def test_a_missing_broken_or_undecodable_yaml_file_is_named(tmp_path):
    absent, broken, binary, plain = (tmp_path / name for name in ("absent.yaml", "broken.yaml", "b.yaml", "p.yaml"))
    assert message(load_config, AgentConfig, absent) == f"{absent}: expected a YAML file, found no such file"
    broken.write_text("agent: [rememr1\n")
    assert message(load_config, AgentConfig, broken).startswith(f"{broken}: expected readable YAML settings, found: ")
    binary.write_bytes(b"\xff\xfe\x00\xff")
    assert message(load_config, AgentConfig, binary).startswith(f"{binary}: expected readable YAML settings, found: ")
    plain.write_text("just words\n")
    assert message(load_config, AgentConfig, plain).startswith(f"{plain}: ")
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert message(load_config, AgentConfig, tmp_path / "list.yaml").startswith(str(tmp_path / "list.yaml"))


def test_a_long_value_is_cut_in_the_message():
    said = message(Sampling, temperature="x" * 1000)
    assert said.startswith("temperature: expected a number, found 'xxx") and len(said) < 160


@dataclass(frozen=True)
class Run:
    """A dataclass as training will have them: a required field, a list and a nested part."""

    name: str
    lengths: tuple[int, ...] = (1,)
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    shuffle: bool = True
    __post_init__ = check_types


def test_the_loader_reads_any_settings_dataclass(tmp_path):
    (tmp_path / "run.yaml").write_text("name: first\nlengths: [50, 100]\nshuffle: false\nsampling: {top_k: 4}\n")
    assert load_config(Run, tmp_path / "run.yaml") == Run("first", (50, 100), Sampling(top_k=4), False)
    assert message(from_mapping, Run, {}) == "name: expected text, found nothing: set it"
    said = message(from_mapping, Run, {"name": "a", "lengths": [1, "b"]})
    assert said == "lengths: expected a list of: a whole number, found (1, 'b') (a list)"
    assert message(Run, name="a", shuffle=1) == "shuffle: expected true or false, found 1 (a whole number)"


def test_agent_settings_survive_writing_and_reading(tmp_path):
    config = AgentConfig(
        agent="memagent",
        tags=Tags(thinking="think", callback="recall", memory=None),
        chunk_tokens=700,
        max_chunks=9,
        prompts={"cue.txt": "Réponds.\n"},
        sampling=Sampling(temperature=1, top_p=1, top_k=3),
    )
    path = write_agent_json(tmp_path, config)
    assert path == tmp_path / "remem.json"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["remem.json"]
    assert read_agent_json(tmp_path) == config
    assert read_agent_json(path) == config
    assert json.loads(path.read_text())["version"] == 1


def test_a_model_without_remem_json_has_no_settings_of_its_own(tmp_path):
    assert read_agent_json(tmp_path) is None
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert read_agent_json(tmp_path / "model.gguf") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON, found: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "expected a JSON object, found a list"),
        ("{}", 'expected version 1, found none: write "version": 1 into it'),
        ('{"version": 2}', "expected version 1, found 2: update remem_jax"),
        ('{"version": true}', 'expected version 1, found True: write "version": 1 into it'),
        ('{"version": 1, "chunk_token": 5}', "chunk_token: expected a known setting, did you mean chunk_tokens?"),
        (
            '{"version": 1, "sampling": {"top_k": "4"}}',
            "sampling.top_k: expected a whole number, found '4' (text)",
        ),
        ('{"version": 1, "memory_tokens": 0}', "memory_tokens: expected a number of at least 1, found 0"),
    ],
)
def test_a_bad_remem_json_is_refused_by_file_and_field(tmp_path, text, said):
    file = tmp_path / "remem.json"
    file.write_text(text)
    assert message(read_agent_json, tmp_path) == f"{file}: {said}"


def test_an_override_that_differs_from_the_models_settings_gives_one_warning():
    own = AgentConfig(chunk_tokens=4000)
    changed, warnings = override(own, chunk_tokens=1000, memory_tokens=2048, temperature=0.0, top_p=None)
    assert (changed.chunk_tokens, changed.memory_tokens) == (1000, 2048)
    assert changed.sampling == Sampling(temperature=0.0)
    assert warnings == [
        "other settings than the model's remem.json: chunk_tokens 1000 (not 4000), temperature 0.0 (not 0.7); "
        "a trained agent may suffer"
    ]


def test_an_override_with_the_same_values_or_none_changes_nothing_and_warns_of_nothing():
    own = AgentConfig(agent="memagent")
    assert override(own, agent="memagent", chunk_tokens=None, temperature=0.7) == (own, [])


def test_a_bad_override_of_a_models_settings_is_refused():
    assert message(override, AgentConfig(), agents="x") == "agents: expected a known setting, did you mean agent?"
    assert message(override, AgentConfig(), chunk_tokens=0) == "chunk_tokens: expected a number of at least 1, found 0"
    assert message(override, AgentConfig(), top_p=0.0).startswith("top_p: expected")
