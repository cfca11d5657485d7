"""Export of checkpoints: the same numbers, in a directory that transformers and `load_agent` open."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.agent.api import load_agent
from remem_jax.checkpoint import Checkpoints
from remem_jax.config import AgentConfig, read_agent_json, write_agent_json
from remem_jax.convert import convert
from remem_jax.errors import RememError
from remem_jax.model import load_model, save_model
from remem_jax.model.config import to_hf
from remem_jax.model.load import stack_layers
from remem_jax.model.transformer import logits
from remem_jax.rl import lora
from remem_jax.rl.step import Optimizer, init_state
from remem_jax.testing import tiny_model
from tests.tiny_agent import LENGTHS, PROMPTS, VOCABULARY
from tests.tokenizer_fixtures import byte_level_bpe

AGENT = AgentConfig(**LENGTHS, prompts=PROMPTS, prompt_order="section_first")


def a_model(seed: int, **changes):
    return tiny_model(seed, **{"vocab_size": VOCABULARY, "eos_ids": (1, 0)} | changes)


def a_run(folder, models: dict, scores: dict):
    """A run's directory whose checkpoints hold the parameters of `models`, step -> model."""
    files = folder / "tokenizer"
    files.mkdir(parents=True)
    byte_level_bpe(files)
    write_agent_json(files, AGENT)
    checkpoints = Checkpoints(folder / "run" / "checkpoints", keep=5)
    for step, model in models.items():
        state = init_state(stack_layers(model.params), Optimizer())
        contents = {file.name: file for file in files.iterdir()} | {"config.json": json.dumps(to_hf(model.config))}
        checkpoints.save(step, state, {"seed": 0}, files=contents, score=scores.get(step))
    checkpoints.close()
    return folder / "run"


def same(a, b) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), a, b))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Models by step, and the run's directory."""
    models = {1: a_model(1), 2: a_model(2), 3: a_model(3)}
    return models, a_run(tmp_path_factory.mktemp("convert"), models, {2: 0.5, 3: 0.25})


def test_float32_weights_are_the_master_weights_bit_for_bit(run, tmp_path):
    models, folder = run
    for step, options in ((3, {}), (2, {"best": True})):
        out = convert(folder, tmp_path / str(step), dtype="float32", **options)
        loaded = load_model(out)
        assert loaded.config == models[step].config
        assert same(loaded.params, models[step].params)
    one = convert(folder / "checkpoints" / "1", tmp_path / "1", dtype="float32")
    assert same(load_model(one).params, models[1].params)


def test_bfloat16_weights_are_the_nearest(run, tmp_path):
    models, folder = run
    loaded = load_model(convert(folder, tmp_path / "out"), "bfloat16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert same(loaded.params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), models[3].params))


def test_an_export_holds_the_agents_settings_and_opens_as_an_agent(run, tmp_path):
    _, folder = run
    out = convert(folder, tmp_path / "out")
    names = {"config.json", "generation_config.json", "model.safetensors", "remem.json"}
    assert {p.name for p in out.iterdir()} == names | {"tokenizer.json", "tokenizer_config.json"}
    assert read_agent_json(out) == AGENT
    agent = load_agent(out)
    assert agent.config == AGENT and agent.notes == ()
    reading = agent.readings(["Who wrote the letter?"], {"text": "The keeper of the harbour wrote a letter."})[0]
    assert len(reading.chunks) >= 2


@pytest.mark.parity
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_transformers_computes_the_same_logits_from_an_export(family, tmp_path):
    import torch
    import transformers

    model = a_model(5, family=family, tie_embeddings=family == "qwen2")
    out = convert(a_run(tmp_path, {1: model}, {}), tmp_path / "out", dtype="float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ids = tokenizer("The keeper of the harbour wrote a letter.").input_ids
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    ours = logits(model, jnp.asarray([ids]), jnp.asarray([len(ids)]))[0]
    assert np.abs(expected - np.asarray(ours)).max() < 1e-4 * np.abs(expected).max()


def test_adapters_are_merged_into_their_base(tmp_path):
    base = a_model(7)
    save_model(tmp_path / "base", base.config, base.params)
    targets = ("q", "down")
    adapters = lora.init(base.config, 0, 4, targets)
    numbers = np.random.default_rng(0)  # `b` starts as zeros, which a forgotten merge would not show
    adapters = jax.tree.map(lambda x: x + jnp.asarray(numbers.normal(size=x.shape), jnp.float32), adapters)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    info = {"base": str(tmp_path / "base"), "lora": {"rank": 4, "alpha": 8.0, "targets": list(targets)}}
    files = {"config.json": json.dumps(to_hf(base.config))}
    checkpoints.save(1, init_state(adapters, Optimizer()), info, files=files)
    checkpoints.close()
    merged = load_model(convert(tmp_path / "run", tmp_path / "out", dtype="float32")).params
    for layer in range(2):
        old, new = base.params["layers"][layer], merged["layers"][layer]
        for name in old:
            expected = np.asarray(old[name], np.float64)
            if name in targets:
                a, b = (np.asarray(adapters["layers"][f"{name}_lora_{side}"][layer], np.float64) for side in "ab")
                expected = expected + 2.0 * b @ a  # alpha / rank
            np.testing.assert_allclose(np.asarray(new[name]), expected, rtol=1e-5, atol=1e-5)
    assert same(merged["embed"], base.params["embed"])

    (tmp_path / "base").rename(tmp_path / "gone")
    with pytest.raises(RememError, match=r"holds adapters of the model .*base, which can't be read: "):
        convert(tmp_path / "run", tmp_path / "again")


def test_weights_of_a_large_model_are_written_in_shards_one_array_in_memory_at_a_time(run, tmp_path, monkeypatch):
    models, folder = run
    reads = []

    def save_in_shards(path, config, params, **options):
        save_model(path, config, params, max_shard_bytes=20_000, **options)
        leaves = jax.tree.leaves(params)
        reads.append((len(leaves), leaves[0].read.cache_info()))

    monkeypatch.setattr("remem_jax.convert.save_model", save_in_shards)
    out = convert(folder, tmp_path / "out", dtype="float32")
    [(count, cache)] = reads
    assert (cache.misses, cache.maxsize, cache.currsize) == (count, 1, 1)  # each array was read once, one is held
    assert len(list(out.glob("model-*.safetensors"))) > 2
    assert same(load_model(out).params, models[3].params)


def test_what_cannot_be_exported_is_told_in_one_line(run, tmp_path):
    _, folder = run
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(RememError, match=r"will not write a model over .*full: expected a new or empty directory"):
        convert(folder, tmp_path / "full")
    with pytest.raises(RememError, match="dtype must be one of bfloat16, float32, found int8"):
        convert(folder, tmp_path / "out", dtype="int8")
    with pytest.raises(RememError, match="expected a run's directory or one of its checkpoints"):
        convert(tmp_path / "full", tmp_path / "out")
    checkpoints = Checkpoints(tmp_path / "other")
    state = init_state(a_model(1, num_layers=3).params, Optimizer())
    checkpoints.save(1, {"params": state.params}, {}, files={})
    checkpoints.save(
        2, {"params": stack_layers(state.params)}, {}, files={"config.json": json.dumps(to_hf(a_model(1).config))}
    )
    checkpoints.close()
    with pytest.raises(RememError, match=r"is not one of a model: expected files/config.json in it, found none"):
        convert(tmp_path / "other" / "1", tmp_path / "out")
    with pytest.raises(RememError, match=r"expected params.layers.attn_norm of shape \[2, 32\], found \[3, 32\]"):
        convert(tmp_path / "other", tmp_path / "out")
    assert not (tmp_path / "out").exists()
