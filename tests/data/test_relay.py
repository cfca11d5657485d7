"""The command that writes the relay's files."""

import filecmp

from remem_jax.data.records import read_records
from remem_jax.data.relay import Sizes, main, write_relay
from remem_jax.data.relay_task import make_records
from remem_jax.model import load_model

SMALL = Sizes(practice=20, warm=30, train=12, validation=6)
ARGUMENTS = ["--practice", "20", "--warm", "30", "--train", "12", "--validation", "6"]


def test_the_command_writes_a_model_and_four_files_and_names_them(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "data"), "--agent", "memagent", "--seed", "2", *ARGUMENTS]) == 0
    written = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert written == ["practice.jsonl", "start", "train.jsonl", "validation.jsonl", "warm.jsonl"]
    told = capsys.readouterr().out
    assert all(name in told for name in written)
    assert load_model(tmp_path / "data" / "start").config.num_layers == 3
    assert len((tmp_path / "data" / "warm.jsonl").read_text().splitlines()) == 30


def test_questions_read_back_are_the_records_and_validation_has_others(tmp_path):
    write_relay(tmp_path, "rememr1", 4, SMALL)
    train = read_records(tmp_path / "train.jsonl")
    assert train == make_records(8, 12, "train-4")
    questions = {record.paragraphs for record in train}
    assert not questions & {record.paragraphs for record in read_records(tmp_path / "validation.jsonl")}


def test_the_same_arguments_write_the_same_bytes_also_over_an_older_folder(tmp_path):
    for seed in (0, 1):
        write_relay(tmp_path / "a", "rememr1", seed, SMALL)
    write_relay(tmp_path / "b", "rememr1", 1, SMALL)
    names = ["practice.jsonl", "warm.jsonl", "train.jsonl", "validation.jsonl", "start/model.safetensors"]
    names += ["start/tokenizer.model", "start/remem.json"]
    assert filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", names, shallow=False) == (names, [], [])


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--out", str(tmp_path / "file" / "data"), *ARGUMENTS]) == 2
    error = capsys.readouterr().err
    assert error.startswith("remem: error: ") and error.count("\n") == 1 and "give another folder" in error
