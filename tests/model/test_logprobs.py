"""Log-probabilities by hand and against a plain log-softmax over everything at once.

Axes: `B` sequences, `T` tokens, `M` positions, `D` hidden, `V` vocabulary.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# NumPy arrays are handed to functions of jax arrays throughout: making them costs no compilation.

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.model import transformer
from remem_jax.model.logprobs import chosen_logprobs, chosen_logprobs_and_entropy, token_logprobs
from remem_jax.testing import tiny_model


def random_head(m=10, v=7, d=4):
    numbers = np.random.default_rng(0)
    head, hidden = (numbers.normal(size=(size, d)).astype(np.float32) for size in (v, m))
    return {"embed": np.zeros((v, d), np.float32), "head": head}, hidden, numbers.integers(0, v, m).astype(np.int32)


def plain(params, hidden, targets, temperature=1.0):
    logits = jnp.dot(hidden, params["head"].T, precision="highest") / jnp.float32(temperature)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1)[:, 0]


def test_the_logprobs_of_odds_1_to_2_to_5_and_their_squares_at_half_the_temperature():
    params = {"embed": np.diag(np.log([1.0, 2.0, 5.0])).astype(np.float32)}  # tied: hidden of ones gives the odds
    hidden, targets = np.ones((3, 3), np.float32), np.array([0, 1, 2], np.int32)
    out = chosen_logprobs(params, hidden, targets)
    np.testing.assert_allclose(np.exp(out), [1 / 8, 2 / 8, 5 / 8], rtol=1e-6)
    out = chosen_logprobs(params, hidden, targets, temperature=0.5)
    np.testing.assert_allclose(np.exp(out), [1 / 30, 4 / 30, 25 / 30], rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 4, 10, 512])
def test_chunks_change_neither_values_nor_gradients(chunk):
    params, hidden, targets = random_head()

    def run(f):
        def loss(params, hidden):
            out = f(params, hidden, targets, temperature=0.7)
            return jnp.sum(out * jnp.arange(10, dtype=jnp.float32)), out

        (_, out), gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, hidden)
        return out, gradient[0]["head"], gradient[1]

    for found, expected in zip(run(functools.partial(chosen_logprobs, chunk=chunk)), run(plain), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_entropy_of_odds_1_to_2_to_5_and_of_their_squares_at_half_the_temperature():
    params = {"embed": np.diag(np.log([1.0, 2.0, 5.0])).astype(np.float32)}
    hidden, targets = np.ones((2, 3), np.float32), np.array([0, 2], np.int32)
    for temperature, odds in [(1.0, (1, 2, 5)), (0.5, (1, 4, 25))]:
        p = [x / sum(odds) for x in odds]
        logp, entropy = chosen_logprobs_and_entropy(params, hidden, targets, temperature=temperature)
        np.testing.assert_allclose(np.exp(logp), [p[0], p[2]], rtol=1e-6)
        np.testing.assert_allclose(entropy, [-sum(x * math.log(x) for x in p)] * 2, rtol=1e-6)


@pytest.mark.parametrize("gradient", [True, False])
def test_the_entropy_and_its_gradient_in_chunks_are_those_of_whole_logits_or_a_constant(gradient):
    params, hidden, targets = random_head()
    weights = jnp.arange(10, dtype=jnp.float32)

    def whole(params, hidden):
        logits = jnp.dot(hidden, params["head"].T, precision="highest") / jnp.float32(0.7)
        logp = jax.nn.log_softmax(logits)
        entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
        return plain(params, hidden, targets, 0.7), entropy if gradient else jax.lax.stop_gradient(entropy)

    def chunked(params, hidden):
        return chosen_logprobs_and_entropy(params, hidden, targets, temperature=0.7, chunk=4, gradient=gradient)

    def run(f):
        def loss(params, hidden):
            logp, entropy = f(params, hidden)
            return jnp.sum(weights * logp) + jnp.sum(weights**2 * entropy), (logp, entropy)

        (_, out), (of_params, of_hidden) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(
            params, hidden
        )
        return *out, of_params["head"], of_hidden

    for found, expected in zip(run(chunked), run(whole), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)


def test_logits_of_all_positions_never_exist_whole_forward_or_backward():
    params, hidden, targets = random_head(m=1000, v=600, d=4)

    def loss(params, hidden):
        logp, entropy = chosen_logprobs_and_entropy(params, hidden, targets, chunk=50)
        return (logp + entropy).sum()

    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, hidden).compile().as_text()
    sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", text)]
    assert 50 * 600 in sizes  # the chunk's logits
    assert max(sizes) < 1000 * 600 / 10


def test_token_logprobs_are_those_of_each_next_token_and_0_after_the_end():
    model = tiny_model(1)
    tokens = np.random.default_rng(0).integers(0, 256, (3, 8)).astype(np.int32)
    lengths = np.array([8, 5, 1], np.int32)
    found = np.asarray(token_logprobs(model, tokens, lengths))
    logits = np.asarray(transformer.logits(model, tokens, lengths), np.float64)
    log_softmax = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = np.take_along_axis(log_softmax[:, :-1], tokens[:, 1:, None], axis=2)[..., 0]
    expected[1, 4:], expected[2] = 0, 0
    assert found.shape == (3, 7) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found[1, 4:] == 0).all() and (found[2] == 0).all()
