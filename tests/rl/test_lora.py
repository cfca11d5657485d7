"""Adapters against the dense merge: same numbers, same gradients, an untouched base, and weights that can be exported.

Axes: `L` layers, `r` rank, `I` inputs and `O` outputs of a weight.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from remem_jax.errors import RememError
from remem_jax.mesh import partition_spec
from remem_jax.model.config import parameter_specs
from remem_jax.rl import lora
from remem_jax.rl.rows import Group, Reply, TrainRows, pack_rows
from remem_jax.rl.step import Objective, Optimizer, accumulate, apply, init_state, logprobs, reply_logprobs, zeros_like
from remem_jax.testing import tiny_model

RANK, SCALE = 3, 2.0
OBJECTIVE = Objective(kind="sft", temperature=0.7)


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=5, family="qwen2", stacked=True)


@pytest.fixture(scope="module")
def batch() -> TrainRows:
    rng = np.random.default_rng(0)

    def reply(suffix: int, length: int) -> Reply:
        weights = rng.uniform(0.1, 1, length).astype(np.float32)
        return Reply(rng.integers(0, 256, suffix), rng.integers(0, 256, length), weights)

    return pack_rows([Group(rng.integers(0, 256, 20), tuple(reply(4, 5) for _ in range(3)))])


@pytest.fixture(scope="module")
def adapters(model):
    """Adapters of every target as they are after some training: `b` is not zero."""
    rng = np.random.default_rng(1)
    fresh = lora.init(model.config, 0, RANK)
    return jax.tree.map(lambda x: x + jnp.asarray(0.1 * rng.normal(size=x.shape).astype(np.float32)), fresh)


def score(model, params, batch, frozen):
    return logprobs(params, batch, config=model.config, temperature=0.7, frozen=frozen, lora_scale=SCALE)


def by_hand(w, a, b):
    """`w + scale * b a` of every layer, in NumPy's float64."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.asarray(w, np.float64) + SCALE * np.stack([y @ x for x, y in zip(a, b, strict=True)])


def dense(base, adapters):
    """The base with every product written out; differentiable, and knows nothing of `lora.merge`."""
    new = dict(base["layers"])
    for name in lora.TARGETS:
        a, b = adapters["layers"][f"{name}_lora_a"], adapters["layers"][f"{name}_lora_b"]
        new[name] = new[name] + SCALE * jnp.einsum("lor,lri->loi", b, a, precision="highest")
    return base | {"layers": new}


def test_fresh_adapters_change_nothing_and_their_a_has_deviation_one_over_the_root_of_the_inputs(model, batch):
    fresh = lora.init(model.config, 7, RANK)
    found, wanted = score(model, fresh, batch, model.params), score(model, None, batch, model.params)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(wanted, score(model, model.params, batch, None), rtol=0, atol=0)
    assert not any(value.any() for name, value in fresh["layers"].items() if name.endswith("_b"))
    big = lora.init(tiny_model(hidden_size=64, num_layers=8).config, 7, 32, ("q",))["layers"]["q_lora_a"]
    assert big.shape == (8, 32, 64) and big.dtype == jnp.float32
    assert float(big.std()) == pytest.approx(1 / 8, rel=0.03)  # 16,384 numbers


def test_a_seed_gives_each_target_its_own_numbers_whatever_the_others(model):
    alone = lora.init(model.config, 1, RANK, ("gate",))["layers"]
    more = lora.init(model.config, jax.random.key(1), RANK, ("up", "gate"))["layers"]
    np.testing.assert_array_equal(alone["gate_lora_a"], more["gate_lora_a"])
    assert (more["up_lora_a"] != more["gate_lora_a"]).all()
    assert (lora.init(model.config, 2, RANK, ("gate",))["layers"]["gate_lora_a"] != alone["gate_lora_a"]).all()


def test_a_merged_forward_equals_the_adapters_forward(model, batch, adapters):
    before = jax.tree.map(np.array, model.params)
    merged = lora.merge(model.params, adapters, SCALE)
    for name in parameter_specs(model.config):
        if name[-1] in lora.TARGETS:
            a, b = (adapters["layers"][f"{name[-1]}_lora_{side}"] for side in "ab")
            wanted = by_hand(before["layers"][name[-1]], a, b)
            np.testing.assert_allclose(merged["layers"][name[-1]], wanted, rtol=0, atol=1e-6)
    found = score(model, adapters, batch, model.params)
    assert np.abs(found - score(model, None, batch, model.params)).max() > 0.1
    live = batch.weights > 0
    np.testing.assert_allclose(found[live], score(model, None, batch, merged)[live], rtol=0, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, before, model.params)


def test_layers_in_a_tuple_merge_as_stacked_ones_do_and_keep_their_dtype(model, adapters):
    layers = tuple(
        {name: value[i].astype(jnp.bfloat16) for name, value in model.params["layers"].items()}
        for i in range(model.config.num_layers)
    )
    low = {name: value[-1:] for name, value in adapters["layers"].items()}
    merged = lora.merge(model.params | {"layers": layers}, adapters, SCALE)["layers"][-1]
    assert all(value.dtype == jnp.bfloat16 for value in merged.values())
    wanted = by_hand(layers[-1]["down"][None].astype(jnp.float32), low["down_lora_a"], low["down_lora_b"])[0]
    np.testing.assert_allclose(merged["down"].astype(jnp.float32), wanted, rtol=2**-8)
    np.testing.assert_array_equal(merged["mlp_norm"].astype(jnp.float32), layers[-1]["mlp_norm"].astype(jnp.float32))


def gradient(model, batch, adapters, frozen, dtype="float32"):
    gradients, (total, _), _ = accumulate(
        zeros_like(adapters),
        adapters,
        batch,
        config=model.config,
        objective=OBJECTIVE,
        dtype=dtype,
        frozen=frozen,
        lora_scale=SCALE,
    )
    return gradients, float(total)


@pytest.fixture(scope="module")
def found(model, batch, adapters):
    return gradient(model, batch, adapters, model.params)


def test_the_gradient_is_that_of_the_dense_merge_and_only_adapters_have_one(model, batch, adapters, found):
    @jax.jit
    @jax.value_and_grad
    def loss(adapters):
        logp = reply_logprobs(dense(model.params, adapters), model.config, batch, temperature=0.7)
        return -jnp.sum(batch.weights * logp)

    value, wanted = loss(adapters)
    gradients, total = found
    assert total == pytest.approx(float(value), rel=1e-5)
    assert jax.tree.structure(gradients) == jax.tree.structure(adapters)
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(wanted), strict=True):
        scale = float(jnp.abs(other).max())
        assert float(jnp.abs(one - other).max()) <= 1e-5 * scale, jax.tree_util.keystr(path)


def test_a_bfloat16_base_gives_float32_gradients_that_point_the_same_way(model, batch, adapters, found):
    frozen = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model.params)
    gradients, total = gradient(model, batch, adapters, frozen, dtype="bfloat16")
    assert total == pytest.approx(found[1], rel=0.02)
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(found[0]), strict=True
    ):
        assert one.dtype == jnp.float32
        cosine = jnp.vdot(one, other) / jnp.linalg.norm(one.ravel()) / jnp.linalg.norm(other.ravel())
        assert float(cosine) > 0.99, jax.tree_util.keystr(path)


def test_an_update_moves_adapters_alone_and_starts_with_b(model):
    fresh = lora.init(model.config, 0, RANK, ("q", "down"))
    state = init_state(fresh, Optimizer(weight_decay=0.0))
    gradients = {"layers": {name: jnp.full(x.shape, float("b" in name)) for name, x in fresh["layers"].items()}}
    state, _ = apply(state, gradients, jnp.float32(1), jnp.float32(0.1), optimizer=Optimizer(weight_decay=0.0))
    np.testing.assert_allclose(state.params["layers"]["q_lora_b"], -0.1, rtol=1e-3)
    np.testing.assert_array_equal(state.params["layers"]["q_lora_a"], fresh["layers"]["q_lora_a"])


def test_training_computes_no_merged_weight_and_no_gradient_of_the_base(batch):
    wide = tiny_model(family="qwen2", stacked=True, intermediate_size=72)  # 72 x 32 is the shape of gate and up alone
    own = lora.init(wide.config, 0, RANK)

    def computed(params, frozen) -> int:
        """Operations of the program before compilation whose result is a whole gate or up, of one layer or of all."""
        lowered = accumulate.lower(
            zeros_like(params), params, batch, config=wide.config, objective=OBJECTIVE, frozen=frozen
        )
        operation = r"stablehlo\.(dot_general|add|multiply|dynamic_update_slice) .*tensor<(2x)?72x32xf32>$"
        return len(re.findall(operation, lowered.as_text(), re.MULTILINE))

    assert computed(wide.params, None) >= 4  # what is looked for is there when the base itself is trained
    assert computed(own, wide.params) == 0


def test_adapters_are_counted_and_sharded_like_the_sides_of_their_weight(model):
    specs = lora.adapter_specs(model.config, RANK, ("k", "down"))["layers"]
    assert {name: spec.shape for name, spec in specs.items()} == {
        "k_lora_a": (2, 3, 32),
        "k_lora_b": (2, 16, 3),
        "down_lora_a": (2, 3, 48),
        "down_lora_b": (2, 32, 3),
    }
    assert partition_spec(specs["k_lora_a"].axes) == PartitionSpec(None, None, ("fsdp",))
    assert partition_spec(specs["k_lora_b"].axes) == PartitionSpec(None, ("tensor",), None)
    assert partition_spec(specs["down_lora_a"].axes) == PartitionSpec(None, None, ("tensor",))
    assert specs["k_lora_a"].hf_name == "model.layers.{layer}.self_attn.k_proj.lora_A.weight"
    count = lora.count_adapter_parameters(model.config, RANK, ("k", "down"))
    assert count == 2 * 3 * (32 + 16 + 48 + 32)
    fresh = lora.init(model.config, 0, RANK, ("k", "down"))
    assert count == sum(math.prod(x.shape) for x in jax.tree.leaves(fresh))


@pytest.mark.parametrize(
    ("rank", "targets", "message"),
    [
        (4, ("q", "gat"), r"gat is not a weight that takes an adapter; did you mean gate\?"),
        (4, ("q", "q"), "expected every name once, found q twice"),
        (4, (), "expected at least one of q, k, v"),
        (0, ("q",), "expected 1 to 32 for q"),
        (17, ("q", "k"), r"expected 1 to 16 for k \(16 x 32\), found 17"),
    ],
)
def test_unknown_targets_and_ranks_that_do_not_fit_are_refused(model, rank, targets, message):
    with pytest.raises(RememError, match=message):
        lora.init(model.config, 0, rank, targets)
