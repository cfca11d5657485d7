"""The decoder over packed rows against each sequence alone, and its parts by hand.

Axes: `N` rows, `G` suffixes, `T` tokens, `D` hidden.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# NumPy arrays are handed to functions of jax arrays throughout: making them costs no compilation.

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.model import transformer
from remem_jax.model.load import stack_layers
from remem_jax.model.packing import pack_groups, plain_rows, ragged
from remem_jax.model.transformer import Cache, decode_step, forward, head_logits
from remem_jax.testing import tiny_model


def groups(prefix_lengths, suffix_lengths, seed=0):
    """Random ids of these lengths: `[N]` prefixes and `[N][G]` suffixes."""
    numbers = np.random.default_rng(seed)
    prefixes = [numbers.integers(0, 256, k).tolist() for k in prefix_lengths]
    return prefixes, [[numbers.integers(0, 256, k).tolist() for k in group] for group in suffix_lengths]


@functools.partial(jax.jit, static_argnames=("config", "backend"))
def value_and_gradient(params, config, rows, weights, backend):
    """Hidden states with keys and values, and the gradient by every parameter of a weighted sum of the states."""

    def weighted_sum(params):
        hidden, kv = forward(params, config, rows, backend=backend, return_kv=True)
        return jnp.sum(hidden * weights), (hidden, kv)

    (_, states), gradient = jax.value_and_grad(weighted_sum, has_aux=True)(params)
    return states, gradient


def assert_same_gradients(found, expected, tolerance=2e-5):
    def close(path, a, b):
        a, b = np.asarray(a), np.asarray(b)
        error = np.abs(a - b).max() / max(np.abs(b).max(), 1e-6)
        assert error <= tolerance, f"{jax.tree_util.keystr(path)}: relative error {error}"

    jax.tree_util.tree_map_with_path(close, found, expected)


RAGGED_3 = [[9, 0, 4], [1, 12, 7]]
CASES = {
    "one suffix": ("qwen2", 8, [8, 3], [[11], [4]], 12),
    "three suffixes": ("qwen3", 8, [8, 3], RAGGED_3, 12),
    "three suffixes, no prefix": ("llama", 0, [0, 0], RAGGED_3, 12),
    "sixteen suffixes, one prefix empty": ("llama", 16, [13, 0], [[*range(16)], [19, 0] * 8], 20),
}


@functools.lru_cache(maxsize=1)
def alone(case):
    """Each prefix and suffix as a plain row of its own with the dense mask: hidden states and gradients."""
    family, _, prefix_lengths, suffix_lengths, _ = CASES[case]
    model = tiny_model(3, family=family, stacked=True)
    prefixes, suffixes = groups(prefix_lengths, suffix_lengths)
    whole = [p + s for p, group in zip(prefixes, suffixes) for s in group]
    tokens, lengths = ragged(whole)
    numbers = np.random.default_rng(1)
    weights = np.zeros((*tokens.shape, model.config.hidden_size), np.float32)
    for row, ids, own in zip(weights, whole, [s for group in suffixes for s in group]):
        row[len(ids) - len(own) : len(ids)] = numbers.normal(size=(len(own), weights.shape[-1]))
    rows = plain_rows(tokens, lengths)
    (hidden, _), gradient = value_and_gradient(model.params, model.config, rows, weights, "dense")
    return model, prefixes, suffixes, weights, np.asarray(hidden), gradient


@pytest.mark.parametrize("backend", ["dense", "blocked"])
@pytest.mark.parametrize("case", CASES)
def test_a_packed_row_gives_what_each_sequence_gives_alone_outputs_and_gradients(case, backend):
    _, slot, _, _, longest = CASES[case]
    model, prefixes, suffixes, alone_weights, expected, expected_gradient = alone(case)
    n, g = len(suffixes), len(suffixes[0])
    total = max(sum(map(len, group)) for group in suffixes)
    pack = jax.jit(pack_groups, static_argnames="row_tokens")
    rows = pack(ragged(prefixes, size=slot), ragged(suffixes, size=longest), row_tokens=slot + total + 5)
    weights = np.zeros((*rows.tokens.shape, model.config.hidden_size), np.float32)
    places = []  # (row, token) in the packed row of each token of each suffix, and (sequence, token) alone
    for i in range(n):
        at = slot
        for j, own in enumerate(suffixes[i]):
            places += [(i, at + k, i * g + j, len(prefixes[i]) + k) for k in range(len(own))]
            at += len(own)
    row, token, sequence, alone_token = np.array(places).T
    weights[row, token] = alone_weights[sequence, alone_token]
    (hidden, _), gradient = value_and_gradient(model.params, model.config, rows, weights, backend)
    np.testing.assert_allclose(np.asarray(hidden)[row, token], expected[sequence, alone_token], atol=2e-5)
    assert_same_gradients(gradient, expected_gradient)


def test_the_case_of_sixteen_suffixes_reaches_the_window_loop():
    """Else the blocked back end above would be tested in one block only."""
    _, slot, _, suffix_lengths, longest = CASES["sixteen suffixes, one prefix empty"]
    assert slot + longest < slot + max(map(sum, suffix_lengths))


def test_stacked_layers_in_a_scan_equal_unrolled_layers_outputs_gradients_keys_and_values():
    model, stacked = tiny_model(4, family="qwen2"), tiny_model(4, family="qwen2", stacked=True)
    prefixes, suffixes = groups([5, 2], RAGGED_3)
    rows = jax.jit(pack_groups, static_argnames="row_tokens")(ragged(prefixes), ragged(suffixes), row_tokens=25)
    weights = np.random.default_rng(1).normal(size=(2, 25, 32)).astype(np.float32) * np.asarray(rows.valid)[..., None]
    expected, expected_gradient = value_and_gradient(model.params, model.config, rows, weights, "blocked")
    found, gradient = value_and_gradient(stacked.params, model.config, rows, weights, "blocked")
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert expected[1][1][0].shape == (2, 25, 2, 8)
    assert_same_gradients(gradient, jax.jit(stack_layers)(expected_gradient))


def test_padding_and_its_ids_change_nothing():
    model = tiny_model(5)
    run = jax.jit(lambda tokens, lengths: forward(model.params, model.config, plain_rows(tokens, lengths))[0])
    tokens = np.random.default_rng(0).integers(0, 256, (2, 12)).astype(np.int32)
    lengths = np.array([7, 12], np.int32)
    other = tokens.copy()
    other[0, 7:] = 1
    one, two = np.asarray(run(tokens, lengths)), np.asarray(run(other, lengths))
    np.testing.assert_array_equal(one[0, :7], two[0, :7])
    np.testing.assert_array_equal(one[1], two[1])
    assert not np.array_equal(one[0, 7:], two[0, 7:])


def test_a_decode_step_gives_the_logits_of_the_forward_pass_over_one_more_token():
    """Rows of a group of two with a prefix of 3 in a slot of 4; suffixes of 2 and 1 end at own slot 2."""
    model = tiny_model(6)
    config, slot, own_slots = model.config, 4, 5
    prefix, suffixes, new = [7, 8, 9], [[1, 2], [3]], [[4, 5]]
    tokens, lengths = ragged([prefix + s + [t] for s, t in zip(suffixes, new[0])], size=6)

    @jax.jit
    def both(params):
        hidden, kv = forward(params, config, plain_rows(tokens, lengths), return_kv=True)
        last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]
        return head_logits(params, last), kv

    expected, kv = jax.device_get(both(model.params))
    prefix_part, own_part = [], []
    for layer in kv:
        prefix_part.append(tuple(np.pad(np.swapaxes(x[:1, :3], 1, 2), ((0, 0), (0, 0), (0, 1), (0, 0))) for x in layer))
        own = [np.full((1, 2, 2, own_slots, 8), 5.0, np.float32) for _ in layer]  # rubbish where nothing may be read
        for buffer, x in zip(own, layer):
            buffer[0, 0, :, 0:2], buffer[0, 1, :, 1:2] = np.swapaxes(x[0, 3:5], 0, 1), np.swapaxes(x[1, 3:4], 0, 1)
        own_part.append(tuple(own))
    cache = Cache(tuple(prefix_part), np.array([3], np.int32), tuple(own_part), np.array([[0, 1]], np.int32))
    step = jax.jit(functools.partial(decode_step, config=config))
    arguments = dict(tokens=np.array(new, np.int32), positions=np.array([[5, 4]], np.int32), slot=np.int32(2))
    logits, written = step(model.params, cache=cache, **arguments)
    np.testing.assert_allclose(logits[0], expected, atol=2e-5)
    np.testing.assert_allclose(written.own[1][0][0, 1, :, 2], kv[1][0][1, 4], atol=1e-5)
    assert written.prefix[0][0].shape == (1, 2, slot, 8)


def test_logits_are_the_head_of_the_forward_pass_and_do_not_see_later_tokens():
    model = tiny_model(7, tie_embeddings=True)
    tokens = np.random.default_rng(0).integers(0, 256, (2, 9)).astype(np.int32)
    found = np.asarray(transformer.logits(model, tokens, np.array([9, 4], np.int32)))
    changed = tokens.copy()
    changed[0, 6:] = 3
    again = np.asarray(transformer.logits(model, changed, np.array([9, 4], np.int32)))
    assert found.shape == (2, 9, model.config.vocab_size) and found.dtype == np.float32
    np.testing.assert_array_equal(found[0, :6], again[0, :6])
    assert not np.allclose(found[0, 6:], again[0, 6:])
    hidden = jax.jit(lambda p: forward(p, model.config, plain_rows(tokens, np.array([9, 4], np.int32)))[0])(
        model.params
    )
    np.testing.assert_allclose(found[0], np.asarray(hidden[0]) @ np.asarray(model.params["embed"]).T, atol=1e-4)


def test_linear_multiplies_by_the_transposed_weight_and_adds_the_bias():
    out = transformer.linear(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0], [5.0, 6.0]]), jnp.array([0.5, -1.0]))
    assert out.tolist() == [[11.5, 16.0]]


def test_the_norm_divides_by_the_root_of_the_mean_square():
    out = transformer.rms_norm(jnp.array([[3.0, 4.0]]), jnp.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(out, [[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)]], rtol=1e-6)


def test_a_quarter_turn_takes_the_first_half_of_a_head_to_the_second():
    x = jnp.array([[[1.0, 2.0, 3.0, 4.0]]])
    out = transformer.rotate(x, jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 0.0]]))
    assert out.tolist() == [[[-3.0, 2.0, 1.0, 4.0]]]
