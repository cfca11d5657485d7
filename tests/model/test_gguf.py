"""GGUF files made here byte by byte: configuration, names, row order of q and k, parts of tensors, damage named."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remem_jax.errors import RememError
from remem_jax.model.gguf import read_gguf, read_metadata
from remem_jax.tokenizer import load_tokenizer
from tests.tokenizer_fixtures import finish

HEADS, KV_HEADS, SIZE, HIDDEN, INNER, VOCABULARY = 2, 1, 4, 8, 32, 5
Q = "model.layers.0.self_attn.q_proj.weight"
K = "model.layers.0.self_attn.k_proj.weight"


def rows(count, width=HIDDEN):
    """A matrix whose row r holds r + column / 100, so that a row shows where it came from."""
    return (np.arange(count)[:, None] + np.arange(width) / 100).astype(np.float32)


def write(path, architecture="llama", tensors=(), **metadata):
    """A one-layer model of size 8 with 2 heads of 4; `tensors` and `metadata` are added."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for key, value in metadata.items():
        key = key.replace("__", ".").replace("arch.", f"{architecture}.")
        kinds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        kinds[type(value)](key, value)
    given = {
        "token_embd.weight": rows(VOCABULARY),
        "blk.0.attn_q.weight": rows(HEADS * SIZE),
        "blk.0.attn_k.weight": rows(KV_HEADS * SIZE),
        "blk.0.ffn_down.weight": rows(HIDDEN, INNER),
        "output_norm.weight": np.ones(HIDDEN, np.float32),
        **dict(tensors),
    }
    for name, value in given.items():
        writer.add_tensor(name, value)
    finish(writer)
    return path


def message(path):
    with pytest.raises(RememError) as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_configuration_speaks_of_the_model_as_hugging_face_does(tmp_path):
    path = write(tmp_path / "m.gguf", tokenizer__ggml__eos_token_id=3, tokenizer__ggml__bos_token_id=2)
    assert read_gguf(path).config() == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 5,
        "hidden_size": 8,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": [3],
    }


def test_an_output_tensor_unties_the_embeddings_and_a_key_length_sets_the_head_size(tmp_path):
    path = write(tmp_path / "m.gguf", "qwen3", {"output.weight": rows(5)}, arch__attention__key_length=16)
    config = read_gguf(path).config()
    assert (config["model_type"], config["head_dim"], config["tie_word_embeddings"]) == ("qwen3", 16, False)


def test_names_are_those_of_hugging_face_and_foreign_tensors_keep_theirs(tmp_path):
    vectors = ["blk.0.attn_q_norm.weight", "blk.0.attn_k.bias", "blk.0.sinks.weight"]
    tensors = {name: rows(1)[0] for name in vectors} | {"output.weight": rows(5)}
    file = read_gguf(write(tmp_path / "m.gguf", "qwen2", tensors))
    assert sorted(file.names()) == [
        "blk.0.sinks.weight",
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.self_attn.k_proj.bias",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.norm.weight",
    ]
    assert file.shape("model.layers.0.mlp.down_proj.weight") == (8, 32)


def test_q_and_k_rows_of_llama_are_put_back_into_two_halves(tmp_path):
    bias = np.arange(8, dtype=np.float32)
    file = read_gguf(write(tmp_path / "m.gguf", tensors={"blk.0.attn_q.bias": bias}))
    # A head of 4 is stored as rows (0 of half 0, 0 of half 1, 1 of half 0, 1 of half 1).
    expected = [0, 2, 1, 3, 4, 6, 5, 7]
    np.testing.assert_array_equal(file.tensor(Q), rows(8)[expected])
    np.testing.assert_array_equal(file.tensor(K), rows(4)[[0, 2, 1, 3]])
    np.testing.assert_array_equal(file.tensor("model.layers.0.self_attn.q_proj.bias"), bias[expected])
    np.testing.assert_array_equal(file.tensor("model.layers.0.mlp.down_proj.weight"), rows(8, 32))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_q_and_k_rows_of_qwen_stay_as_they_are(tmp_path, architecture):
    file = read_gguf(write(tmp_path / "m.gguf", architecture))
    np.testing.assert_array_equal(file.tensor(Q), rows(8))
    np.testing.assert_array_equal(file.tensor(K), rows(4))


def test_a_part_of_a_tensor_equals_that_part_of_the_whole(tmp_path):
    file = read_gguf(write(tmp_path / "m.gguf"))
    for name in (Q, "model.layers.0.mlp.down_proj.weight"):
        whole = file.tensor(name)
        every = slice(None)
        for index in [(slice(2, 5),), (every, slice(1, 3)), (slice(6, 8), slice(0, 4)), (every, every)]:
            np.testing.assert_array_equal(file.tensor(name, index), whole[index])
    np.testing.assert_array_equal(file.tensor("model.norm.weight", (slice(1, 3),)), [1.0, 1.0])


def test_quantised_blocks_become_float32_row_by_row(tmp_path):
    values = rows(8, 32)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, kind in [("attn_q", "Q8_0"), ("ffn_up", "BF16"), ("ffn_gate", "F16")]:
        kind = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"blk.0.{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_uint32("llama.attention.head_count", 2)
    finish(writer)
    file = read_gguf(path)
    orders = {"self_attn.q_proj": [0, 2, 1, 3, 4, 6, 5, 7], "mlp.up_proj": range(8), "mlp.gate_proj": range(8)}
    for name, order in orders.items():
        found = file.tensor(f"model.layers.0.{name}.weight")
        assert (found.dtype, found.shape) == (np.float32, (8, 32))
        np.testing.assert_allclose(found, values[list(order)], atol=0.04)
    np.testing.assert_array_equal(file.tensor(Q, (slice(3, 5),)), file.tensor(Q)[3:5])


def test_rope_scaling_is_read_from_the_metadata(tmp_path):
    def scaling(**entries):
        metadata = {f"arch__rope__scaling__{name}": value for name, value in entries.items()}
        return read_gguf(write(tmp_path / "m.gguf", "qwen2", **metadata)).config()["rope_scaling"]

    yarn = scaling(type="yarn", factor=4.0, original_context_length=32)
    assert yarn == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert scaling(type="linear", factor=2.0) == {"rope_type": "linear", "factor": 2.0}
    assert scaling(type="none") is None
    with pytest.raises(RememError, match="scales RoPE by longrope: supported are"):
        scaling(type="longrope", factor=2.0)


def test_frequency_divisors_of_llama_3_become_its_rule_and_others_are_refused(tmp_path):
    # h = 4 and theta 10000 give wavelengths 6.3 (under 8192/4: divisor 1) and 628.3 (likewise 1); with theta 1e9 the
    # second is 198,692, over 8192/1, so it is divided by the whole factor.
    def scaling(theta, divisors):
        path = write(
            tmp_path / "m.gguf",
            tensors={"rope_freqs.weight": np.array(divisors, np.float32)},
            arch__rope__freq_base=theta,
        )
        assert "rope_freqs.weight" not in read_gguf(path).names()
        return read_gguf(path).config()["rope_scaling"]

    assert scaling(1e9, [1.0, 8.0]) == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    with pytest.raises(RememError, match="rope_freqs that are not Llama 3's rule"):
        scaling(1e9, [2.0, 8.0])


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"arch__expert_count": 8}, "mixture of 8 experts"),
        ({"arch__rope__dimension_count": 2}, "rotates 2 of 4 key numbers"),
        ({"arch__attention__head_count_kv": [1, 2]}, "for each layer"),
    ],
)
def test_models_that_cannot_be_expressed_are_refused_by_what_they_are(tmp_path, entries, expected):
    with pytest.raises(RememError, match=expected):
        read_gguf(write(tmp_path / "m.gguf", **entries)).config()


def test_an_unsupported_architecture_is_named_with_the_supported_ones(tmp_path):
    path = write(tmp_path / "m.gguf", "gemma3")
    assert "the architecture gemma3: supported in GGUF are llama, qwen2, qwen3" in message(path)


def test_one_part_of_several_is_refused(tmp_path):
    assert "is one of 3 parts" in message(write(tmp_path / "m.gguf", split__count=3))


def test_a_file_cut_at_any_byte_is_named_with_its_size(tmp_path):
    whole = write(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(4, len(whole) - 64, 7), len(whole) - 40]:
        path.write_bytes(whole[:size])
        assert f"cut short or damaged: the file has {size} bytes" in message(path)


def test_garbage_is_refused_by_what_was_found(tmp_path):
    path = tmp_path / "bad.gguf"
    for content, expected in [
        (b"", "expected it to start with b'GGUF', found b''"),
        (b"PK\x03\x04 zip", "found b'PK\\x03\\x04'"),
        (struct.pack("<4sI", b"GGUF", 1), "is GGUF version 1: expected version 2 or 3"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 1 << 60) + b"\xff" * 100, "cut short or damaged"),
        (struct.pack("<4sIQQQ2sI", b"GGUF", 3, 0, 1, 2, b"ab", 99), "unknown value type 99 at byte 38"),
        (struct.pack("<4sIQQQ2s", b"GGUF", 3, 0, 1, 2, b"\xff\xff"), "the text at byte 24 is not UTF-8"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "lacks the metadata entry general.architecture"),
    ]:
        path.write_bytes(content)
        assert expected in message(path)
    with pytest.raises(RememError, match="No such file"):
        read_gguf(tmp_path / "absent.gguf")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "m.gguf"
    return write(path, tokenizer__ggml__eos_token_id=3, arch__rope__scaling__factor=2.0).read_bytes()


@given(place=st.integers(0, 1500), value=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused_in_one_line(small_file, tmp_path_factory, place, value):
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(small_file[:place] + bytes([value]) + small_file[place + 1 :])
    try:
        file = read_gguf(path)
        file.config()
        assert all(file.tensor(name).shape == file.shape(name) for name in file.names())
    except RememError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)


def test_a_tensor_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RememError, match=r"holds no tensor lm_head\.weight"):
        read_gguf(write(tmp_path / "m.gguf")).tensor("lm_head.weight")


def test_a_configuration_lacking_a_number_names_it(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", rows(5))
    finish(writer)
    with pytest.raises(RememError, match=r"lacks the metadata entry llama\.attention\.head_count"):
        read_gguf(tmp_path / "m.gguf").config()


def test_a_tokenizer_of_an_unknown_kind_is_named(tmp_path):
    path = tmp_path / "m.gguf"
    for entries, expected in [
        ({"tokenizer__ggml__model": "bert"}, "tokenizer of kind bert: supported in GGUF are gpt2"),
        ({"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "viking"}, "splits words as viking: supported"),
        ({"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "qwen2"}, r"lacks tokenizer\.ggml\.tokens"),
        ({"tokenizer__ggml__model": "llama"}, r"lacks the metadata entry tokenizer\.ggml\.tokens"),
    ]:
        with pytest.raises(RememError, match=expected):
            load_tokenizer(write(path, **entries))


def test_smollm2_is_read_as_it_was_published(smollm2_path):
    file = read_gguf(smollm2_path)
    config = file.config()
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (576, 30, 49152)
    assert (config["rope_theta"], config["rms_norm_eps"], config["eos_token_id"]) == (100000.0, 1e-5, [2, 0])
    assert len(file.names()) == 272
    values = file.tensor(K)
    assert values.shape == (192, 576)
    assert 0.0 < np.abs(values).mean() < 1.0
    assert read_metadata(smollm2_path)["general.license"] == "apache-2.0"
