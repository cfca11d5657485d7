"""`remem eval` as a person types it: what it prints, and every fault as one line, status 2."""

import json

import pytest
import yaml

from tests.eval.made_evaluation import values, write_evaluation
from tests.tiny_agent import remem


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, questions and a file of settings, `eval.yaml`."""
    folder = write_evaluation(tmp_path_factory.mktemp("cli_eval"))
    given = values(folder, questions=2, agents={"rememr1": {}, "retrieval": {}}, sampling={"temperature": 0.0})
    (folder / "eval.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    return folder


def test_a_run_ends_with_its_tables_and_where_they_lie(folder):
    ran = remem("eval", folder / "eval.yaml", f"out={folder / 'told'}")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("Exact match, percent\n") and "Differences in exact match" in ran.out
    assert "Behaviour" in ran.out and "Failed questions" not in ran.out
    assert ran.out.endswith(
        f"written: {folder / 'told'}: results.md, results.json, accuracy.png; every answer: results/\n"
    )
    assert "note: rememr1: other settings than the model's remem.json: temperature 0.0 (not 1.0)" in ran.err
    assert "8 questions; 20 turns to take" in ran.err  # rememr1: 2 x 3 and 2 x 5; retrieval: 4
    names = {path.name for path in (folder / "told").iterdir()}
    assert names == {"accuracy.png", "evaluation.json", "results", "results.json", "results.md"}
    quiet = remem("eval", folder / "eval.yaml", f"out={folder / 'told'}", "--quiet")
    assert (quiet.status, quiet.err, quiet.out) == (0, "", ran.out)


def test_a_dry_run_prints_the_plan_and_writes_nothing(folder):
    looked = remem("eval", folder / "eval.yaml", f"out={folder / 'dry'}", "datasets.relay.documents=[8]", "--dry-run")
    assert (looked.status, looked.err) == (0, "")
    resolved, _, told = looked.out.partition("\n\n")
    assert yaml.safe_load(resolved)["datasets"]["relay"]["documents"] == [8]
    assert (
        "rememr1: agent rememr1 on tiny, order question_last, chunk 6, memory 2, reply 9 tokens, temperature 0" in told
    )
    rows = [line.split() for line in told.splitlines() if line.startswith(("rememr1 ", "retrieval "))]
    # Two questions of 24 tokens, 4 chunks: 10 turns; four slots of 16 bytes are 0.064 kB.
    assert rows == [
        ["rememr1", "relay", "8", "2", "48", "24", "4", "10", "1", "0.1"],
        ["retrieval", "relay", "8", "2", "48", "24", "0", "2", "1", "0.0"],
    ]
    assert told.endswith("2 cells, 4 questions, 12 turns\n")
    assert not (folder / "dry").exists()


def test_a_dry_run_tells_that_a_folder_was_made_with_other_settings(folder):
    options = ("eval", folder / "eval.yaml", f"out={folder / 'mixed'}", "questions=1", "--quiet")
    assert remem(*options).status == 0
    told = "holds results made with other seed"
    assert told in remem(*options, "seed=1", "--dry-run").out
    refused = remem(*options, "seed=1")
    assert refused.status == 2 and told in refused.err and refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["questions=many"], "eval.yaml: questions: expected a whole number or none, found 'many' (text)"),
        (["question=1"], "eval.yaml: question: expected a known setting, did you mean questions?"),
        (["metric=em"], "eval.yaml: metric: expected one of exact_match"),
        (["models.tiny={folder}/nowhere"], "nowhere does not exist: give a model directory"),
        (["datasets.relay.documents=[8,16]"], "datasets.relay: "),
        (["datasets.relay.documents=[]"], "datasets.relay.documents: expected the sizes"),
        (["agents.rememr1.chunk_tokens=600"], "agents.rememr1, model tiny: question 1 + reply 9 + prompt text"),
        (["out={folder}/eval.yaml/x"], "out: "),
    ],
)
def test_a_fault_is_one_line_and_status_2(folder, tmp_path, overrides, message):
    chosen = [item.format(folder=folder) for item in overrides]
    if not any(item.startswith("out=") for item in chosen):
        chosen.append(f"out={tmp_path / 'out'}")
    ran = remem("eval", folder / "eval.yaml", *chosen, "--quiet")
    assert ran.status == 2 and ran.out == ""
    assert ran.err.startswith("remem: error: ") and ran.err.count("\n") == 1 and message in ran.err, ran.err
    assert not (tmp_path / "out" / "results").exists()


def test_results_are_plain_json_of_the_questions(folder):
    assert remem("eval", folder / "eval.yaml", f"out={folder / 'plain'}", "questions=1", "--quiet").status == 0
    (line,) = (folder / "plain" / "results" / "relay" / "8" / "rememr1@tiny.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["id"] == "relay-distant-8-evaluation-0" and found["turns"] == 5 and found["error"] is None
