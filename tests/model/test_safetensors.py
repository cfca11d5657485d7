"""Checkpoint directories: what is written is read back byte for byte, in part or whole, or refused in one line."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from remem_jax.errors import RememError
from remem_jax.model.config import from_hf, parameter_tree
from remem_jax.model.load import load_params, stack_layers
from remem_jax.model.safetensors import INDEX, SINGLE, open_safetensors, save_model

TINY = {
    "model_type": "qwen2",
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": 3,
}
CONFIG = from_hf(TINY)


def random_params(dtype="float32"):
    """Parameters that all differ."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda spec: jnp.asarray(rng.normal(size=spec.shape).astype(dtype)), parameter_tree(CONFIG))


@pytest.fixture(scope="module")
def params():
    return random_params()


def write(path, tensors, config=TINY):
    """A single-file checkpoint made by the safetensors package."""
    path.mkdir(exist_ok=True)
    save_file(tensors, path / SINGLE, metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return open_safetensors(path)


def same(a, b):
    """Both trees hold the same bytes."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape, np.asarray(x).tobytes()) == (y.dtype, y.shape, np.asarray(y).tobytes())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_saved_and_loaded_parameters_are_equal_byte_for_byte(tmp_path, dtype):
    params = random_params(dtype)
    save_model(tmp_path / "model", CONFIG, params)
    same(load_params(open_safetensors(tmp_path / "model"), CONFIG, dtype), params)


def test_the_written_file_is_one_that_the_safetensors_package_reads(tmp_path, params):
    save_model(tmp_path / "model", CONFIG, params)
    tensors = load_file(tmp_path / "model" / SINGLE)
    assert set(tensors) == {spec.hf_name for spec in jax.tree.leaves(parameter_tree(CONFIG))}
    np.testing.assert_array_equal(tensors["model.layers.1.self_attn.k_proj.bias"], params["layers"][1]["k_bias"])
    np.testing.assert_array_equal(tensors["lm_head.weight"], params["head"])


def test_stacked_and_unstacked_parameters_write_the_same_file(tmp_path, params):
    save_model(tmp_path / "a", CONFIG, params)
    save_model(tmp_path / "b", CONFIG, stack_layers(params))
    assert (tmp_path / "a" / SINGLE).read_bytes() == (tmp_path / "b" / SINGLE).read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")])
def test_a_dtype_asked_for_is_written_and_named_in_the_configuration(tmp_path, params, dtype):
    save_model(tmp_path / "model", CONFIG, params, dtype=dtype)
    source = open_safetensors(tmp_path / "model")
    assert source.tensor("model.norm.weight").dtype == ml_dtypes.bfloat16
    assert source.config()["torch_dtype"] == "bfloat16"
    same(load_params(source, CONFIG, "bfloat16"), jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))


def test_an_integer_dtype_is_refused(tmp_path, params):
    with pytest.raises(RememError, match="unsupported dtype int8: expected float32, bfloat16, float16"):
        save_model(tmp_path / "model", CONFIG, params, dtype="int8")
    assert list(tmp_path.iterdir()) == []


def test_shards_hold_no_more_than_asked_and_their_index_names_them(tmp_path, params):
    # Embedding and head are 20 * 8 * 4 = 640 bytes each, the next largest 12 * 8 * 4 = 384.
    save_model(tmp_path / "model", CONFIG, params, max_shard_bytes=700)
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    sizes = [sum(x.nbytes for x in load_file(tmp_path / "model" / shard).values()) for shard in shards]
    assert max(sizes) <= 700
    assert sum(sizes) == index["metadata"]["total_size"] == sum(x.nbytes for x in jax.tree.leaves(params))
    same(load_params(open_safetensors(tmp_path / "model"), CONFIG, "float32"), params)


def test_a_part_of_a_tensor_is_that_part_of_the_whole(tmp_path, params):
    save_model(tmp_path / "model", CONFIG, params, dtype="bfloat16")
    source = open_safetensors(tmp_path / "model")
    name = "model.embed_tokens.weight"
    whole = source.tensor(name)
    assert source.shape(name) == whole.shape == (20, 8)
    for index in [(slice(5, 10), slice(None)), (slice(None), slice(2, 4)), (slice(0, 20, None), slice(4, 8, None))]:
        np.testing.assert_array_equal(source.tensor(name, index), whole[index])


def test_end_ids_of_the_generation_configuration_are_added(tmp_path, params):
    extra = {"generation_config.json": b'{"eos_token_id": [3, 5]}', "remem.json": b"{}"}
    save_model(tmp_path / "model", CONFIG, params, extra_files=extra)
    assert from_hf(open_safetensors(tmp_path / "model").config()).eos_ids == (3, 5)
    assert (tmp_path / "model" / "remem.json").read_bytes() == b"{}"


def test_files_are_copied_beside_the_weights(tmp_path, params):
    (tmp_path / "tokenizer.json").write_text("{...}")
    save_model(tmp_path / "model", CONFIG, params, extra_files={"tokenizer.json": tmp_path / "tokenizer.json"})
    assert (tmp_path / "model" / "tokenizer.json").read_text() == "{...}"
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text()) == {"eos_token_id": [3]}


def test_a_failure_while_writing_leaves_nothing(tmp_path, params):
    with pytest.raises(FileNotFoundError):
        save_model(tmp_path / "model", CONFIG, params, extra_files={"tokenizer.json": tmp_path / "none"})
    bad = params | {"norm": jnp.ones((9,))}
    with pytest.raises(ValueError, match=r"model.norm.weight must have the shape \[8\], found \[9\]"):
        save_model(tmp_path / "model", CONFIG, bad)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path, params):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(RememError, match="expected a new or empty directory"):
        save_model(tmp_path / "model", CONFIG, params)
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["notes.txt"]


def test_an_empty_directory_is_filled(tmp_path, params):
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", CONFIG, params)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "generation_config.json", SINGLE]


def test_a_directory_without_weights_is_named_with_what_it_holds(tmp_path):
    with pytest.raises(RememError, match=r"no weights in .*: expected model.safetensors, .*, found none of these"):
        open_safetensors(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(RememError, match=r"found pytorch_model.bin"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("keep", [4, 100, -50])
def test_a_file_cut_short_is_called_corrupt_in_one_line(tmp_path, params, keep):
    save_model(tmp_path / "model", CONFIG, params)
    file = tmp_path / "model" / SINGLE
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(RememError, match=r"corrupt weights file .*model.safetensors") as error:
        open_safetensors(tmp_path / "model")
    assert "\n" not in str(error.value)


def test_a_missing_shard_and_an_index_that_lies_are_named(tmp_path, params):
    save_model(tmp_path / "model", CONFIG, params, max_shard_bytes=2000)
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    lie = {"weight_map": index["weight_map"] | {"ghost.weight": index["weight_map"]["lm_head.weight"]}}
    (tmp_path / "model" / INDEX).write_text(json.dumps(lie))
    with pytest.raises(RememError, match=r"places tensor ghost.weight in model-.*, which does not hold it"):
        open_safetensors(tmp_path / "model")
    (tmp_path / "model" / index["weight_map"]["lm_head.weight"]).unlink()
    with pytest.raises(RememError, match=r"model-0.*safetensors is missing: its index names it"):
        open_safetensors(tmp_path / "model")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not valid JSON"), ("[1]", "must hold a JSON object, found list"), (None, "config.json is missing")],
)
def test_a_bad_configuration_file_is_named(tmp_path, text, message):
    source = write(tmp_path / "model", {"a": np.zeros(2, np.float32)})
    config = tmp_path / "model" / "config.json"
    config.unlink() if text is None else config.write_text(text)
    with pytest.raises(RememError, match=message):
        source.config()
