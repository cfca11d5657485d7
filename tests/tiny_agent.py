"""A random one-layer model on disk and prompts so short that every turn of every agent is of one size class.

Programs are then compiled once for all tests of a process; the model's words mean nothing.
"""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remem_jax.cli import main
from remem_jax.model import save_model
from remem_jax.testing import tiny_model
from tests.tokenizer_fixtures import byte_level_bpe

VOCABULARY = 345  # of `byte_level_bpe`
DOCUMENT = "The old harbour\nThe keeper of the harbour wrote a letter to his sister.\n"
QUESTION = "Who wrote the letter?"
PROMPTS = {
    "rules": "",
    "rules_bare": "",
    "rules_callback": "",
    "question": "{question}",
    "chunk": "{chunk}",
    "recalled": "{recalled}",
    "memory": "{memory}",
    "cue": "to:",
    "cue_bare": "to:",
    "final_rules": "",
    "final_cue": "to: letter to her sister",
    "document_rules": "",
    "document": "{document}",
    "no_memory": "-",
    "no_recall": "-",
}
OUTPUT_ERRORS = ("strict", "backslashreplace")  # as Python opens standard output and standard error
LENGTHS: dict[str, Any] = {"chunk_tokens": 8, "memory_tokens": 4, "max_reply_tokens": 6}


def write_prompts(folder: Path) -> Path:
    """The short prompts as a folder."""
    folder.mkdir()
    for name, text in PROMPTS.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


def write_model(folder: Path) -> Path:
    """A model directory with weights, configuration, tokenizer and chat template."""
    files = folder.parent / f"{folder.name}_tokenizer"
    files.mkdir()
    byte_level_bpe(files)
    model = tiny_model(vocab_size=VOCABULARY, num_layers=1, eos_ids=(1, 0))
    save_model(folder, model.config, model.params, extra_files={file.name: file for file in files.iterdir()})
    return folder


@dataclass(frozen=True)
class Ran:
    """What a run of the command left."""

    status: int
    out: str
    err: str


def remem(*arguments: str | Path, stdin: bytes = b"", encoding: str = "utf-8") -> Ran:
    """Run the command in this process, so that runs share what they compile."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors) for errors in OUTPUT_ERRORS)
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as exited:
        status = exited.code
    finally:
        sys.stdin = before
    assert isinstance(status, int)
    return Ran(status, written(out), written(err))


def written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


def answer_options(model: Path, prompts: Path) -> list[str | Path]:
    """`answer` with the model and settings that fit one size class; question and documents are still to be named."""
    lengths = [f"--{name.replace('_', '-')}={value}" for name, value in LENGTHS.items()]
    return ["answer", "--model", model, "--prompts", prompts, "--memory-tag", "none", *lengths]
