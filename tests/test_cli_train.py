"""`remem train` and `remem convert` as a person types them: what they print, and every fault as one line, status 2."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from remem_jax.rl.trainer import Outcome
from tests.relay_run import assert_same_run, write_start
from tests.tiny_agent import remem


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A starting model, questions and a file of settings, `train.yaml`."""
    folder = write_start(tmp_path_factory.mktemp("cli_train"))
    config = {
        "model": str(folder / "start"),
        "run_dir": str(folder / "run"),
        "steps": 2,
        "data": {"train": str(folder / "train.jsonl"), "validation": str(folder / "validation.jsonl")},
        "rollout": {"questions": 2, "group": 4},
        "optimizer": {"mini_batch": 1, "learning_rate": 0.0002, "warmup": 2},
        "memory": {"token_budget": 2048},
        "validation": {"every": 3},
        "export_dtype": "bfloat16",
        "log": {"tensorboard": True, "trajectories_every": 1},
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """What the run of two steps printed."""
    return remem("train", folder / "train.yaml")


def test_a_run_shows_its_steps_and_ends_with_where_the_model_lies(folder, trained):
    assert trained.status == 0, trained.err
    assert trained.out.startswith(f"done: 2 steps in {folder / 'run'}, best validation exact match 0.")
    assert trained.out.endswith(f"; model: {folder / 'run' / 'model'}\n")
    for shown in ("step 1 of 2: the first step compiles", "step 2", "EM ", "call rate", "tokens/s", "reward memory"):
        assert shown in trained.err, trained.err
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {
        "checkpoints", "config.yaml", "metrics.jsonl", "model", "tensorboard", "trajectories", "validation",
        "validation.jsonl",
    }  # fmt: skip
    assert list((folder / "run" / "tensorboard").iterdir())


def test_the_settings_that_a_run_writes_start_the_same_run(folder, trained):
    again = remem("train", folder / "run" / "config.yaml", f"run_dir={folder / 'twin'}", "--quiet")
    assert (again.status, again.err) == (0, "")
    assert_same_run(folder / "twin", folder / "run")


def test_the_exported_model_answers_with_the_settings_it_was_trained_with(folder, trained):
    (folder / "facts.txt").write_text("home ANA LIMA home EVA OSLO home BEN LIMA", encoding="utf-8")
    question = ["--question", "home_of partner_of ANA", "--documents", folder / "facts.txt", "--json"]
    answered = remem("answer", "--model", folder / "run" / "model", *question)
    assert answered.status == 0, answered.err
    found = json.loads(answered.out)
    assert found["agent"] == "rememr1" and (folder / "run" / "model" / "remem.json").is_file()


def test_convert_writes_a_checkpoint_as_a_model_and_never_over_one(folder, trained):
    done = remem("convert", folder / "run", folder / "out", "--dtype", "float32", "--best")
    assert (done.status, done.out) == (0, f"written: {folder / 'out'}\n")
    assert {"config.json", "model.safetensors", "remem.json", "tokenizer.model"} <= set(os.listdir(folder / "out"))
    again = remem("convert", folder / "run", folder / "out")
    assert again.status == 2 and again.err.startswith("remem: error: will not write a model over")
    nothing = remem("convert", folder / "start", folder / "other")
    assert nothing.status == 2 and "expected a run's directory or one of its checkpoints" in nothing.err
    assert not (folder / "other").exists()


def test_a_dry_run_prints_settings_shapes_and_memory_and_does_nothing(folder):
    looked = remem("train", folder / "train.yaml", f"run_dir={folder / 'dry'}", "rollout.group=16", "--dry-run")
    assert (looked.status, looked.err) == (0, "")
    resolved, _, told = looked.out.partition("\nmodel: ")
    values = yaml.safe_load(resolved)
    assert values["rollout"]["group"] == 16 and values["loss"]["eps_low"] == 0.2
    assert values["agent"]["memory_tokens"] == 2  # of the model's own remem.json
    # Memory turn: section + 6 in the prefix; recalled + 2, memory + 2, question + 3, reply in the suffix.
    assert "longest turn: prefix 7 + suffix 11 + reply 9 = 27 tokens" in told
    assert "rollout batch: 2 questions x 16 rollouts, 2 questions in flight" in told
    assert "a group of 16: 327 tokens in one row, 432 without a shared prefix (1.32 times as many)" in told
    assert "updates: 2 steps a rollout batch, 1 questions each, micro-batches of 2,048 tokens" in told
    for part in ("master weights, moments and gradients", "frozen base or reference", "engine weights", "free:"):
        assert part in told
    assert not (folder / "dry").exists()


@pytest.mark.parametrize(("step", "saved"), [(1, "saved in {run}"), (0, "nothing to save yet")])
def test_a_stopped_run_says_how_to_go_on_in_words_that_a_shell_takes(folder, tmp_path, monkeypatch, step, saved):
    monkeypatch.setattr("remem_jax.rl.trainer.train", lambda settings, quiet: Outcome(step, True, None, None))
    run = tmp_path / "a run"
    stopped = remem("train", folder / "train.yaml", f"run_dir={run}", "resume=never")
    again = f"remem train {folder / 'train.yaml'} 'run_dir={run}' resume=never resume=auto"
    assert stopped.out == f"stopped after step {step} of 2, {saved.format(run=run)}; go on with: {again}\n"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run_dir={folder}/start/config.json/run", "checkpoints cannot be written to"),
        ("resume={folder}/start", "start: expected a run's directory or one of its checkpoints"),
        ("resume=never", "run holds a run of 2 steps already"),
        ("model={folder}/run/model", "run/model is where the run exports its own model to: give another run_dir, or"),
        ("data.train={folder}", "data.documents: expected one of the sizes of"),
    ],
)
def test_a_dry_run_refuses_what_the_run_itself_would(folder, trained, override, message):
    looked = remem("train", folder / "train.yaml", override.format(folder=folder), "--dry-run")
    assert (looked.status, looked.out) == (2, "") and message in looked.err and looked.err.count("\n") == 1


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["steps=many"], "train.yaml: steps: expected a whole number, found 'many' (text)"),
        (["lr=1"], "train.yaml: lr: expected a known setting, "),
        (["steps"], "override: expected name=value, such as sampling.top_p=0.9, found 'steps'"),
        (["optimizer.mini_batch=3"], "optimizer.mini_batch: expected a divisor of rollout.questions = 2, found 3"),
        (["rollout.questions=6"], "data.train: expected at least 6 lines, the size of a batch, found 5"),
        (["data.train={folder}/none.jsonl"], "none.jsonl: no such file: check the path"),
        (["data.validation={folder}/none.jsonl"], "none.jsonl: no such file: check the path"),
        (["data.train={folder}/bad.jsonl"], "bad.jsonl line 1: field 'answers' must be a list, found none"),
        (["model={folder}/nowhere"], "nowhere does not exist: give a model directory"),
        (["algorithm=sft"], "train.jsonl line 1: field 'reply' is missing"),
        (["agent.chunk_tokens=600"], "question q2-0: question 3 + reply 9 + prompt text 5 + chunk 600 + memory 2 + "),
        (["agent.chunks=6"], "agent.chunks: expected a known setting"),
        (["run_dir={folder}/file/run"], "checkpoints cannot be written to"),
        (["mesh=[1,3,1]"], "mesh: data 1 x fsdp 3 x tensor 1 does not fit 1 devices"),
        (["attention=fast"], "attention back end 'fast' is unknown; choose one of blocked"),
        (["lora.rank=400"], "lora.rank: expected 1 to 16 for q (16 x 104), found 400"),
        (["resume={folder}/start"], "start: expected a run's directory or one of its checkpoints"),
        (["log.wandb_project=p"], "wandb_project p: expected the package wandb, found none: pip install wandb"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_and_status_2_before_anything_is_trained(folder, tmp_path, monkeypatch, overrides, message):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    write(folder / "file", "")
    write(folder / "bad.jsonl", '{"id": "q", "question": "Who?"}\n' * 3)
    chosen = [item.format(folder=folder) for item in overrides]
    if not any(item.startswith("run_dir=") for item in chosen):
        chosen.append(f"run_dir={tmp_path}")
    ran = remem("train", folder / "train.yaml", *chosen, "--quiet")
    assert ran.status == 2 and ran.out == ""
    assert ran.err.startswith("remem: error: ") and ran.err.count("\n") == 1 and message in ran.err, ran.err
    assert not (tmp_path / "metrics.jsonl").exists()
    assert not list(tmp_path.glob("checkpoints/*"))


def test_no_settings_file_is_one_line(folder):
    ran = remem("train", folder / "none.yaml")
    assert ran.status == 2 and ran.err == (
        f"remem: error: {folder / 'none.yaml'}: expected a YAML file, found no such file\n"
    )
