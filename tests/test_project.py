"""The project's own files agree with one another: packaging, pins, make targets, documents, the example dossier."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

import remem_jax

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==[0-9][0-9A-Za-z.]*")


def normal(name: str) -> str:
    """A distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(minor: str) -> dict[str, str]:
    """Normal name -> version of one constraints file."""
    lines = (ROOT / "constraints" / f"py{minor}.txt").read_text().splitlines()
    return {normal(line.split("==")[0]): line.split("==")[1] for line in lines}


def required(requirements: list[str]) -> set[str]:
    """Normal names of a list of requirements, without versions, extras and markers."""
    return {normal(re.split(r"[\s\[<>=!;]", text, maxsplit=1)[0]) for text in requirements}


def at_least(version: str, low: str) -> bool:
    """Compares dotted versions number by number."""
    return [int(n) for n in version.split(".")] >= [int(n) for n in low.split(".")]


def fresh_python(code: str) -> str:
    """Standard output of a new interpreter of this environment, outside the repository."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_has_the_version_of_its_first_release_series():
    assert remem_jax.__version__ == "0.1.0"
    assert PROJECT["dynamic"] == ["version"]


def test_the_ranges_of_jax_flax_and_python_are_the_promised_ones():
    assert PROJECT["requires-python"] == ">=3.11"
    assert "jax >= 0.10.2, < 0.13" in PROJECT["dependencies"]
    assert "flax >= 0.12.8, < 0.13" in PROJECT["dependencies"]


def test_torch_is_only_a_dependency_of_parity_tests_on_python_3_11():
    assert "torch" not in required(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    assert sorted(extras) == ["cuda12", "cuda13", "dev", "docs", "gcs", "notebook", "tpu"]
    assert [name for name, needs in extras.items() if "torch" in required(needs)] == ["dev"]
    assert "torch == 2.13.0; python_version < '3.12'" in extras["dev"]
    assert ["torch" in pins(minor) for minor in ("311", "312", "313")] == [True, False, False]


def test_constraints_hold_exact_pins_and_nothing_else():
    names = sorted(path.name for path in (ROOT / "constraints").iterdir())
    assert names == ["py311.txt", "py312.txt", "py313.txt"]
    for name in names:
        lines = (ROOT / "constraints" / name).read_text().splitlines()
        assert lines == sorted(lines, key=str.lower)
        for line in lines:
            assert PIN.fullmatch(line), f"{name}: {line}"


def test_constraints_pin_every_direct_dependency():
    extras = PROJECT["optional-dependencies"]
    direct = required(PROJECT["dependencies"]) | {"libtpu"}
    for extra in ("dev", "docs", "notebook"):
        direct |= required(extras[extra])
    assert direct - pins("311").keys() == set()
    for minor in ("312", "313"):
        assert direct - pins(minor).keys() == {"torch"}


def test_constraints_lie_inside_the_ranges_of_jax_and_flax():
    assert pins("311")["jax"] == "0.10.2"
    for minor in ("311", "312", "313"):
        jax, flax = pins(minor)["jax"], pins(minor)["flax"]
        assert at_least(jax, "0.10.2") and not at_least(jax, "0.13")
        assert at_least(flax, "0.12.8") and not at_least(flax, "0.13")


def test_no_file_of_the_tree_names_a_registry_host_or_a_home_folder():
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT)
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else ["pyproject.toml", "Makefile", "README.md"]
    bad = re.compile(r"pythonhosted|pypi\.org|index-url|/root/|/home/\w|/work/")
    found = []
    for name in names:
        path = ROOT / name
        if path.suffix in (".md", ".toml", ".txt", ".yaml", ".yml", ".sh", "") and path.is_file():
            found += [f"{name}: {line}" for line in path.read_text().splitlines() if bad.search(line)]
    assert found == []


def test_every_make_command_of_the_documents_is_a_target():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set()
    for name in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        named |= set(re.findall(r"(?:^ *|`)make ([a-z][a-z-]*)", (ROOT / name).read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "lint", "install"} <= named
    assert named - targets == set()


def test_the_contributing_guide_explains_every_variable_that_selects_tests():
    named = set(re.findall(r"REMEM_[A-Z_]+[A-Z]", (ROOT / "tests" / "conftest.py").read_text()))
    assert "REMEM_DATA" in named
    assert named - set(re.findall(r"REMEM_[A-Z_]+[A-Z]", (ROOT / "CONTRIBUTING.md").read_text())) == set()


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Runs make at the root of the repository, free of the settings of a make that runs this test."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)


def test_make_help_lists_every_target_with_a_description():
    done = make("help")
    assert done.returncode == 0, done.stderr
    shown = {line.split()[0] for line in done.stdout.splitlines()}
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony and shown == set(phony.group(1).split())


def test_an_old_or_missing_python_is_refused_in_one_line(tmp_path):
    setup = tmp_path / "tools" / "setup.sh"
    setup.parent.mkdir()
    setup.write_text((ROOT / "tools" / "setup.sh").read_text())
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\necho 3.10\nexit 1\n")
    old.chmod(0o755)
    for python, found in ((old, f"'{old}' is 3.10"), (tmp_path / "absent", "found no such command")):
        environment = {**os.environ, "PYTHON": str(python)}
        done = subprocess.run(["bash", setup, "core"], capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith("remem: error: expected Python 3.11 or newer") and done.stderr.count("\n") == 1
        assert found in done.stderr
        assert not (tmp_path / ".venv").exists()


def test_ci_fails_clearly_without_the_data_folder(tmp_path):
    environment = {**os.environ, "REMEM_DATA": str(tmp_path)}
    done = subprocess.run(["bash", ROOT / ".ci" / "run"], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("remem: error: expected the data folder") and str(tmp_path) in done.stderr


def test_importing_the_package_or_its_settings_loads_neither_jax_nor_torch_nor_transformers():
    heavy = "('jax', 'torch', 'transformers')"
    code = f"import sys, remem_jax, remem_jax.config; print([name for name in {heavy} if name in sys.modules])"
    assert fresh_python(code) == "[]"


def test_a_public_name_loads_on_use_and_an_unknown_one_is_refused_with_the_list():
    assert (
        fresh_python("import remem_jax; print(remem_jax.Sampling().top_p, 'load_agent' in dir(remem_jax))")
        == "0.95 True"
    )
    code = "import remem_jax\ntry: remem_jax.load_agents\nexcept AttributeError as error: print(error)"
    assert fresh_python(code).startswith("module 'remem_jax' has no attribute 'load_agents'; it has AgentConfig, ")


def test_prompt_texts_are_found_as_package_data():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "agent/prompt_texts/*.txt" in tool["package-data"]["remem_jax"]
    texts = [item.name for item in (files("remem_jax") / "agent" / "prompt_texts").iterdir()]
    assert texts and all(name.endswith(".txt") for name in texts)


def test_the_command_remem_is_installed():
    found = [point.value for point in entry_points(group="console_scripts", name="remem")]
    assert found == ["remem_jax.cli:main"]


def dossier_titles() -> list[str]:
    """Titles of the example's documents in reading order."""
    titles = []
    for path in sorted((ROOT / "examples" / "dossier").iterdir()):
        if path.suffix == ".jsonl":
            titles += [json.loads(line)["title"] for line in path.read_text().splitlines()]
        else:
            titles.append(path.name)
    return titles


def test_the_evidence_of_every_example_question_lies_more_than_half_of_the_dossier_apart():
    titles = dossier_titles()
    assert len(titles) == len(set(titles)) == 60
    questions = [json.loads(line) for line in (ROOT / "examples" / "questions.jsonl").read_text().splitlines()]
    assert len(questions) == 8
    for question in questions:
        first, second = (titles.index(title) for title in question["supporting_titles"])
        assert second - first > 30, question["question"]


def test_the_demo_asks_two_of_the_example_questions_and_the_readme_answers_all():
    questions = [json.loads(line) for line in (ROOT / "examples" / "questions.jsonl").read_text().splitlines()]
    asked = (ROOT / "examples" / "questions.txt").read_text().splitlines()
    assert len(asked) == 2 and set(asked) <= {question["question"] for question in questions}
    readme = (ROOT / "examples" / "README.md").read_text()
    titles = dossier_titles()
    for question in questions:
        first, second = (titles.index(title) + 1 for title in question["supporting_titles"])
        assert f"| {question['question']} | {question['answers'][0]} | {first}, {second} |" in readme


def test_a_trace_is_printed_with_its_short_values_first_and_its_texts_wrapped(tmp_path):
    record = {"turn": 2, "score": 0.33333, "callback": "", "reply": "one\n" + "word " * 40}
    (tmp_path / "trace.jsonl").write_text(json.dumps(record) + "\n")
    script = ROOT / "examples" / "show_trace.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "trace.jsonl"], capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "---- 1 " + "-" * 93
    assert lines[1:4] == ["turn 2   score 0.333", "reply:", "    one"]
    assert all(line.startswith("    word ") and len(line) <= 100 for line in lines[4:]) and len(lines) == 7
