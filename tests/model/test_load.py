"""Loading: refusals name the tensor in one line, sharded loading reads parts, random parameters are regular."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.errors import RememError
from remem_jax.model import load_model
from remem_jax.model.config import count_parameters, from_hf, parameter_tree
from remem_jax.model.load import init_params, load_params, stack_layers, unstack_layers
from remem_jax.model.safetensors import open_safetensors, save_model

TINY = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
Q0 = "model.layers.0.self_attn.q_proj.weight"


class Memory:
    """A checkpoint held in a dictionary, which notes what is read."""

    def __init__(self, tensors, config):
        self.tensors, self.hf, self.read = tensors, config, []

    def config(self):
        return self.hf

    def names(self):
        return list(self.tensors)

    def shape(self, name):
        return self.tensors[name].shape

    def tensor(self, name, index=None):
        self.read.append((name, index))
        return self.tensors[name] if index is None else self.tensors[name][index]


def memory(model_type="llama", **more):
    """A source of a tiny model whose numbers all differ, and its configuration."""
    hf = TINY | {"model_type": model_type} | more
    config, rng = from_hf(hf), np.random.default_rng(0)
    specs = jax.tree.leaves(parameter_tree(config))
    return Memory({s.hf_name: rng.normal(size=s.shape).astype(np.float32) for s in specs}, hf), config


def saved(path, model_type="llama"):
    """A tiny checkpoint written to `path`: its configuration and parameters."""
    source, config = memory(model_type)
    params = load_params(source, config, "float32")
    save_model(path, config, params)
    return config, params


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def refusal(source, config):
    with pytest.raises(RememError) as error:
        load_params(source, config, "float32")
    assert "\n" not in str(error.value)
    assert source.read == []
    return str(error.value)


def test_each_tensor_lands_where_its_name_says():
    source, config = memory("qwen3")
    params = load_params(source, config, "float32")
    np.testing.assert_array_equal(
        params["layers"][1]["q_norm"], source.tensors["model.layers.1.self_attn.q_norm.weight"]
    )
    np.testing.assert_array_equal(params["layers"][0]["down"], source.tensors["model.layers.0.mlp.down_proj.weight"])
    np.testing.assert_array_equal(params["head"], source.tensors["lm_head.weight"])
    assert isinstance(params["layers"], tuple)


def test_stacked_loading_is_stacking_what_is_loaded():
    source, config = memory("qwen2")
    params = load_params(source, config, "bfloat16")
    stacked = load_params(source, config, "bfloat16", stacked=True)
    assert stacked["layers"]["q"].shape == (2, 8, 8)
    same(stacked, stack_layers(params))
    same(unstack_layers(stacked), params)
    same(stack_layers(stacked), stacked)
    same(unstack_layers(params), params)


def test_a_missing_tensor_is_named_with_its_shape():
    source, config = memory()
    del source.tensors[Q0]
    assert f"missing tensor {Q0}: expected shape [8, 8], found none;" in refusal(source, config)
    del source.tensors["model.norm.weight"]
    assert "found none (and 1 more)" in refusal(source, config)


def test_a_misshapen_tensor_is_named_with_both_shapes():
    source, config = memory()
    source.tensors[Q0] = np.zeros((8, 6), np.float32)
    assert f"misshapen tensor {Q0}: expected shape [8, 8], found [8, 6]" in refusal(source, config)


def test_an_extra_tensor_is_named_with_its_shape():
    source, config = memory()
    source.tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(8, np.float32)
    message = refusal(source, config)
    assert "extra tensor model.layers.0.self_attn.q_proj.bias: expected none of this name, found shape [8]" in message


def test_a_head_is_missing_when_untied_and_ignored_when_tied():
    source, config = memory()
    del source.tensors["lm_head.weight"]
    assert "missing tensor lm_head.weight: expected shape [20, 8]" in refusal(source, config)
    source, config = memory(tie_word_embeddings=True)
    source.tensors["lm_head.weight"] = np.ones((20, 8), np.float32)
    assert "head" not in load_params(source, config, "float32")


def test_stored_rotary_frequencies_are_ignored():
    source, config = memory()
    source.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    load_params(source, config, "float32")
    assert not any("inv_freq" in name for name, _ in source.read)


def test_loading_to_a_sharding_reads_each_part_once():
    source, config = memory(tie_word_embeddings=True)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    tree = parameter_tree(config, stacked=True)
    sharded = load_params(source, config, "float32", stacked=True, shardings=jax.tree.map(lambda _: here, tree))
    assert sorted(name for name, _ in source.read) == sorted(source.tensors)
    same(sharded, load_params(source, config, "float32", stacked=True))


SHARDED = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from remem_jax.model.config import from_hf, parameter_tree
from remem_jax.model.load import load_params
from test_load import memory

mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
where = {"embed": "fsdp", "ff": "tensor", "heads": "tensor"}
source, config = memory()
for stacked in (False, True):
    shardings = jax.tree.map(
        lambda s: NamedSharding(mesh, PartitionSpec(*(where.get(axis) for axis in s.axes))),
        parameter_tree(config, stacked=stacked),
    )
    source.read.clear()
    params = load_params(source, config, "float32", stacked=stacked, shardings=shardings)
    gates = [i for name, i in source.read if name == "model.layers.1.mlp.gate_proj.weight"]
    assert sorted((i[0].start or 0, i[1].start or 0) for i in gates) == [(a, b) for a in (0, 6) for b in (0, 2, 4, 6)]
    norms = [i for name, i in source.read if name == "model.norm.weight"]
    assert len(norms) == 4, norms
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(load_params(source, config, "float32", stacked=stacked))):
        np.testing.assert_array_equal(x, y)
    gate = params["layers"]["gate"] if stacked else params["layers"][1]["gate"]
    assert gate.addressable_shards[0].data.shape[-2:] == (6, 2)
print("sharded loading agrees")
"""


def test_eight_devices_read_their_parts_and_replicas_share_a_reading():
    here = Path(__file__)
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(here.parents[2]), str(here.parent)]),
    }
    done = subprocess.run([sys.executable, "-c", SHARDED], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout == "sharded loading agrees\n", done.stderr


def test_random_parameters_are_the_same_numbers_stacked_or_not_and_of_the_right_spread():
    config = from_hf(TINY | {"model_type": "qwen2", "vocab_size": 2000, "tie_word_embeddings": True})
    params = init_params(config, jax.random.key(3))
    same(stack_layers(params), init_params(config, jax.random.key(3), stacked=True))
    assert sum(x.size for x in jax.tree.leaves(params)) == count_parameters(config)
    assert float(params["embed"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(params["layers"][1]["q_bias"].max()) == 0.0
    assert float(params["norm"].min()) == 1.0
    assert not np.array_equal(params["layers"][0]["q"], params["layers"][1]["q"])
    assert not np.array_equal(params["layers"][0]["k"], params["layers"][0]["v"])


def test_random_parameters_have_the_shapes_of_the_parameter_tree():
    for model_type in ("qwen2", "qwen3", "llama", "mistral"):
        config = from_hf(TINY | {"model_type": model_type})
        for stacked in (False, True):
            shapes = jax.eval_shape(
                lambda k, c=config, s=stacked: init_params(c, k, "bfloat16", stacked=s), jax.random.key(0)
            )
            specs = parameter_tree(config, stacked=stacked)
            assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda s: s.shape, specs)
            assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype("bfloat16")}


def test_a_directory_becomes_a_model_without_a_tokenizer_where_it_has_none(tmp_path):
    config, params = saved(tmp_path / "model")
    model = load_model(tmp_path / "model", dtype="bfloat16")
    assert (model.config, model.tokenizer, model.path) == (config, None, tmp_path / "model")
    assert {x.dtype for x in jax.tree.leaves(model.params)} == {jnp.dtype("bfloat16")}
    same(load_model(tmp_path / "model", stacked=True).params, stack_layers(params))


def test_a_model_loads_to_the_shardings_made_of_its_parameter_tree(tmp_path):
    saved(tmp_path / "model")
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    model = load_model(tmp_path / "model", shardings=lambda tree: jax.tree.map(lambda spec: here, tree))
    same(model.params, load_model(tmp_path / "model").params)


def test_bad_models_are_refused_in_one_line(tmp_path):
    saved(tmp_path / "model")
    for dtype in ("int32", "half-ish"):
        with pytest.raises(RememError, match=f"unsupported dtype {dtype}: expected float32, bfloat16, float16"):
            load_model(tmp_path / "model", dtype=dtype)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RememError, match=r"no weights in .*empty"):
        load_model(tmp_path / "empty")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "empty" / name).write_bytes(b"GGUF")
    with pytest.raises(RememError, match=r"expected one .gguf file in .*empty, found 2: name one of them, as .*a.gguf"):
        load_model(tmp_path / "empty")
    hf = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(hf | {"model_type": "gpt2"}))
    with pytest.raises(RememError, match="unsupported architecture gpt2: supported are qwen2"):
        load_model(tmp_path / "model")


def test_a_checkpoint_of_half_precision_loads_in_float32_exactly(tmp_path):
    config, params = saved(tmp_path / "model", "mistral")
    for dtype in ("bfloat16", "float16"):
        save_model(tmp_path / dtype, config, params, dtype=dtype)
        loaded = load_params(open_safetensors(tmp_path / dtype), config, "float32")
        same(loaded, jax.tree.map(lambda x, d=dtype: x.astype(d).astype("float32"), params))
