"""Shipped settings for slices: the mesh has the chips its header names and divides model and batch; memory adds up."""

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

from remem_jax.model.attention import why_not
from remem_jax.rl.config import TrainConfig
from remem_jax.settings import load_config

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
# By the models' config.json: heads, key heads, hidden, feed-forward, layers, head size, vocabulary, head apart.
MODELS = {
    "0.5B": (14, 2, 896, 4864, 24, 64, 151936, False),
    "1.5B": (12, 2, 1536, 8960, 28, 128, 151936, False),
    "3B": (16, 2, 2048, 11008, 36, 128, 151936, False),
    "7B": (28, 4, 3584, 18944, 28, 128, 152064, True),
}
SLICES = {  # name -> chips, bytes of one that a program may use
    "memagent_7b_v5p_64": (64, 95.74 * 2**30),
    "paper_parity_7b": (64, 95.74 * 2**30),
    "qwen2.5_7b_v5p_64": (64, 95.74 * 2**30),
    "qwen2.5_7b_v6e_64": (64, 31.25 * 2**30),
    "qwen2.5_7b_h100_8": (8, 0.9 * 80e9),
    "qwen2.5_3b_v5e_64": (64, 15.75 * 2**30),
    "alpha_ablation_3b_v5e_64": (64, 15.75 * 2**30),
    "qwen2.5_1.5b_v5e_8": (8, 15.75 * 2**30),
    "qwen2.5_0.5b_colab_t4": (1, 0.9 * 16e9),
}


def opened(name: str) -> tuple[str, TrainConfig, str]:
    """The comment at the top, the settings, and the size of the model."""
    path = CONFIGS / f"{name}.yaml"
    config = load_config(TrainConfig, path)
    size = re.fullmatch(r"Qwen/Qwen2\.5-([\d.]+B)-Instruct", config.model)
    assert size is not None
    return path.read_text(encoding="utf-8").split("model:")[0], config, size[1]


def parameters(size: str) -> int:
    """Of a Qwen2.5: embedding, layers with bias on q, k and v, the last norm, and a head where it is apart."""
    heads, kv, hidden, ff, layers, head, vocabulary, apart = MODELS[size]
    q, k = heads * head, kv * head
    layer = 2 * hidden + hidden * q + q + 2 * (hidden * k + k) + q * hidden + 3 * hidden * ff
    return vocabulary * hidden * (2 if apart else 1) + layers * layer + hidden


def test_parameters_are_those_that_the_models_have():
    found = {size: parameters(size) for size in MODELS}
    assert found == {"0.5B": 494_032_768, "1.5B": 1_543_714_304, "3B": 3_085_938_688, "7B": 7_615_616_512}


def test_every_training_config_of_a_qwen_is_in_the_table():
    qwen = {path.stem for path in CONFIGS.glob("*.yaml") if re.search(r"^model: Qwen/", path.read_text(), re.MULTILINE)}
    assert qwen == SLICES.keys()


@pytest.mark.parametrize("name", SLICES)
def test_a_mesh_has_the_chips_of_its_header_and_divides_the_model_and_the_batch(name):
    header, config, size = opened(name)
    heads, kv, hidden, ff, _, _, vocabulary, _ = MODELS[size]
    data, fsdp, tensor = config.mesh
    chips = re.search(r"^# Hardware: (\d+) chips?", header, re.MULTILINE)
    assert chips and int(chips[1]) == data * fsdp * tensor == SLICES[name][0]
    assert [heads % tensor, kv % tensor, ff % tensor, vocabulary % tensor] == [0, 0, 0, 0]
    assert hidden % fsdp == 0 and config.rollout.questions % (data * fsdp) == 0
    assert config.rollout.questions % config.optimizer.mini_batch == 0
    assert f"remem train configs/{name}.yaml" in header
    assert "Memory" in header and "not yet measured" in header


@pytest.mark.parametrize("name", SLICES)
def test_weights_masters_moments_and_one_question_a_shard_fit_a_chip_by_hand(name):
    _, config, size = opened(name)
    _, kv, hidden, ff, layers, head, _, _ = MODELS[size]
    heads = MODELS[size][0]
    chips, room = SLICES[name]
    tensor = config.mesh[2]
    number, compute = parameters(size), 4 if config.dtype == "float32" else 2
    if config.lora.rank:  # two thin matrices for each of q, k, v, o, gate, up, down
        ends = (hidden + heads * head) * 2 + (hidden + kv * head) * 2 + (hidden + ff) * 3
        trained = layers * config.lora.rank * ends
    else:
        trained = number
    # Masters, two moments and gradients in float32; the reference or base; the engine's weights, split by tensor alone.
    weights = 16 * trained / chips + compute * number / chips + compute * number / tensor
    agent = {name: int(str(config.agent[name])) for name in ("chunk_tokens", "memory_tokens", "max_reply_tokens")}
    own = 2 * agent["memory_tokens"] + agent["max_reply_tokens"]  # the memory, a recalled one, the reply
    slots = agent["chunk_tokens"] + config.rollout.group * own
    cache = slots * 2 * layers * kv * head * compute / tensor
    assert weights + cache < 0.8 * room, f"{weights / 2**30:.1f} + {cache / 2**30:.1f} GiB"


def test_the_baseline_the_parity_run_and_the_ablation_differ_as_their_headers_say():
    ours, baseline, parity = (
        opened(name)[1] for name in ("qwen2.5_7b_v5p_64", "memagent_7b_v5p_64", "paper_parity_7b")
    )
    assert (ours.agent["agent"], ours.reward.alpha, ours.loss.average) == ("rememr1", 0.8, "state_mean")
    assert (baseline.agent["agent"], baseline.reward.alpha) == ("memagent", 1.0)
    assert (parity.agent["prompt_order"], parity.loss.average) == ("section_last", "token_mean")
    assert (parity.rollout.questions, parity.rollout.group, parity.agent["chunk_tokens"]) == (128, 16, 5000)
    assert (parity.agent["memory_tokens"], parity.agent["max_reply_tokens"]) == (2048, 2048)
    header, ablation, _ = opened("alpha_ablation_3b_v5e_64")
    text, base = ((CONFIGS / f"{name}.yaml").read_text() for name in ("alpha_ablation_3b_v5e_64", "qwen2.5_3b_v5e_64"))
    differing = [pair for pair in zip(lines_of(text), lines_of(base), strict=True) if pair[0] != pair[1]]
    assert differing == [("run_dir: runs/alpha_3b/0.8", "run_dir: runs/qwen2.5_3b_v5e_64")]
    values = re.search(r"for alpha in ([\d. ]+); do", header)
    assert values and values[1].split() == ["1.0", "0.8", "0.5", "0.2"] and ablation.reward.alpha == 0.8


def lines_of(text: str) -> list[str]:
    """The settings without the comment at the top."""
    return text[text.index("\nmodel:") :].splitlines()


def test_the_t4_has_float32_adapters_and_an_attention_that_takes_it():
    _, config, _ = opened("qwen2.5_0.5b_colab_t4")
    assert (config.dtype, config.attention, config.lora.rank > 0) == ("float32", "blocked", True)
    assert why_not("blocked", tokens=1000, dtype=jnp.float32) is None
    assert why_not("cudnn", tokens=1024, dtype=jnp.float32) is not None
