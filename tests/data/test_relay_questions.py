"""Relay questions to evaluate on: the same ones for every agent, and none that training sees."""

from remem_jax.data.records import read_records
from remem_jax.data.relay_questions import main
from remem_jax.data.relay_task import make_record


def test_files_hold_the_questions_of_the_relay_experiment_and_a_larger_count_only_adds(tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--documents", "4", "8", "--questions", "3"]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}: 6 files of 3 questions\n"
    records = read_records(tmp_path / "distant_8.jsonl")
    assert records == [make_record("distant", 8, f"evaluation-{i}") for i in range(3)]
    before = (tmp_path / "forward_4.jsonl").read_text()
    assert main(["--out", str(tmp_path), "--documents", "4", "--questions", "4"]) == 0
    assert (tmp_path / "forward_4.jsonl").read_text().startswith(before)


def test_a_folder_that_cannot_be_made_and_too_few_documents_are_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--out", str(tmp_path / "file" / "x")]) == 2
    assert main(["--out", str(tmp_path / "y"), "--documents", "3"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("remem: error: ") and "cannot be written" in first
    assert second == "remem: error: a relay question needs at least 4 documents, found 3: ask for more"
