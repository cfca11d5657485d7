"""Learning as a test of the whole: an agent trained from scratch on the relay task gets better by its rewards.

The three runs are those of `make demo`, from the same files. With rewards permuted within each group, or zeroed, the
same check fails: CONTRIBUTING says how that was seen.
"""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from remem_jax.data.relay import Sizes, write_relay
from remem_jax.observe.metrics import read_metrics
from remem_jax.rl import grpo
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.trainer import train
from remem_jax.settings import load_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
STEPS = 30
SPOIL = os.environ.get("REMEM_SPOIL_REWARDS", "")  # permuted or zeroed: to see that the check can fail


def run(config: str, *overrides: str):
    return train(load_config(TrainConfig, CONFIGS / config, [*overrides, "log.tensorboard=false"]), quiet=True)


def spoilt(score):
    """`score` with its outcome and advantages permuted within each group, or zeroed."""

    def changed(*arguments, **options):
        scores = score(*arguments, **options)
        if SPOIL == "zeroed":
            return dataclasses.replace(scores, advantages=np.zeros_like(scores.advantages))
        n, _, g = scores.mask.shape
        chance = np.random.default_rng(int(1e6 * np.abs(scores.advantages).sum()))
        order = chance.permuted(np.tile(np.arange(g), (n, 1)), axis=1)
        return dataclasses.replace(scores, advantages=np.take_along_axis(scores.advantages, order[:, None], axis=2))

    return changed


@pytest.mark.slow
def test_grpo_raises_the_exact_match_of_a_warm_started_agent(tmp_path, monkeypatch):
    data = tmp_path / "data"
    write_relay(data, "rememr1", 0, Sizes(train=STEPS * 16, validation=1))
    run("relay_practice.yaml", f"model={data}/start", f"data.train={data}/practice.jsonl", f"run_dir={tmp_path}/p")
    run("relay_warm.yaml", f"model={tmp_path}/p/model", f"data.train={data}/warm.jsonl", f"run_dir={tmp_path}/w")
    if SPOIL:
        monkeypatch.setattr(grpo, "score", spoilt(grpo.score))
    run(
        "relay.yaml",
        f"model={tmp_path}/w/model",
        f"data.train={data}/train.jsonl",
        "data.validation=null",
        f"run_dir={tmp_path}/g",
        f"steps={STEPS}",
    )
    lines = read_metrics(tmp_path / "g")

    def values(name: str) -> np.ndarray:
        return np.array([line[name] for line in lines], float)

    matches = values("reward/outcome")
    assert matches[-STEPS // 3 :].mean() >= matches[0] + 0.15, matches.round(3).tolist()
    assert values("reward/format")[-5:].mean() >= 0.95
    assert values("sampler/gap_abs").max() <= 1e-4
