"""Shipped settings for slices: the mesh has the chips its header names and divides the model and the batch."""

import re
from pathlib import Path

import pytest

from remem_jax.rl.config import TrainConfig
from remem_jax.settings import load_config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
HEADS, KV_HEADS, HIDDEN, FEED_FORWARD = 28, 4, 3584, 18944  # Qwen2.5-7B's config.json


@pytest.mark.parametrize(
    "name", ["memagent_7b_v5p_64", "paper_parity_7b", "qwen2.5_7b_v5p_64", "qwen2.5_7b_v6e_64", "qwen2.5_7b_h100_8"]
)
def test_a_mesh_has_the_chips_of_its_header_and_divides_the_7b_model_and_the_batch(name):
    path = CONFIGS / f"{name}.yaml"
    header, config = path.read_text(encoding="utf-8").split("model:")[0], load_config(TrainConfig, path)
    chips = re.search(r"^# Hardware: (\d+) chips", header, re.MULTILINE)
    assert chips and int(chips[1]) == config.mesh[0] * config.mesh[1] * config.mesh[2] == (
        8 if name.endswith("_8") else 64
    )
    data, fsdp, tensor = config.mesh
    assert [size % tensor for size in (HEADS, KV_HEADS, FEED_FORWARD)] == [0, 0, 0]
    assert HIDDEN % fsdp == 0 and config.rollout.questions % (data * fsdp) == 0
    assert config.model == "Qwen/Qwen2.5-7B-Instruct" and f"remem train configs/{name}.yaml" in header


def test_the_baseline_and_the_parity_run_differ_as_their_headers_say():
    ours, baseline, parity = (
        load_config(TrainConfig, CONFIGS / f"{name}.yaml")
        for name in ("qwen2.5_7b_v5p_64", "memagent_7b_v5p_64", "paper_parity_7b")
    )
    assert (ours.agent["agent"], ours.reward.alpha, ours.loss.average) == ("rememr1", 0.8, "state_mean")
    assert (baseline.agent["agent"], baseline.reward.alpha) == ("memagent", 1.0)
    assert (parity.agent["prompt_order"], parity.loss.average) == ("section_last", "token_mean")
    assert (parity.rollout.questions, parity.rollout.group, parity.agent["chunk_tokens"]) == (128, 16, 5000)
    assert (parity.agent["memory_tokens"], parity.agent["max_reply_tokens"]) == (2048, 2048)
