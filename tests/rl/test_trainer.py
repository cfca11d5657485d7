"""The training loop on a tiny agent: stopped, resumed, in waves and from elsewhere it is the run it would have been."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from remem_jax.agent.api import load_agent
from remem_jax.errors import RememError
from remem_jax.observe.live import TrainScreen
from remem_jax.rl import grpo, trainer, update
from remem_jax.rl.trainer import Outcome, train
from remem_jax.stored import read_info
from tests.relay_run import (
    arrays,
    assert_same_run,
    lines,
    make_questions,
    settings,
    without_times,
    write_records,
    write_start,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A starting model and questions."""
    return write_start(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def whole(folder) -> Path:
    """A run of six steps that nothing disturbed."""
    train(settings(folder, "whole"), quiet=True)
    return folder / "whole"


def test_a_run_leaves_a_line_a_step_its_validations_trajectories_checkpoints_and_settings(folder, whole):
    metrics = lines(whole / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    groups = {name.partition("/")[0] for name in metrics[0]}
    assert groups == {
        "step", "batch", "reward", "advantage", "loss", "optimizer", "sampler", "health", "run", "time"
    }  # fmt: skip
    assert metrics[0]["optimizer/learning_rate"] == pytest.approx(1e-4)  # half of it: the first of two warm-up steps
    assert metrics[1]["optimizer/learning_rate"] == pytest.approx(2e-4)
    assert all(line["optimizer/skipped"] == 0 and line["sampler/gap_abs"] < 1e-5 for line in metrics)
    assert any(line["health/recalled_rate"] > 0 for line in metrics)  # the policy does what the tests are about
    assert any(line["health/memory_cut"] > 0 for line in metrics) and all(line["health/truncated"] for line in metrics)
    assert [line["step"] for line in lines(whole / "validation.jsonl")] == [0, 3, 6]
    assert [p.name for p in sorted((whole / "trajectories").iterdir())] == [
        "step_000001.jsonl",
        "step_000003.jsonl",
        "step_000006.jsonl",
    ]
    # Saved at 2, 4 and 6, and at 3 and 6 where it was validated; the newest two stay, and the best.
    kept = {int(p.name) for p in (whole / "checkpoints").iterdir()}
    assert {4, 6} <= kept <= {3, 4, 6}
    info = read_info(whole / "checkpoints" / "6")
    assert (info["step"], info["validated"], info["config"]["seed"]) == (6, 6, 0)
    assert int(arrays(whole)["step"]) == 12  # two updates a step


def test_three_steps_a_restart_and_three_more_are_six_steps_bit_by_bit(folder, whole):
    assert train(settings(folder, "again", steps=3), quiet=True).step == 3
    assert train(settings(folder, "again"), quiet=True).step == 6
    assert_same_run(folder / "again", whole)


def test_a_run_that_is_done_does_nothing_more(folder, whole):
    shutil.copytree(whole, folder / "done")
    assert train(settings(folder, "done"), quiet=True) == Outcome(
        6, False, read_info(whole / "checkpoints" / "6")["best"], None
    )
    assert_same_run(folder / "done", whole)


def stop_at(monkeypatch, phase: str, after: int) -> None:
    """This process gets a SIGTERM when the run says that it comes to `phase`, with `after` steps done."""
    sent = []

    class Screen(TrainScreen):
        def phase(self, name, done=0, total=0, of=""):
            super().phase(name, done, total, of)
            if f"{name} {done}".startswith(phase) and self.done == after and not sent:
                sent.append(True)
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(trainer, "TrainScreen", Screen)


@pytest.mark.parametrize(
    ("phase", "after", "saved"),
    [
        ("rollout turn 1", 0, 0),  # nothing has been learnt: nothing to save
        ("rollout turn 2", 2, 2),
        ("scores", 2, 2),
        ("log-probs logp_ref 2", 4, 4),
        ("update 1", 2, 3),  # what has been updated is finished
        ("validation turn 2", 3, 3),
        ("validation turn 1", 6, 6),
        ("saving", 4, 4),
    ],
)
def test_a_sigterm_in_any_phase_is_a_stop_that_resumes_bit_by_bit(folder, whole, monkeypatch, phase, after, saved):
    run = folder / f"stopped at {phase} {after}"
    with monkeypatch.context() as patched:
        stop_at(patched, phase, after)
        outcome = train(settings(folder, run.name), quiet=True)
    assert (outcome.step, outcome.stopped, outcome.exported) == (saved, True, None)
    assert [int(line["step"]) for line in lines(run / "metrics.jsonl")] == list(range(1, saved + 1))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not train(settings(folder, run.name), quiet=True).stopped
    assert_same_run(run, whole)


def test_what_a_killed_run_wrote_beyond_its_checkpoint_is_replaced(folder, whole):
    run = folder / "killed"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoints" / "6")  # as after a kill between step 6's lines and its save
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "torn')
    (run / "checkpoints" / "6.orbax-checkpoint-tmp-1").mkdir()
    train(settings(folder, run.name), quiet=True)
    assert_same_run(run, whole)
    assert not list((run / "checkpoints").glob("*tmp*"))


def test_another_token_budget_after_a_restart_changes_rounding_only(folder, whole, monkeypatch):
    calls = []

    def counted(*arguments, **named):
        calls.append(arguments[2].rows.tokens.shape)
        return accumulate(*arguments, **named)

    accumulate = update.accumulate
    monkeypatch.setattr(update, "accumulate", counted)
    train(settings(folder, "budget", steps=3), quiet=True)
    before = len(calls)
    train(settings(folder, "budget", memory__token_budget=64), quiet=True)
    assert len(calls) - before > 2 * before and {shape[0] for shape in calls[before:]} == {1}
    mine, theirs = arrays(folder / "budget"), arrays(whole)
    for name, value in theirs.items():
        # A gradient of nearly 0 is mostly rounding, which Adam divides by its own size: a step (2e-4) at the most.
        np.testing.assert_allclose(mine[name], value, rtol=1e-3, atol=2e-4, err_msg=name)
    for one, other in zip(lines(folder / "budget" / "metrics.jsonl"), lines(whole / "metrics.jsonl"), strict=True):
        for name in ("reward/outcome", "reward/memory", "loss/total", "loss/entropy", "optimizer/grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), (one["step"], name)


def test_the_size_of_a_wave_changes_nothing_but_rounding(folder):
    runs = []
    for in_flight in (1, 2):
        run = folder / f"waves of {in_flight}"
        train(settings(folder, run.name, steps=2, rollout__questions_in_flight=in_flight), quiet=True)
        runs.append(run)
    one, all_ = (without_times(lines(run / "trajectories" / "step_000001.jsonl")) for run in runs)
    assert len({(line["question_id"], line["rollout"]) for line in one}) == 8
    assert one == all_
    for a, b in zip(*(without_times(lines(run / "metrics.jsonl")) for run in runs), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6, nan_ok=True)


def test_resume_never_refuses_a_run_that_has_checkpoints(folder, whole):
    with pytest.raises(RememError, match=r"^resume: .*whole holds a run of 6 steps already: give a new run_dir"):
        train(settings(folder, "whole", resume="never"), quiet=True)


def test_resume_from_a_path_begins_with_the_checkpoint_of_another_run_then_goes_on_from_its_own(folder, whole):
    longer, onward = folder / "longer", folder / "onward"
    shutil.copytree(whole, longer)
    train(settings(folder, "longer", steps=8), quiet=True)
    for steps in (7, 8):
        assert train(settings(folder, "onward", steps=steps, resume=str(whole)), quiet=True).step == steps
    ours, theirs = arrays(onward), arrays(longer)
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert without_times(lines(onward / "metrics.jsonl")) == without_times(lines(longer / "metrics.jsonl"))[-2:]
    assert max(int(p.name) for p in (whole / "checkpoints").iterdir()) == 6  # the other run is as it was


def test_resume_from_an_earlier_checkpoint_of_the_run_goes_back_to_it(folder, whole):
    back = folder / "back"
    shutil.copytree(whole, back)
    train(settings(folder, "back", resume=str(back / "checkpoints" / "4")), quiet=True)
    assert_same_run(back, whole)
    train(settings(folder, "back", steps=5, resume=str(back / "checkpoints" / "4")), quiet=True)
    assert [line["step"] for line in lines(back / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert 6 not in {int(p.name) for p in (back / "checkpoints").iterdir()}


def test_a_checkpoint_of_another_model_is_refused_before_training(folder, whole):
    with pytest.raises(RememError, match=r"belongs to another model or optimizer") as error:
        train(settings(folder, "adapters", resume=str(whole), lora__rank=2), quiet=True)
    assert "\n" not in str(error.value)
    assert not (folder / "adapters" / "metrics.jsonl").exists()


def test_the_best_by_validation_is_exported_and_opens_as_an_agent(folder, monkeypatch):
    scores = iter([0.1, 0.2, 0.9, 0.4])  # at steps 0, 1, 2, 3
    monkeypatch.setattr(trainer, "summary", lambda results: {"exact_match": next(scores), "f1": 0.0, "n": 4})
    outcome = train(settings(folder, "best", steps=3, validation__every=1, export="best"), quiet=True)
    assert outcome == Outcome(3, False, 0.9, folder / "best" / "model")
    exported = load_agent(str(outcome.exported), dtype="float32")
    best, last = arrays(folder / "best", 2), arrays(folder / "best", 3)
    assert exported.config == load_agent(str(folder / "start"), weights=False).config
    for layer in range(2):
        mine = np.asarray(exported.agent.model.params["layers"][layer]["down"])
        np.testing.assert_array_equal(mine, best["params.layers.down"][layer])
        assert not np.array_equal(mine, last["params.layers.down"][layer])


def test_old_log_probs_of_the_trainer_equal_those_of_the_sampler(folder, whole):
    train(settings(folder, "recomputed", steps=2, rollout__old_logprobs="recomputed"), quiet=True)
    for mine, theirs in zip(lines(folder / "recomputed" / "metrics.jsonl"), lines(whole / "metrics.jsonl")):
        assert mine["sampler/gap_abs"] <= mine["sampler/gap_max"] < 1e-4
        assert mine["reward/outcome"] == theirs["reward/outcome"]
        assert mine["loss/total"] == pytest.approx(theirs["loss/total"], abs=1e-4)


def test_without_a_kl_term_there_is_no_reference_policy(folder, monkeypatch):
    passes = []
    monkeypatch.setattr(grpo, "logprobs", lambda *args, **named: passes.append(args))
    train(settings(folder, "no reference", steps=1, loss__beta=0.0, validation__every=9), quiet=True)
    assert passes == []
    (metrics,) = lines(folder / "no reference" / "metrics.jsonl")
    assert not [name for name in metrics if "ref" in name]


def test_adapters_train_resume_and_are_merged_into_the_export(folder):
    changes = dict(lora__rank=2, lora__targets=["q", "down"], optimizer__learning_rate=0.01, validation__every=9)
    changes |= dict(log__trajectories_every=0)
    train(settings(folder, "lora", steps=1, **changes), quiet=True)
    outcome = train(settings(folder, "lora", steps=2, export="last", **changes), quiet=True)
    train(settings(folder, "lora at once", steps=2, **changes), quiet=True)
    stored = arrays(folder / "lora")
    for name, value in arrays(folder / "lora at once").items():
        np.testing.assert_array_equal(stored[name], value, err_msg=name)

    exported = load_agent(str(outcome.exported), dtype="float32").agent.model.params
    base = load_agent(str(folder / "start"), dtype="float32").agent.model.params
    assert sorted(name for name in stored if name.startswith("params.")) == [
        f"params.layers.{name}" for name in ("down_lora_a", "down_lora_b", "q_lora_a", "q_lora_b")
    ]
    for layer in range(2):
        for target in ("q", "down"):
            a, b = (stored[f"params.layers.{target}_lora_{side}"][layer] for side in "ab")
            change = np.asarray(exported["layers"][layer][target]) - np.asarray(base["layers"][layer][target])
            np.testing.assert_allclose(change, 16 / 2 * b @ a, atol=1e-5)
            assert np.abs(change).max() > 1e-3
        np.testing.assert_array_equal(exported["layers"][layer]["o"], base["layers"][layer]["o"])


@pytest.mark.parity
def test_transformers_loads_an_export_and_computes_the_same(folder, whole, tmp_path):
    import jax.numpy as jnp
    import torch
    from transformers import AutoModelForCausalLM

    from remem_jax.convert import convert
    from remem_jax.model import load_model
    from remem_jax.model.packing import plain_rows
    from remem_jax.model.transformer import forward

    out = convert(whole, tmp_path / "export", dtype="float32")
    ids = np.arange(5, 25)[None]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(out)(torch.from_numpy(ids)).logits.numpy()
    model = load_model(str(out), "float32")
    hidden, _ = forward(model.params, model.config, plain_rows(jnp.asarray(ids, jnp.int32), jnp.array([20])))
    ours = np.asarray(hidden) @ np.asarray(model.params["head"]).T
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def learnt(folder: Path, run: str, **changes) -> float:
    """Rise of the share of right answers from the first four of twenty steps to the last four."""
    questions = [q for q in make_questions(24, seed=5)[::2] if q.answers == ("LIMA",)]
    data = write_records(folder / "lima.jsonl", questions)
    shared = dict(steps=20, data={"train": str(data)}, checkpoint__every=20, log__trajectories_every=0)
    shared |= dict(loss__beta=0.0, reward__alpha=1.0, optimizer__learning_rate=0.001)
    train(settings(folder, run, **shared | changes), quiet=True)
    outcomes = [line["reward/outcome"] for line in lines(folder / run / "metrics.jsonl")]
    return float(np.mean(outcomes[-4:]) - np.mean(outcomes[:4]))


def test_reward_is_what_is_learnt_from(folder):
    assert learnt(folder, "learns") > 0.4
    assert learnt(folder, "unpaid", reward__outcome=0.0) < 0.2


def test_a_trajectory_file_holds_the_settings_that_it_was_weighted_with(folder, whole):
    records = lines(whole / "trajectories" / "step_000006.jsonl")
    assert {record["step"] for record in records} == {6}
    assert records[0]["reward_settings"]["alpha"] == 0.8
    for record in records:
        assert record["state_reward"] == pytest.approx(
            record["memory_gain"] + record["callback_gain"] + record["format"]
        )
