"""`remem answer` on bad input: one line on standard error, status 2, nothing on standard output, no trace file."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from remem_jax.config import AGENTS, PROMPT_ORDERS
from tests.tiny_agent import DOCUMENT, QUESTION, answer_options, remem, write_model, write_prompts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `model`, `prompts` and the document `harbour.txt`."""
    folder = tmp_path_factory.mktemp("errors")
    write_model(folder / "model")
    write_prompts(folder / "prompts")
    (folder / "harbour.txt").write_text(DOCUMENT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def options(folder):
    return answer_options(folder / "model", folder / "prompts")


def refused(*arguments, trace):
    """The line that a refused run prints, after the checks that every refusal must pass."""
    ran = remem(*arguments, "--trace", trace)
    assert ran.status == 2 and ran.out == ""
    assert ran.err.startswith("remem: error: ") and ran.err.count("\n") == 1 and ran.err.endswith("\n")
    assert not trace.exists()
    return ran.err.removeprefix("remem: error: ").rstrip("\n")


def test_bad_documents_are_named(folder, options, tmp_path):
    (tmp_path / "bytes.txt").write_bytes("Où".encode() + b" \xe9t\xe9")
    (tmp_path / "broken.jsonl").write_text('{"title": "a", "text": "b"}\n\n{"title": oops}\n', encoding="utf-8")
    (tmp_path / "field.jsonl").write_text('{"title": "a"}\n', encoding="utf-8")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "x.png").write_bytes(b"\x89PNG")

    def line(name):
        return refused(*options, "--question", QUESTION, "--documents", tmp_path / name, trace=tmp_path / "trace.jsonl")

    assert line("missing.txt") == f"{tmp_path}/missing.txt: no such file: check the path"
    assert line("bytes.txt").startswith(f"{tmp_path}/bytes.txt: expected UTF-8, found byte 0xe9 at offset 4")
    assert line("broken.jsonl").startswith(f"{tmp_path}/broken.jsonl line 3: expected a JSON object, found bad JSON")
    assert line("field.jsonl").startswith(f"{tmp_path}/field.jsonl line 1: field 'text' is missing")
    assert line("images").startswith(f"{tmp_path}/images: no readable document")
    assert ".txt, .md, .jsonl" in line("images") and ".txt, .md, .jsonl" in line("images/x.png")


def test_bad_questions_are_refused(folder, options, tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text('{"question": "a"}\n{"query": "b"}\n', encoding="utf-8")
    common = [*options, "--documents", folder / "harbour.txt"]

    def line(*arguments):
        return refused(*common, *arguments, trace=tmp_path / "trace.jsonl")

    assert line("--question", " ") == "the question is empty: give a question of at least one word"
    assert line() == "expected a question, give --question TEXT or --questions FILE"
    assert line("--questions", tmp_path / "blank.txt") == f"expected a question, found none in {tmp_path}/blank.txt"
    assert line("--questions", tmp_path / "none.txt").startswith(f"{tmp_path}/none.txt: no such file")
    assert line("--questions", tmp_path / "bad.jsonl").startswith(f"{tmp_path}/bad.jsonl line 2: field 'question'")
    assert line("--question", "caf\udce9").startswith("the question is not UTF-8")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--agent", "memagnt"], "agent: expected one of " + ", ".join(AGENTS) + ", found 'memagnt'"),
        (["--prompt-order", "last"], "prompt_order: expected one of " + ", ".join(PROMPT_ORDERS) + ", found 'last'"),
        (
            ["--attention", "flash"],
            "attention must be one of blocked, dense, splash, splash_interpret, cudnn, found flash",
        ),
        (["--candidates", "some"], "candidates: expected one of not_current, all, found 'some'"),
        (["--chunk-tokens", "0"], "chunk_tokens: expected a number of at least 1, found 0"),
        (["--chunk-tokens", "-5"], "chunk_tokens: expected a number of at least 1, found -5"),
        (["--chunk-tokens", "abc"], "Invalid value for '--chunk-tokens': "),
        (["--memory-tokens", "0"], "memory_tokens: expected a number of at least 1, found 0"),
        (["--max-reply-tokens", "0"], "max_reply_tokens: expected a number of at least 1, found 0"),
        (["--temperature", "-1"], "temperature: expected 0 (greedy) or a finite number of at least 0.01, found -1.0"),
        (["--temperature", "nan"], "temperature: expected 0 (greedy) or a finite number of at least 0.01, found nan"),
        (["--temperature", "inf"], "temperature: expected 0 (greedy) or a finite number of at least 0.01, found inf"),
        (["--top-p", "0"], "top_p: expected a number above 0 and at most 1, found 0.0"),
        (["--top-p", "nan"], "top_p: expected a number above 0 and at most 1, found nan"),
        (["--top-k", "-1"], "top_k: expected a number of at least 0, found -1"),
        (["--max-chunks", "0"], "max_chunks: expected a number of at least 1, or none, found 0"),
        (["--seed", "-1"], "seed must be from 0 to 4294967295, found -1"),
        (["--questions-in-flight", "0"], "questions_in_flight must be at least 1, found 0"),
        (["--dtype", "int8"], "dtype must be float32, bfloat16 or float16, found int8"),
        (["--memory-tag", "a b"], "a tag name is a word without spaces"),
        (["--prompts", "/no/such/folder"], "prompt folder /no/such/folder: expected a folder of .txt files"),
    ],
)
def test_bad_settings_are_refused_before_any_weights_are_read(folder, options, tmp_path, arguments, expected):
    arguments = ["--question", QUESTION, "--documents", folder / "harbour.txt", *arguments]
    shutil.copytree(folder / "model", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")  # would be refused too, if it were opened first
    broken = [tmp_path / "model" if option == folder / "model" else option for option in options]
    line = refused(*broken, *arguments, trace=tmp_path / "trace.jsonl")
    assert line.startswith(expected)


def test_a_mistyped_option_is_answered_with_the_nearest_one(folder, options, tmp_path):
    line = refused(*options, "--quesion", "x", trace=tmp_path / "trace.jsonl")
    assert line == "No such option: --quesion (Possible options: --json, --question, --questions)"
    ran = remem("answr")
    assert (ran.status, ran.out, ran.err) == (2, "", "remem: error: No such command 'answr'. Did you mean 'answer'?\n")


def with_weights(folder, to, change):
    """A copy of the model whose tensors are changed by `change`."""
    shutil.copytree(folder / "model", to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors")
    return to


def test_wrong_tensors_are_named_with_what_was_expected_and_found(folder, tmp_path):
    name = "model.layers.0.self_attn.k_proj.weight"

    def line(kind, change):
        model = with_weights(folder, tmp_path / kind, change)
        return refused(
            *answer_options(model, folder / "prompts"), "--question", QUESTION,
            "--documents", folder / "harbour.txt", trace=tmp_path / "trace.jsonl",
        )  # fmt: skip

    missing = line("missing", lambda tensors: tensors.pop(name))
    assert missing.startswith(f"missing tensor {name}: expected shape [16, 32], found none")
    extra = line("extra", lambda tensors: tensors.update({"model.more.weight": np.zeros((3, 2), np.float32)}))
    assert extra.startswith("extra tensor model.more.weight: expected none of this name, found shape [3, 2]")
    wrong = line("wrong", lambda tensors: tensors.update({name: np.zeros((16, 31), np.float32)}))
    assert wrong.startswith(f"misshapen tensor {name}: expected shape [16, 32], found [16, 31]")


def test_models_that_cannot_be_loaded_are_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def line(model):
        return refused(
            *answer_options(model, folder / "prompts"), "--question", QUESTION,
            "--documents", folder / "harbour.txt", trace=tmp_path / "trace.jsonl",
        )  # fmt: skip

    no_weights = tmp_path / "no_weights"
    shutil.copytree(folder / "model", no_weights)
    (no_weights / "model.safetensors").unlink()
    assert line(no_weights).startswith(f"no weights in {no_weights}: expected model.safetensors, ")
    other = tmp_path / "other"
    shutil.copytree(folder / "model", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    found = line(other)
    assert "mamba" in found and all(name in found for name in ("llama", "mistral", "qwen2", "qwen3"))
    mute = tmp_path / "mute"
    shutil.copytree(folder / "model", mute)
    (mute / "tokenizer.json").unlink()
    assert "holds no tokenizer" in line(mute)
    assert "not-there" in line(tmp_path / "not-there") and "does not exist" in line(tmp_path / "not-there")
    hub = line("someone/some-model")
    assert hub.startswith("hub model someone/some-model is not in the cache") and "go online" in hub


def test_a_corrupt_gguf_file_is_refused(folder, tmp_path, smollm2_path):
    (tmp_path / "garbage.gguf").write_bytes(b"\x00" * 4096)
    with smollm2_path.open("rb") as file:
        (tmp_path / "header.gguf").write_bytes(file.read(1000))  # cut inside the metadata
        file.seek(0)
        (tmp_path / "tensors.gguf").write_bytes(file.read(4_000_000))  # cut inside the tensors
    for name, expected in (
        ("garbage", "is not a GGUF file: expected it to start with b'GGUF'"),
        ("header", "is cut short or damaged: the file has 1000 bytes"),
        ("tensors", "is cut short or damaged"),
    ):
        options = answer_options(tmp_path / f"{name}.gguf", folder / "prompts")
        line = refused(
            *options, "--question", "Q?", "--documents", folder / "harbour.txt", trace=tmp_path / "trace.jsonl"
        )
        assert line.startswith(f"{tmp_path}/{name}.gguf {expected}")


def test_a_budget_over_the_context_is_refused_with_its_sum(folder, options, tmp_path):
    arguments = ["--question", QUESTION, "--documents", folder / "harbour.txt", "--chunk-tokens", "9000"]
    line = refused(*options, *arguments, trace=tmp_path / "trace.jsonl")
    assert " + chunk 9000 + memory 4 + recalled memory 4 = " in line and "reply 6" in line
    sum_text, found = line.split(" = ")
    terms = [int(term.split()[-1]) for term in sum_text.split(" + ")]
    assert int(found.split()[0]) == sum(terms) and "do not fit the model's context of 8192" in line


def test_a_trace_that_cannot_be_written_is_refused_and_an_old_one_survives_bad_input(folder, options, tmp_path):
    arguments = [*options, "--question", QUESTION, "--documents", folder / "harbour.txt"]
    ran = remem(*arguments, "--trace", tmp_path / "no" / "t.jsonl")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == f"remem: error: trace: the directory {tmp_path}/no does not exist; make it first\n"
    ran = remem(*arguments, "--trace", tmp_path)
    assert (ran.status, ran.out) == (2, "") and ran.err.count("\n") == 1
    assert ran.err.startswith(f"remem: error: trace: {tmp_path} cannot be written: it is a directory")
    ran = remem(*arguments, "--trace", folder / "harbour.txt")
    assert ran.status == 2 and ran.err.endswith(
        "harbour.txt cannot be written: it is read in this run; give another path\n"
    )
    assert (folder / "harbour.txt").read_text() == DOCUMENT
    old = tmp_path / "old.jsonl"
    old.write_text("kept\n")
    assert remem(*arguments, "--chunk-tokens", "9000", "--trace", old).status == 2
    assert old.read_text() == "kept\n"
