"""The update on packed groups against plain JAX on every sequence alone: log-probs, loss and every gradient.

Axes: `B` sequences, `R` tokens of a reply, `G` replies of one group. The reference knows nothing of packing, chunks or
shared prefixes: one forward a sequence, dense attention, the loss formula written out.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.agent.prompts import assemble, encode_blocks, load_prompts, prompt_parts
from remem_jax.agent.protocol import Tags
from remem_jax.model.packing import plain_rows
from remem_jax.model.transformer import forward, head_logits
from remem_jax.rl.rows import Group, Reply, pack_rows, split_group
from remem_jax.rl.step import Objective, Optimizer, accumulate, apply, init_state, logprobs, zeros_like
from remem_jax.testing import tiny_model

# float32 sums in another order: a gradient leaf may differ by this share of its own largest value.
TOLERANCE = 1e-5
OBJECTIVE = Objective(temperature=0.7, eps_low=0.2, eps_high=0.3, beta=0.1)


def reply(rng, suffix, length: int) -> Reply:
    """A random reply to a suffix of given ids or of so many random ones."""

    def values():
        return rng.normal(-5, 0.1, length).astype(np.float32)

    return Reply(
        suffix_ids=rng.integers(0, 256, suffix) if isinstance(suffix, int) else np.array(suffix),
        reply_ids=rng.integers(0, 256, length),
        weights=rng.uniform(0.1, 1, length).astype(np.float32),
        advantage=float(rng.normal()),
        logp_old=values(),
        sampled_logp=values(),
        logp_ref=values(),
    )


def group(rng, prefix: int, sizes) -> Group:
    return Group(rng.integers(0, 256, prefix), tuple(reply(rng, *size) for size in sizes))


def ragged_groups() -> list[Group]:
    """Four replies, two without a prefix, three alike, and a group of one."""
    rng = np.random.default_rng(0)
    sizes = [(40, [(5, 7), (1, 1), (20, 3), (9, 12)]), (0, [(30, 5), (2, 9)]), (13, [(6, 4)] * 3), (21, [(8, 10)])]
    return [group(rng, *size) for size in sizes]


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3, family="qwen2", stacked=True, num_layers=4)


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
    """Log-softmax `[B, R, V]` at the places of the replies' tokens, and of those tokens: every sequence by itself."""
    hidden, _ = forward(params, config, plain_rows(ids, lengths), backend="dense")
    logits = head_logits(params, hidden.reshape(-1, hidden.shape[-1])).reshape(*ids.shape, -1)
    at = (lengths - reply_lengths)[:, None] + jnp.arange(size, dtype=jnp.int32)
    at = jnp.minimum(at, ids.shape[1] - 1)
    rows = jnp.arange(len(ids))[:, None]
    whole = jax.nn.log_softmax(logits[rows, at - 1] / temperature)
    return whole, jnp.take_along_axis(whole, ids[rows, at][..., None], axis=2)[..., 0]


@functools.partial(jax.jit, static_argnames=("config", "objective"))
@functools.partial(jax.value_and_grad, has_aux=True)
def plain_loss(params, ids, lengths, reply_lengths, data, config, objective: Objective):
    """The weighted loss sum of METHOD 6, token by token; also the log-probabilities and entropies `[B, R]`."""
    size = data["weights"].shape[1]
    whole, logp = alone(params, config, ids, lengths, reply_lengths, size, objective.temperature)
    entropy = -jnp.sum(jnp.exp(whole) * whole, axis=-1)
    rho = jnp.exp(logp - data["logp_old"])
    clipped = jnp.clip(rho, 1 - objective.eps_low, 1 + objective.eps_high)
    importance = jnp.minimum(jnp.exp(data["logp_old"] - data["sampled_logp"]), objective.importance_cap)
    surrogate = jnp.minimum(rho * data["advantage"], clipped * data["advantage"]) * importance
    d = data["logp_ref"] - logp
    loss = -surrogate + objective.beta * (jnp.exp(d) - d - 1) - objective.entropy_bonus * entropy
    return jnp.sum(jnp.where(data["weights"] > 0, data["weights"] * loss, 0.0)), (logp, entropy)


def reference(model, groups, objective=OBJECTIVE):
    """((loss, (log-probs, entropies)), gradient) of every sequence alone."""
    return plain_loss(model.params, *separate(groups), config=model.config, objective=objective)


def gradient_of(model, batches, objective=OBJECTIVE):
    gradients, loss, metrics = zeros_like(model.params), 0.0, {}
    for batch in batches:
        gradients, (part, _), metrics = accumulate(
            gradients, model.params, pack_rows(batch), config=model.config, objective=objective
        )
        loss += float(part)
    return loss, gradients, metrics


def assert_same_leaves(found, expected):
    for path, value in jax.tree_util.tree_leaves_with_path(expected):
        other = found
        for key in path:
            other = other[key.key]
        scale = float(jnp.abs(value).max())
        assert float(jnp.abs(other - value).max()) <= TOLERANCE * scale, jax.tree_util.keystr(path)


def assert_equals_reference(model, batches, wanted, objective=OBJECTIVE):
    loss, gradients, metrics = gradient_of(model, batches, objective)
    assert loss == pytest.approx(float(wanted[0][0]), rel=1e-5)
    assert_same_leaves(gradients, wanted[1])
    return metrics


@pytest.fixture(scope="module")
def expected(model):
    return reference(model, ragged_groups())


def test_a_packed_update_equals_every_sequence_alone_in_loss_and_every_gradient(model, expected):
    metrics = assert_equals_reference(model, [ragged_groups()], expected)
    _, _, _, data = separate(ragged_groups())
    (_, (logp, entropy)), _ = expected
    live = data["weights"] > 0
    for name, values in [("entropy", entropy), ("gap_abs", jnp.abs(data["logp_old"] - logp))]:
        found, count = metrics[name]
        assert int(count) == live.sum()
        assert float(found) == pytest.approx(float(np.asarray(values)[live].sum()), rel=1e-5), name
    d = np.asarray(logp - data["logp_old"])[live]
    assert float(metrics["gap_kl"][0]) == pytest.approx(float((np.exp(d) - d - 1).sum()), rel=1e-4)


def test_micro_batches_and_a_group_split_over_rows_that_repeat_its_prefix_change_nothing(model, expected):
    first, *rest = ragged_groups()
    pieces = split_group(first, 110)  # 64 slots for the prefix, then 12 + 2 + 23 tokens, and 21
    assert [len(piece.replies) for piece in pieces] == [3, 1]
    assert_equals_reference(model, [[pieces[0], *rest[:2]], [pieces[1], *rest[2:]]], expected)


def test_sixteen_replies_of_one_prefix_equal_each_alone_with_an_entropy_bonus(model):
    rng = np.random.default_rng(1)
    groups = [group(rng, 50, [(int(rng.integers(1, 12)), int(rng.integers(1, 9))) for _ in range(16)])]
    objective = Objective(temperature=0.7, beta=0.1, entropy_bonus=0.3)
    wanted = reference(model, groups, objective)
    metrics = assert_equals_reference(model, [groups], wanted, objective)
    weights = separate(groups)[3]["weights"]
    bonus = -0.3 * float(np.sum(weights * np.asarray(wanted[0][1][1])))
    assert float(metrics["entropy_loss"][0]) == pytest.approx(bonus, rel=1e-5)


def prompted_groups(model, order: str) -> list[Group]:
    """Two turns of three rollouts each, prompts in `order`, the same texts whatever the order."""
    texts = {"rules": "Read.", "rules_callback": "", "cue": "Go:", "no_memory": "-", "no_recall": "-"}
    texts |= {"question": "Q {question}", "chunk": "C {chunk}", "recalled": "R {recalled}", "memory": "M {memory}"}
    tokenizer, rng = model.tokenizer, np.random.default_rng(2)
    prefix, suffix = prompt_parts(
        encode_blocks(load_prompts(texts), tokenizer, "rememr1", Tags()), "rememr1", order, final=False
    )
    groups = []
    for question, chunk in [("Who?", "Ana lives in Oslo. " * 3), ("Where is it?", "It is far away.")]:
        shared = {"question": tokenizer.encode(question), "chunk": tokenizer.encode(chunk)}
        replies = []
        for memory, recalled in [("-", "-"), ("Ana: Oslo", "-"), ("nothing yet", "Oslo is a city")]:
            own = shared | {"memory": tokenizer.encode(memory), "recalled": tokenizer.encode(recalled)}
            replies.append(reply(rng, assemble(suffix, own), int(rng.integers(1, 9))))
        groups.append(Group(np.array(assemble(prefix, shared)), tuple(replies)))
    return groups


@pytest.mark.parametrize(("order", "longest_prefix"), [("section_last", 25), ("section_first", 78)])
def test_the_update_is_exact_in_both_prompt_orders(model, order, longest_prefix):
    groups = prompted_groups(model, order)
    assert max(len(one.prefix_ids) for one in groups) == longest_prefix
    assert_equals_reference(model, [groups], reference(model, groups))


def test_supervised_replies_weigh_their_negative_log_likelihood(model, expected):
    weights = separate(ragged_groups())[3]["weights"]
    loss, gradients, metrics = gradient_of(model, [ragged_groups()], Objective(kind="sft", temperature=0.7))
    wanted = -float(np.sum(weights * np.asarray(expected[0][1][0])))
    assert loss == pytest.approx(wanted, rel=1e-5)
    assert float(metrics["nll"][0] / metrics["nll"][1]) == pytest.approx(wanted / weights.sum(), rel=1e-5)
    # The slope of the loss along the gradient is the gradient's norm.
    norm = sum(float(jnp.sum(g * g)) for g in jax.tree.leaves(gradients)) ** 0.5
    batch = pack_rows(ragged_groups())

    def loss_at(step):
        params = jax.tree.map(lambda p, g: p + step / norm * g, model.params, gradients)
        return -float(jnp.sum(batch.weights * logprobs(params, batch, config=model.config, temperature=0.7)))

    assert (loss_at(0.01) - loss_at(-0.01)) / 0.02 == pytest.approx(norm, rel=1e-2)


def test_reply_logprobs_are_those_of_each_sequence_alone(model, expected):
    groups = ragged_groups()
    found = np.asarray(logprobs(model.params, pack_rows(groups), config=model.config, temperature=0.7))
    wanted = np.asarray(expected[0][1][0])
    sequence = 0
    for row, of_group in enumerate(groups):
        at = 0
        for one in of_group.replies:
            length = len(one.reply_ids)
            assert np.abs(found[row, at : at + length] - wanted[sequence, :length]).max() < 1e-4
            at, sequence = at + length, sequence + 1


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
