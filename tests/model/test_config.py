"""Hugging Face configurations in and out, what is refused, rotary frequencies by hand, and the list of parameters."""

import dataclasses
import math

import numpy as np
import pytest

from remem_jax.errors import RememError
from remem_jax.model.config import count_parameters, from_hf, parameter_specs, parameter_tree, rope_frequencies, to_hf
from remem_jax.model.rope import RopeScaling

SMALL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1000,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

OLDER_LLAMA3 = {k: v for k, v in LLAMA3.items() if k != "rope_type"} | {"type": "llama3"}


def small(model_type: str | None = "llama", **more):
    return from_hf(SMALL | {"model_type": model_type} | more)


@pytest.mark.parametrize(
    ("model_type", "qkv_bias", "qk_norm", "head_dim"),
    [
        ("qwen2", True, False, 16),
        ("qwen3", False, True, 128),
        ("llama", False, False, 16),
        ("mistral", False, False, 16),
    ],
)
def test_each_family_sets_its_own_switches(model_type, qkv_bias, qk_norm, head_dim):
    config = small(model_type)
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (qkv_bias, False, qk_norm)
    assert (config.head_dim, config.rms_norm_eps, config.rope_theta) == (head_dim, 1e-6, 10000.0)
    assert not config.tie_embeddings


def test_attention_bias_covers_the_output_projection_where_the_family_has_it():
    assert (small("llama", attention_bias=True).qkv_bias, small("llama", attention_bias=True).o_bias) == (True, True)
    assert (small("qwen2", attention_bias=True).qkv_bias, small("qwen2", attention_bias=True).o_bias) == (True, False)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
        {
            "rope_theta": 500000.0,
            "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_type"} | {"type": "llama3"},
        },
        {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
    ],
    ids=["transformers 4", "older transformers 4", "transformers 5"],
)
def test_rotary_settings_of_every_transformers_form_are_the_same(rope):
    config = small("llama", **rope)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)
    assert config.max_positions == 1000


def test_default_rotary_settings_are_no_scaling():
    assert small(rope_parameters={"rope_theta": 7.0, "rope_type": "default"}).rope_scaling is None
    assert small(rope_theta=7.0, rope_scaling=None).rope_theta == 7.0


def test_yarn_added_to_a_configuration_stretches_its_context():
    config = small("qwen2", rope_scaling={"type": "yarn", "factor": 4.0})
    assert config.rope_scaling == RopeScaling("yarn", 4.0, 1000)
    assert config.max_positions == 4000
    stretched_already = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}
    assert small("qwen2", rope_scaling=stretched_already).max_positions == 1000


def test_linear_scaling_divides_every_frequency():
    # head size 16, theta 10000: frequencies 10000^(-i/8) = 1, 0.316.., 0.1, ...
    inv_freq, scale = rope_frequencies(small(rope_scaling={"rope_type": "linear", "factor": 2.0}))
    np.testing.assert_allclose(inv_freq[:3], [0.5, 0.5 * 10**-0.5, 0.05], rtol=1e-6)
    assert (inv_freq.dtype, inv_freq.shape, scale) == (np.float32, (8,), 1.0)


def test_llama3_scaling_keeps_fast_frequencies_divides_slow_ones_and_blends_between():
    # head size 4, theta 10000: frequencies 1 and 0.01. With original 1000, 0.01 turns 1000 * 0.01 / 2 pi = 1.5915
    # times: between 1 and 4, so (1.5915 - 1) / 3 = 0.19718 of it is kept and the rest divided by 8.
    sizes: dict = {
        "hidden_size": 16,
        "head_dim": 4,
        "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 1000},
    }
    inv_freq, _ = rope_frequencies(small("llama", **sizes))
    keep = (1000 * 0.01 / (2 * math.pi) - 1) / 3
    np.testing.assert_allclose(inv_freq, [1.0, 0.01 * (keep + (1 - keep) / 8)], rtol=1e-5)
    slow = sizes | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 500}}
    np.testing.assert_allclose(rope_frequencies(small("llama", **slow))[0], [1.0, 0.01 / 8], rtol=1e-5)


def test_yarn_keeps_fast_frequencies_divides_slow_ones_and_ramps_between():
    # head size 16, theta 10000, original 1000: dimension of n turns = 16 ln(1000 / 2 pi n) / (2 ln 10000):
    # 32 turns -> 1.3935 (floor 1), 1 turn -> 4.4036 (ceil 5). Kept: 1 up to dimension 1, then 3/4, 2/4, 1/4, 0.
    inv_freq, scale = rope_frequencies(small("qwen2", rope_scaling={"type": "yarn", "factor": 4.0}))
    kept = np.array([1, 1, 0.75, 0.5, 0.25, 0, 0, 0])
    np.testing.assert_allclose(inv_freq, 10000.0 ** (-np.arange(8) / 8) * (kept + (1 - kept) / 4), rtol=1e-5)
    assert scale == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_attention_factor_can_be_given_or_follow_from_two_mscales():
    yarn = {"type": "yarn", "factor": 4.0}
    assert rope_frequencies(small("qwen2", rope_scaling=yarn | {"attention_factor": 1.5}))[1] == 1.5
    both = small("qwen2", rope_scaling=yarn | {"mscale": 2.0, "mscale_all_dim": 1.0})
    assert rope_frequencies(both)[1] == pytest.approx((0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1))


def test_an_active_sliding_window_limits_the_context():
    assert small("mistral", sliding_window=300).max_positions == 300
    assert small("mistral", sliding_window=None).max_positions == 1000
    assert small("mistral", sliding_window=4096).max_positions == 1000
    assert small("llama", sliding_window=300).max_positions == 1000
    qwen = {"sliding_window": 300, "use_sliding_window": True}
    assert small("qwen2", **qwen, max_window_layers=1).max_positions == 300
    assert small("qwen2", **qwen, max_window_layers=2).max_positions == 1000
    assert small("qwen2", **qwen, max_window_layers=1, layer_types=["full_attention"] * 2).max_positions == 1000
    assert small("qwen2", sliding_window=300, use_sliding_window=False).max_positions == 1000


@pytest.mark.parametrize(
    "config",
    [
        small("qwen2", tie_word_embeddings=True, eos_token_id=[3, 4], rope_scaling={"type": "yarn", "factor": 4.0}),
        small("qwen2", use_sliding_window=True, sliding_window=300, max_window_layers=0),
        small("qwen3", rope_theta=1e6, eos_token_id=7),
        small("llama", rope_scaling=LLAMA3, attention_bias=True),
        small("llama", rope_scaling={"type": "linear", "factor": 2.5}, rms_norm_eps=1e-5),
        small("mistral", sliding_window=300),
        small("mistral", sliding_window=None, head_dim=32),
    ],
)
def test_a_configuration_written_and_read_is_the_same(config):
    assert from_hf(to_hf(config)) == config
    assert hash(from_hf(to_hf(config))) == hash(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "unsupported architecture gemma2: supported are qwen2"),
        ({"model_type": None, "architectures": ["BertModel"]}, "unsupported architecture BertModel"),
        ({"model_type": "qwen3_moe"}, "unsupported architecture qwen3_moe"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"mlp_bias": True}, "biases in the feed-forward layers"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised weights"),
        ({"hidden_act": "gelu"}, "unsupported activation gelu"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rotary scaling dynamic: supported are default",
        ),
        ({"rope_scaling": {"type": "linear"}}, "expected a factor, found none"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, found 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ by layer: full_attention"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key/value heads evenly"),
        ({"num_attention_heads": 5}, "hidden_size 64 does not divide into 5 attention heads"),
        ({"head_dim": 15}, "head_dim must be even for rotary positions, found 15"),
        ({"vocab_size": None}, "expected a whole number for vocab_size, found None"),
        ({"num_hidden_layers": 0}, "num_layers must be at least 1, found 0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_in_one_line(change, message):
    with pytest.raises(RememError) as error:
        small(**change)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_switch_that_a_family_lacks_has_no_hugging_face_form():
    with pytest.raises(RememError, match="a mistral model with qkv_bias=True"):
        to_hf(dataclasses.replace(small("mistral"), qkv_bias=True))


def test_the_number_of_parameters_is_that_of_the_published_models():
    smollm2 = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
    smollm2 |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    assert count_parameters(from_hf(smollm2 | {"tie_word_embeddings": True})) == 134_515_008
    qwen = {"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944}
    qwen |= {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    assert count_parameters(from_hf(qwen)) == 7_615_616_512


def test_every_parameter_has_a_shape_an_axis_for_each_dimension_and_a_name():
    config = small("qwen3", head_dim=8)
    specs = parameter_specs(config)
    assert specs["layers", "q"].shape == (32, 64)
    assert specs["layers", "k"].shape == (16, 64)
    assert specs["layers", "o"].axes == ("embed", "heads")
    assert specs["layers", "q_norm"].shape == (8,)
    assert specs["head",].hf_name == "lm_head.weight"
    assert all(len(spec.shape) == len(spec.axes) for spec in specs.values())
    assert ("head",) not in parameter_specs(small("qwen3", tie_word_embeddings=True))


def test_the_stacked_tree_has_a_layer_axis_and_the_other_a_full_name():
    config = small("llama")
    stacked, unstacked = parameter_tree(config, stacked=True), parameter_tree(config)
    assert stacked["layers"]["down"].shape == (2, 64, 96)
    assert stacked["layers"]["down"].axes == ("layers", "embed", "ff")
    assert unstacked["layers"][1]["down"].hf_name == "model.layers.1.mlp.down_proj.weight"
    assert unstacked["norm"] == stacked["norm"]
