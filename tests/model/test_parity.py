"""The decoder against transformers and torch in float32: small random models of every family, and a real one.

The real model's reference values were computed once (tests/golden, and the data folder), so those tests need no torch.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.model import load_model, save_model, token_logprobs
from remem_jax.model.config import from_hf, parameter_tree, rope_frequencies
from remem_jax.model.transformer import logits

GOLDEN = Path(__file__).parents[1] / "golden" / "smollm2.json"
SIZES = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 7,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2 untied": {"model_type": "qwen2", "tie_word_embeddings": False, "rms_norm_eps": 1e-3},
    "qwen2 yarn": {"model_type": "qwen2", "rope_parameters": YARN | {"rope_theta": 1e6}},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "llama 3": {"model_type": "llama", "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
    "llama biases, linear": {
        "model_type": "llama",
        "attention_bias": True,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
    },
    "smollm2": {
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 72,
        "tie_word_embeddings": True,
    },
    "mistral": {"model_type": "mistral", "num_key_value_heads": 1, "head_dim": 24, "sliding_window": 128},
}
LENGTHS = np.array([70, 41], np.int32)


@pytest.fixture(scope="module", params=list(FAMILIES))
def reference(request, tmp_path_factory):
    """A random transformers model saved by transformers, tokens `[2, 70]` and its logits `[2, 70, V]`."""
    import torch
    import transformers

    torch.manual_seed(len(request.param))
    settings: dict = SIZES | FAMILIES[request.param]
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter += 0.3 * torch.randn_like(parameter)
    path = tmp_path_factory.mktemp("model") / "saved"
    model.save_pretrained(path)
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 70)).astype(np.int32)
    return path, tokens, torch_logits(path, tokens)


def torch_logits(path, tokens):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens, dtype=torch.long)).logits.numpy()


@pytest.mark.parity
def test_logits_agree_with_transformers(reference):
    path, tokens, expected = reference
    ours = np.asarray(logits(load_model(path), jnp.asarray(tokens), jnp.asarray(LENGTHS)))
    assert np.abs(expected).max() > 1
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(ours[row, :length], expected[row, :length], rtol=0, atol=1e-4)


@pytest.mark.parity
def test_token_logprobs_agree_with_transformers(reference):
    path, tokens, expected = reference
    ours = np.asarray(token_logprobs(load_model(path), jnp.asarray(tokens), jnp.asarray(LENGTHS)))
    scores = expected - np.log(np.exp(expected.astype(np.float64)).sum(-1, keepdims=True))
    chosen = np.take_along_axis(scores[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(ours[row, : length - 1], chosen[row, : length - 1], rtol=0, atol=1e-4)


@pytest.mark.parity
def test_transformers_loads_what_we_export_and_agrees(reference, tmp_path):
    from safetensors.numpy import load_file

    path, tokens, expected = reference
    model = load_model(path)
    save_model(tmp_path / "export", model.config, model.params)
    theirs, ours = load_file(path / "model.safetensors"), load_file(tmp_path / "export" / "model.safetensors")
    assert {name: x.tobytes() for name, x in ours.items()} == {name: x.tobytes() for name, x in theirs.items()}
    np.testing.assert_array_equal(torch_logits(tmp_path / "export", tokens), expected)
    assert load_model(tmp_path / "export").config == model.config


@pytest.mark.parity
def test_transformers_loads_a_sharded_bfloat16_export_in_its_dtype(tmp_path):
    import torch
    import transformers

    config, rng = from_hf(SIZES | {"model_type": "qwen2"}), np.random.default_rng(0)
    specs = parameter_tree(config)
    params = jax.tree.map(lambda spec: jnp.asarray(rng.normal(size=spec.shape).astype("bfloat16")), specs)
    save_model(tmp_path / "export", config, params, max_shard_bytes=30_000)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert (model.dtype, model.generation_config.eos_token_id) == (torch.bfloat16, [7])
    for name, key in [("k_proj", "k"), ("o_proj", "o")]:
        theirs = getattr(model.model.layers[1].self_attn, name).weight.detach().float().numpy()
        np.testing.assert_array_equal(theirs, np.asarray(params["layers"][1][key]).astype(np.float32))


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if "rope_parameters" in family])
def test_rotary_frequencies_agree_with_transformers_to_the_last_bits(name):
    import importlib

    import transformers

    settings: dict = SIZES | FAMILIES[name] | {"hidden_size": 512}
    hf = transformers.AutoConfig.for_model(**settings)
    module = importlib.import_module(f"transformers.models.{hf.model_type}.modeling_{hf.model_type}")
    rotary = getattr(module, f"{hf.model_type.capitalize()}RotaryEmbedding")(hf)
    inv_freq, scale = rope_frequencies(from_hf(hf.to_dict()))
    np.testing.assert_allclose(inv_freq, rotary.inv_freq.numpy(), rtol=3e-7)
    assert scale == pytest.approx(rotary.attention_scaling)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return load_model(smollm2_path)


def check_golden(model, cases):
    """Log-probs of prompt and greedy reply within 1e-3, and every greedy id the argmax after what precedes it.

    That makes the greedy reply equal by induction, with one forward pass for all cases.
    """
    texts = [case["input_ids"] + case["greedy_ids"] for case in cases]
    lengths = [len(ids) for ids in texts]
    tokens = np.zeros((len(texts), max(lengths)), np.int32)
    for row, ids in enumerate(texts):
        tokens[row, : len(ids)] = ids
    scores = np.asarray(logits(model, jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32)))
    chosen = np.take_along_axis(scores[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    ours = chosen - np.asarray(jax.nn.logsumexp(scores[:, :-1], axis=-1))
    for row, case in enumerate(cases):
        prompt, end = len(case["input_ids"]) - 1, lengths[row] - 1
        np.testing.assert_allclose(ours[row, :prompt], case["prompt_logprobs"], rtol=0, atol=1e-3)
        np.testing.assert_allclose(ours[row, prompt:end], case["greedy_logprobs"], rtol=0, atol=1e-3)
        assert scores[row, prompt:end].argmax(-1).tolist() == case["greedy_ids"]
        for token, value in case["next_token_top10"]:
            assert scores[row, prompt, token] == pytest.approx(value, abs=2e-3)


def test_smollm2_agrees_with_the_committed_golden_values(smollm2):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert len(golden["cases"]) == 4
    check_golden(smollm2, golden["cases"])


def test_smollm2s_token_logprobs_are_the_golden_ones(smollm2):
    case = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"][0]
    tokens = jnp.array([case["input_ids"] + [0]], jnp.int32)
    ours = np.asarray(token_logprobs(smollm2, tokens, jnp.array([tokens.shape[1] - 1], jnp.int32)))
    np.testing.assert_allclose(ours[0], [*case["prompt_logprobs"], 0.0], rtol=0, atol=1e-3)


@pytest.mark.needs_data
def test_smollm2_agrees_with_the_shared_golden_values(smollm2, data_dir):
    golden = json.loads((data_dir / "golden_generation.json").read_text(encoding="utf-8"))
    (cases,) = (entry["cases"] for entry in golden if entry["model"].startswith("SmolLM2"))
    assert len(cases) == 5
    check_golden(smollm2, cases)


def test_smollm2s_tokenizer_gives_the_ids_of_the_golden_prompts(smollm2):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for case in golden["cases"]:
        assert smollm2.tokenizer.encode(case["prompt"], special=True) == case["input_ids"]
        assert smollm2.tokenizer.decode(case["greedy_ids"]) == case["greedy_text"].replace("<|im_end|>", "")


def test_smollm2_exported_and_loaded_is_the_same_model(smollm2, tmp_path):
    save_model(tmp_path / "export", smollm2.config, smollm2.params)
    again = load_model(tmp_path / "export")
    assert again.config == smollm2.config
    for x, y in zip(jax.tree.leaves(again.params), jax.tree.leaves(smollm2.params), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
