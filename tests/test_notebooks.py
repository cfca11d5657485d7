"""The notebooks as they lie in git: no outputs, one first cell, commands and files that exist; which jax they take."""

import ast
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.test_docs import parse
from tools import run_notebooks
from tools.notebook_setup import jax_range, numbers, what_to_install

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["01_tour", "02_train_relay", "03_own_reward", "04_inspect", "05_plan_a_pod"]


def cells(path: Path, kind: str = "code") -> list[str]:
    """Sources of the cells of a kind."""
    every = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in every if cell["cell_type"] == kind]


def test_the_five_notebooks_are_there_without_outputs():
    assert [path.stem for path in NOTEBOOKS] == NAMES
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            assert cell.get("outputs", []) == [] and cell.get("execution_count") is None, path.name


def test_first_cells_are_one_text_but_for_what_each_needs_and_badges_lead_to_their_own_notebook():
    firsts = {re.sub(r"ready\(memory_gib=[\d.]+, minutes=[\d.]+.*\)", "", cells(path)[0]) for path in NOTEBOOKS}
    assert len(firsts) == 1
    repository = re.search(r'REPOSITORY = "https://github.com/(.*)"', firsts.pop())
    assert repository
    for path in NOTEBOOKS:
        head = cells(path, "markdown")[0]
        assert f"https://colab.research.google.com/github/{repository[1]}/blob/main/notebooks/{path.name})" in head
        assert cells(path)[-1] == "took()"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_parses_imports_exist_and_commands_have_these_options(path):
    commands = 0
    for text in cells(path):
        if text.startswith("%%bash"):
            lines = text.replace("\\\n", " ").splitlines()
            for line in lines:
                line = line.removeprefix("! ").replace("$small", "")
                if line.startswith("remem "):
                    parse(shlex.split(line)[1:])
                    commands += 1
                elif line.startswith("python -m "):
                    assert importlib.util.find_spec(line.split()[2]), line
            continue
        text = re.sub(r"^%%writefile (\S+)\n", "", text)
        if text.startswith("out: "):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("remem_jax"):
                for name in node.names:
                    assert hasattr(importlib.import_module(node.module), name.name), f"{node.module}.{name.name}"
    assert commands >= 1 or path.stem in ("01_tour", "05_plan_a_pod")


def test_links_between_notebooks_and_to_docs_lead_to_files():
    for path in NOTEBOOKS:
        for text in cells(path, "markdown"):
            for target in re.findall(r"\]\((?!https)([^)]+)\)", text):
                assert (path.parent / target).exists(), target
            for target in re.findall(r"`(docs/[\w/.-]+|launch/[\w/.-]+|configs/[\w/.-]+)`", text):
                assert (ROOT / target).exists(), target


def test_a_jax_in_range_is_kept_and_another_one_is_replaced_by_the_machines_own():
    low, high = jax_range()
    assert (low, high) == ("0.10.2", "0.13")
    keep = ["-e", ".", "jax==0.11.0", "jaxlib==0.11.0"]
    assert what_to_install("0.11.0", "0.11.0", low, high, "cuda12") == (keep, False)
    assert what_to_install("0.10.2", None, low, high, "cpu") == (["-e", ".", "jax==0.10.2"], False)
    assert what_to_install("0.9.1", "0.9.1", low, high, "cuda12") == (["-e", ".[cuda12]"], True)
    assert what_to_install("0.13.0", "0.13.0", low, high, "tpu") == (["-e", ".[tpu]"], True)
    assert what_to_install("0.10.1.dev5", None, low, high, "cpu") == (["-e", "."], True)
    assert what_to_install(None, None, low, high, "tpu") == (["-e", ".[tpu]"], False)
    assert numbers("0.10.2rc1") == (0, 10, 2) < numbers("0.10.10")


def test_the_stored_plan_is_of_the_run_in_the_notebook():
    stored = json.loads((ROOT / "notebooks" / "05_stored_plan.json").read_text())
    text = "\n".join(cells(NOTEBOOKS[-1]))
    assert f"model: {stored['model']}\n" in text and f'"{stored["topology"]}"' in text
    assert f"mesh: {list(stored['mesh'].values())}\n" in text
    assert stored["functions"][0]["name"] == "weight move" and stored["fits"] is True


def test_a_failing_notebook_ends_the_run_with_one_line_and_keeps_what_ran(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name, code in (("1_sound", "print(40 + 2)"), ("2_broken", "%%bash\necho told >&2\nfalse"), ("3_after", "1")):
        cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": code, "outputs": [], "execution_count": None}
        book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (folder / f"{name}.ipynb").write_text(json.dumps(book))
    monkeypatch.setattr(run_notebooks, "NOTEBOOKS", folder)
    monkeypatch.setattr(run_notebooks, "OUT", tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["run_notebooks.py"])
    assert run_notebooks.main() == 1
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and told.err.startswith("remem: error: 2_broken: told; ")
    assert "notebook 1 of 3, 1_sound: done in" in told.out and "2_broken: done" not in told.out
    done = json.loads((tmp_path / "out" / "1_sound.ipynb").read_text())["cells"][0]["outputs"]
    assert "".join(done[0]["text"]) == "42\n"
    assert (tmp_path / "out" / "2_broken.ipynb").exists() and not (tmp_path / "out" / "3_after.ipynb").exists()
    monkeypatch.setattr(sys, "argv", ["run_notebooks.py", "4_none"])
    assert run_notebooks.main() == 2
    assert "no notebook 4_none: expected one of 1_sound, 2_broken, 3_after" in capsys.readouterr().err
