"""The documentation names things that exist: functions, files, commands with options, settings, code that runs."""

import ast
import importlib
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml

from remem_jax.cli import app
from remem_jax.data.records import read_records
from remem_jax.errors import RememError
from remem_jax.eval.config import EvalConfig
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.health import health_metrics
from remem_jax.rl.scoring import Reward, score
from remem_jax.settings import from_mapping, load_config
from remem_jax.testing import DummyTokenizer, make_episode
from tools.site_links import on_page_markdown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Lines of indented or fenced blocks that run `remem`, continued lines joined, remarks and shell variables cut."""
    text = re.sub(r"\\\n *", " ", page.read_text())
    found = re.findall(r"^(?:    |\$ )? *(?:\.venv/bin/)?remem (.+)$", text, flags=re.MULTILINE)
    return [re.split(r"\s[#>]\s| {4,}", line)[0].replace("$", "") for line in found]


def every(read) -> list:
    return [pytest.param(page, one, id=f"{page.name}-{i}") for page in PAGES for i, one in enumerate(read(page))]


def parse(words: Sequence[str]) -> None:
    """Check a command's name, options and number of arguments, as the command line would; run nothing."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"remem has no command {name}"
        command = command.commands[name]
    command.make_context("remem", [*words])


def test_every_function_of_the_map_from_method_to_code_exists():
    names = re.findall(r"`(remem_jax(?:\.\w+)+)`", (DOCS / "method.md").read_text())
    assert len(names) >= 19
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files_and_headings(page):
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        if heading:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}, heading


@pytest.mark.parametrize(("page", "code"), every(lambda page: blocks(page, "python")))
def test_python_blocks_parse_and_import_names_that_exist(page, code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("remem_jax"):
            for name in node.names:
                assert hasattr(importlib.import_module(node.module), name.name), f"{node.module}.{name.name}"


@pytest.mark.parametrize(("page", "line"), every(commands))
def test_the_options_of_every_command_exist(page, line):
    words = [word for word in shlex.split(line) if not word.startswith("[")]
    parse(words)
    settings = {"train": TrainConfig, "eval": EvalConfig}.get(words[0])
    if settings is not None and words[1].startswith("configs/"):
        given = [word for word in words[2:] if not word.startswith(("-", "reward.function="))]
        load_config(settings, ROOT / words[1], given)


def test_a_command_that_does_not_exist_would_be_found():
    for line in ("trian x", "train", "answer --modle x", "data biuld x", "plan configs/relay.yaml --topologie x"):
        with pytest.raises((AssertionError, typer.BadParameter.__mro__[2])):
            parse(line.split())
    with pytest.raises(RememError, match="steps"):
        load_config(TrainConfig, ROOT / "configs" / "relay.yaml", ["stepz=3"])


def test_the_smallest_configuration_of_the_training_page_is_one():
    (text,) = blocks(DOCS / "training.md", "yaml")
    assert from_mapping(TrainConfig, yaml.safe_load(text)).run_dir == "runs/first"


def test_the_reward_of_the_docs_passes_its_own_test_and_its_record_is_one(tmp_path, monkeypatch):
    page = DOCS / "own-reward.md"
    reward, check = blocks(page, "python")
    (tmp_path / "my_rewards.py").write_text(reward)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    names: dict = {}
    exec(compile(check, "test_my_rewards.py", "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()
    monkeypatch.delitem(sys.modules, "my_rewards")
    (record,) = blocks(page, "json")
    (tmp_path / "data.jsonl").write_text(json.dumps(json.loads(record)) + "\n")
    (read,) = read_records(tmp_path / "data.jsonl")
    assert read.answers == ("Visby",) and len(read.paragraphs) == 2


def test_the_prompt_texts_that_the_docs_name_are_those_of_the_package():
    named = set(re.findall(r"`(\w+\.txt)`", (DOCS / "own-reward.md").read_text()))
    assert len(named) >= 11
    assert named <= set(os.listdir(ROOT / "remem_jax" / "agent" / "prompt_texts"))


def test_every_name_of_the_api_page_exists():
    text = (DOCS / "api.md").read_text()
    names = re.findall(r"`(remem_jax(?:\.\w+)+)`|^::: (remem_jax(?:\.\w+)+)$", text, flags=re.MULTILINE)
    assert len(names) > 30
    for table, section in names:
        module, _, attribute = (table or section).rpartition(".")
        assert hasattr(importlib.import_module(module), attribute) or importlib.import_module(table or section)
    import remem_jax

    assert {f"remem_jax.{name}" for name in remem_jax.__all__} <= {table for table, _ in names}


def test_every_health_curve_of_the_tuning_page_is_logged():
    group = [make_episode("<memory>a</memory>", "\\boxed{a}"), make_episode("no marks", "no box", rollout=1)]
    scores = score([group], [["a"]], Reward(), DummyTokenizer(), writes_queries=True)
    logged = health_metrics([group], scores, tokenizer=DummyTokenizer(), answers=[["a"]])
    text = (DOCS / "tuning.md").read_text()
    named = set(re.findall(r"`health/(\w+)`", text)) | {"query_from_prompt", "distinct_words", "answer_words_missed"}
    named |= set(re.findall(r"`((?:\w+_(?:rate|gain|tokens|cut|distance|box)))`", text))
    assert len(named) >= 12
    assert {f"health/{name}" for name in named} <= logged.keys()


def test_the_site_lists_every_page_and_names_the_repository_of_the_notebooks():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = re.findall(r"\w[\w-]*\.md", json.dumps(site["nav"]))
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md"))
    markdown = on_page_markdown("[a](../launch/README.md#x) [b](data.md)", config=SimpleNamespace(**site))
    assert markdown == f"[a]({site['repo_url']}/blob/main/launch/README.md#x) [b](data.md)"
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f'REPOSITORY = \\"{site["repo_url"]}\\"' in notebook.read_text()
