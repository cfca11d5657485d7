"""`remem data` as a person types it: several values behind an option, what it prints, and faults as one line."""

import json

import pytest

from tests.data.made_sets import CORPUS, QUESTIONS, bytes_of, question, write_lines
from tests.tiny_agent import remem


@pytest.fixture
def build(tmp_path):
    """`build` with two sources, two corpora and whatever else."""
    sources = [write_lines(tmp_path / f"q{i}.jsonl", QUESTIONS[i : i + 4]) for i in (0, 4)]
    corpora = [write_lines(tmp_path / f"c{i}.jsonl", CORPUS[i : i + 21]) for i in (0, 21)]

    def run(*more, out="out"):
        rest = ["--documents", "4,7", "30", "--split", "dev", "--out", tmp_path / out, *more]
        return remem("data", "build", *sources, "--corpus", *corpora, *rest)

    return run


def test_the_command_alone_and_its_help_list_what_it_can_do():
    for ran in (remem("data"), remem("data", "--help")):
        assert ran.status == 0 and "build" in ran.out and "check" in ran.out and ran.err == ""
    shown = remem("data", "build", "--help").out
    for option in ("--corpus", "--documents", "--split", "--out", "--order", "--min-gap", "--questions", "--seed",
                   "--workers", "--kind", "--on-error", "--exclude", "--tokenizer"):  # fmt: skip
        assert option in shown


def test_a_set_is_built_from_several_files_and_told_in_a_line_then_left_as_it_is(build, tmp_path):
    ran = build()
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"written: {tmp_path / 'out'}: 8 questions of split dev, contexts of 4, 7, 30 documents")
    assert "65 distinct documents" in ran.out and ran.out.count("\n") == 1
    before = bytes_of(tmp_path / "out")
    again = build()
    assert (again.status, again.out) == (0, f"{tmp_path / 'out'}: already built from the same input, nothing to do\n")
    assert bytes_of(tmp_path / "out") == before
    other = build("--seed", 1)
    assert other.status == 2 and other.err.count("\n") == 1 and "other input or options" in other.err


def test_what_is_left_out_is_told(build, tmp_path):
    evaluation = [write_lines(tmp_path / f"e{i}.jsonl", [QUESTIONS[i]]) for i in (1, 2)]
    ran = build("--exclude", *evaluation, "--questions", 3)
    assert ran.status == 0
    assert "left out: 2 questions that stand in a set to keep away from (manifest.json, left_out.excluded)" in ran.out
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["left_out"]["excluded"] == ["q1", "q2"]


def test_tokens_are_counted_where_a_model_is_named(build, tmp_path, smollm2_path):
    ran = build("--tokenizer", "smollm2", "--quiet")
    assert ran.status == 0 and " tokens on average" in ran.out
    lengths = json.loads((tmp_path / "out" / "manifest.json").read_text())["lengths"]["30"]
    assert lengths["words"]["mean"] < lengths["tokens"]["mean"] < lengths["characters"]["mean"]


def test_a_sound_set_is_told_and_a_damaged_one_is_an_error(build, tmp_path):
    build()
    ran = remem("data", "check", tmp_path / "out")
    assert ran.status == 0 and ran.out.startswith(f"sound: {tmp_path / 'out'}: 8 questions")
    assert remem("data", "check", tmp_path / "out", "--kind", "records").status == 2
    file = tmp_path / "out" / "documents" / "features.json"
    file.write_text(file.read_text().replace("title", "tidle"))
    ran = remem("data", "check", tmp_path / "out")
    assert ran.status == 2 and "its bytes are not those that were written" in ran.err and ran.err.count("\n") == 1


def test_a_question_file_is_checked_line_by_line(tmp_path):
    good = write_lines(tmp_path / "good.jsonl", QUESTIONS)
    ran = remem("data", "check", good)
    assert (ran.status, ran.out) == (0, f"{good}: records, 8 questions, 0 skipped, 3 to 3 paragraphs a question\n")
    bad = write_lines(tmp_path / "bad.jsonl", [*QUESTIONS, question("q0"), question("q9", answers=[])])
    ran = remem("data", "check", bad)
    assert ran.status == 1 and ran.out.count("skipped: ") == 2 and f"{bad} line 10: field 'answers'" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build"], "Missing argument 'SOURCE'"),
        (["build", "--corpus", "c", "--documents", "4", "--split", "dev", "--out", "o"], "Missing argument 'SOURCE'"),
        (["build", "q", "--corpus"], "Option '--corpus' requires an argument"),
        (["build", "q", "--corpus", "c", "--documents", "4,x", "--split", "dev", "--out", "o"], "found 'x'"),
        (["build", "absent", "--corpus", "c", "--documents", "4", "--split", "dev", "--out", "o"], "no such file"),
        (["build", "q", "--corpora", "c"], "No such option: --corpora"),
        (["check", "absent.jsonl"], "no such file"),
        (["biuld"], "No such command 'biuld'"),
    ],
)
def test_a_fault_is_one_line_and_status_2(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = remem("data", *arguments)
    assert ran.status == 2 and ran.out == ""
    assert ran.err.startswith("remem: error: ") and ran.err.count("\n") == 1 and said in ran.err
    assert list(tmp_path.iterdir()) == []
