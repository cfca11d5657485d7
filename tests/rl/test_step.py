"""The update on packed groups against plain JAX on every sequence alone: log-probs, loss and every gradient.

Axes: `N` groups, `G` replies of one. The reference knows nothing of packing, chunks or scans: one forward a sequence,
dense attention, the loss formula written out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.model.packing import plain_rows
from remem_jax.model.transformer import forward, head_logits
from remem_jax.rl.rows import Group, Reply, micro_batches, pack_rows, split_group
from remem_jax.rl.step import Objective, Optimizer, accumulate, apply, init_state, reply_logprobs, zeros_like
from remem_jax.testing import tiny_model

# float32 sums in another order: a gradient leaf may differ by this share of its own largest value.
TOLERANCE = 1e-5
OBJECTIVE = Objective(temperature=0.7, eps_low=0.2, eps_high=0.3, beta=0.1)


def reply(rng, suffix: int, length: int, *, reference: bool = True) -> Reply:
    def values():
        return rng.normal(-5, 0.1, length).astype(np.float32)

    return Reply(
        suffix_ids=rng.integers(0, 256, suffix),
        reply_ids=rng.integers(0, 256, length),
        weights=rng.uniform(0.1, 1, length).astype(np.float32),
        advantage=float(rng.normal()),
        logp_old=values(),
        sampled_logp=values(),
        logp_ref=values() if reference else None,
    )


def group(rng, prefix: int, sizes) -> Group:
    return Group(rng.integers(0, 256, prefix), tuple(reply(rng, *size) for size in sizes))


def ragged_groups() -> list[Group]:
    rng = np.random.default_rng(0)
    return [
        group(rng, 40, [(5, 7), (1, 1), (20, 3), (9, 12)]),
        group(rng, 0, [(30, 5), (2, 9)]),
        group(rng, 13, [(6, 4)] * 3),
    ]


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3, family="qwen2", stacked=True)


def padded(lists, size, dtype) -> np.ndarray:
    rows: np.ndarray = np.zeros((len(lists), size), dtype)
    for row, values in zip(rows, lists, strict=True):
        row[: len(values)] = values
    return rows


def separate(groups):
    """Every reply as a sequence of its own, padded on the right: ids `[B, T]`, lengths, and reply data `[B, R]`."""
    pairs = [(of_group.prefix_ids, one) for of_group in groups for one in of_group.replies]
    ids = [np.concatenate([prefix, one.suffix_ids, one.reply_ids]) for prefix, one in pairs]
    replies = [one for _, one in pairs]
    size = max(len(one.reply_ids) for one in replies)
    data = {
        name: padded([getattr(one, name) for one in replies], size, np.float32)
        for name in ("weights", "logp_old", "sampled_logp", "logp_ref")
    }
    data["advantage"] = np.array([[one.advantage] for one in replies], np.float32)
    lengths = np.array(list(map(len, ids)), np.int32)
    reply_lengths = np.array([len(one.reply_ids) for one in replies], np.int32)
    return padded(ids, max(map(len, ids)), np.int32), lengths, reply_lengths, data


def alone(params, config, ids, lengths, reply_lengths, size, temperature):
    """Log-probabilities `[B, R]` of the replies, every sequence by itself, whole logits."""
    hidden, _ = forward(params, config, plain_rows(jnp.asarray(ids), jnp.asarray(lengths)), backend="dense")
    logits = head_logits(params, hidden.reshape(-1, hidden.shape[-1])).reshape(*ids.shape, -1)
    logp = jax.nn.log_softmax(logits / temperature)
    at = np.minimum((lengths - reply_lengths)[:, None] + np.arange(size), ids.shape[1] - 1)
    rows = np.arange(len(ids))[:, None]
    return logp[rows, at - 1, ids[rows, at]]


def reference_loss(params, config, groups, objective: Objective):
    """The weighted loss sum of METHOD 6, token by token."""
    ids, lengths, reply_lengths, data = separate(groups)
    logp = alone(params, config, ids, lengths, reply_lengths, data["weights"].shape[1], objective.temperature)
    rho = jnp.exp(logp - data["logp_old"])
    clipped = jnp.clip(rho, 1 - objective.eps_low, 1 + objective.eps_high)
    importance = np.minimum(np.exp(data["logp_old"] - data["sampled_logp"]), objective.importance_cap)
    surrogate = jnp.minimum(rho * data["advantage"], clipped * data["advantage"]) * importance
    d = data["logp_ref"] - logp
    loss = -surrogate + objective.beta * (jnp.exp(d) - d - 1)
    return jnp.sum(jnp.where(data["weights"] > 0, data["weights"] * loss, 0.0))


def gradient_of(model, batches, objective=OBJECTIVE):
    gradients, loss = zeros_like(model.params), 0.0
    for batch in batches:
        gradients, (part, _), _ = accumulate(
            gradients, model.params, pack_rows(batch), config=model.config, objective=objective
        )
        loss += float(part)
    return loss, gradients


def assert_same_leaves(found, expected):
    for path, value in jax.tree_util.tree_leaves_with_path(expected):
        other = found
        for key in path:
            other = other[key.key]
        scale = float(jnp.abs(value).max())
        assert float(jnp.abs(other - value).max()) <= TOLERANCE * scale, jax.tree_util.keystr(path)


def reference(model, groups):
    """Loss and gradient of the reference, compiled."""
    return jax.jit(jax.value_and_grad(lambda params: reference_loss(params, model.config, groups, OBJECTIVE)))(
        model.params
    )


@pytest.fixture(scope="module")
def expected(model):
    return reference(model, ragged_groups())


def test_a_packed_update_equals_every_sequence_alone_in_loss_and_every_gradient(model, expected):
    loss, gradients = gradient_of(model, [ragged_groups()])
    assert loss == pytest.approx(float(expected[0]), rel=1e-5)
    assert_same_leaves(gradients, expected[1])


def test_micro_batches_change_nothing(model, expected):
    groups = ragged_groups()
    loss, gradients = gradient_of(model, [groups[:1], groups[1:]])
    assert loss == pytest.approx(float(expected[0]), rel=1e-5)
    assert_same_leaves(gradients, expected[1])


def test_a_group_split_over_rows_that_repeat_its_prefix_changes_nothing(model, expected):
    groups = ragged_groups()
    pieces = split_group(groups[0], 80)
    assert [len(piece.replies) for piece in pieces] == [3, 1]
    loss, gradients = gradient_of(model, [[*pieces, *groups[1:]]])
    assert loss == pytest.approx(float(expected[0]), rel=1e-5)
    assert_same_leaves(gradients, expected[1])


def test_sixteen_replies_of_one_prefix_equal_each_alone(model):
    rng = np.random.default_rng(1)
    groups = [group(rng, 50, [(int(rng.integers(1, 12)), int(rng.integers(1, 9))) for _ in range(16)])]
    loss, gradients = gradient_of(model, [groups])
    value, wanted = reference(model, groups)
    assert loss == pytest.approx(float(value), rel=1e-5)
    assert_same_leaves(gradients, wanted)


def test_reply_logprobs_are_those_of_each_sequence_alone(model):
    groups = ragged_groups()
    ids, lengths, reply_lengths, data = separate(groups)
    wanted = np.asarray(alone(model.params, model.config, ids, lengths, reply_lengths, data["weights"].shape[1], 0.7))
    found = np.asarray(reply_logprobs(model.params, model.config, pack_rows(groups), temperature=0.7))
    sequence = 0
    for row, of_group in enumerate(groups):
        at = 0
        for one in of_group.replies:
            length = len(one.reply_ids)
            assert np.abs(found[row, at : at + length] - wanted[sequence, :length]).max() < 1e-4
            at, sequence = at + length, sequence + 1


def test_a_token_budget_makes_micro_batches_of_like_rows_and_keeps_every_reply():
    rng = np.random.default_rng(2)
    groups = [group(rng, p, [(4, 4)] * 4) for p in (10, 200, 12, 220, 11, 9)]
    lists = micro_batches(groups, token_budget=300)
    assert sorted(len(g.prefix_ids) for batch in lists for g in batch) == [9, 10, 11, 12, 200, 220]
    assert [len(batch) for batch in lists] == [4, 1, 1]


def test_one_adamw_step_is_the_formula(model):
    state = init_state(model.params, Optimizer())
    gradients = jax.tree.map(lambda p: jnp.full(p.shape, 2.0, jnp.float32), state.params)
    count = sum(leaf.size for leaf in jax.tree.leaves(gradients))
    before = np.asarray(state.params["norm"])
    state, metrics = apply(state, gradients, jnp.float32(4.0), jnp.float32(0.1), optimizer=Optimizer(clip_norm=1.0))
    assert float(metrics["grad_norm"]) == pytest.approx(0.5 * count**0.5, rel=1e-5)
    # The first step of Adam is the sign of the gradient but for eps, whatever its scale: here g / (|g| + 1e-8 ...).
    clipped = 0.5 / (0.5 * count**0.5)
    direction = clipped / (clipped + 1e-8)
    wanted = before - 0.1 * (direction + 0.01 * before)
    np.testing.assert_allclose(np.asarray(state.params["norm"]), wanted, rtol=1e-4)
    assert int(state.step) == 1 and int(state.skipped) == 0


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted_and_named(model):
    state = init_state(model.params, Optimizer())
    before = jax.tree.map(np.asarray, (state.params, state.moments))
    gradients = zeros_like(state.params)
    gradients["norm"] = gradients["norm"].at[3].set(jnp.nan)
    state, metrics = apply(state, gradients, jnp.float32(1), jnp.float32(0.1), optimizer=Optimizer())
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves((state.params, state.moments)), strict=True):
        np.testing.assert_array_equal(old, np.asarray(new))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(gradients)]
    assert [path for path, ok in zip(paths, np.asarray(metrics["finite"]), strict=True) if not ok] == ["['norm']"]
    assert int(state.skipped) == 1
