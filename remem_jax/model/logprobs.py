"""Log-probabilities of chosen tokens, the vocabulary in chunks of tokens so that `[tokens, V]` never exists whole.

Axes: `B` sequences, `T` tokens, `M` positions, `D` hidden, `V` vocabulary.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from remem_jax.mesh import batch_shards, constrain, mesh_of
from remem_jax.model.packing import plain_rows
from remem_jax.model.transformer import Params, forward, head_logits

CHUNK = 512


def chosen_logprobs(
    params: Params,
    hidden: Float[Array, "M D"],
    targets: Int[Array, "M"],
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
) -> Float[Array, "M"]:
    """Log-probability, float32, of `targets[i]` under the softmax of the logits of `hidden[i]` over `temperature`.

    A scan over chunks, each recomputed in the backward pass: memory is chunk * V * 4 bytes whatever M is.
    """

    def score(scaled, chosen):
        return _at(scaled, chosen) - jax.nn.logsumexp(scaled, axis=-1)

    return _over_chunks(score, params, hidden, targets, temperature, chunk)


def chosen_logprobs_and_entropy(
    params: Params,
    hidden: Float[Array, "M D"],
    targets: Int[Array, "M"],
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    gradient: bool = True,
) -> tuple[Float[Array, "M"], Float[Array, "M"]]:
    """`chosen_logprobs`, and the entropy in nats of each whole softmax from the same logits.

    `gradient` False makes the entropy a constant: it is then logged at no cost in the backward pass.
    """

    def score(scaled, chosen):
        total = jax.nn.logsumexp(scaled, axis=-1)
        logp = scaled - total[:, None]
        if not gradient:  # Cut off in here: zeros that enter the scan backwards would be carried through all of it.
            logp = jax.lax.stop_gradient(logp)
        return _at(scaled, chosen) - total, -(jnp.exp(logp) * logp).sum(axis=-1)

    return _over_chunks(score, params, hidden, targets, temperature, chunk)


def _at(values: Float[Array, "M V"], chosen: Int[Array, "M"]) -> Float[Array, "M"]:
    return jnp.take_along_axis(values, chosen[:, None], axis=1)[:, 0]


def _over_chunks(score: Callable, params: Params, hidden, targets, temperature: float, chunk: int):
    """`score(scaled logits [chunk, V], targets [chunk])` of every chunk, each of its results as `[M]`."""
    shards = batch_shards(mesh_of(params), hidden.shape[0])
    m = hidden.shape[0] // shards  # every shard of a mesh goes through chunks of its own
    chunk = min(chunk, m)
    pad = -m % chunk

    def chunks(x):  # [M, ...] -> [chunks, shards * chunk, ...]
        x = x.reshape(shards, m, *x.shape[1:])
        x = jnp.pad(x, ((0, 0), (0, pad), *[(0, 0)] * (x.ndim - 2)))
        x = jnp.moveaxis(x.reshape(shards, -1, chunk, *x.shape[2:]), 1, 0)
        return x.reshape(x.shape[0], shards * chunk, *x.shape[3:])

    @jax.checkpoint
    def one(carry, part):
        hidden = constrain(part[0], "batch", None)
        return carry, score(head_logits(params, hidden) / jnp.float32(temperature), part[1])

    def flat(x):  # [chunks, shards * chunk] -> [M]
        return jnp.moveaxis(x.reshape(-1, shards, chunk), 1, 0).reshape(shards, -1)[:, :m].reshape(-1)

    _, out = jax.lax.scan(one, None, (chunks(hidden), chunks(targets)))
    return jax.tree.map(flat, out)


def token_logprobs(model, tokens: Int[Array, "B T"], lengths: Int[Array, "B"]) -> Float[Array, "B T-1"]:
    """Log-probability of each next token: entry `[b, i]` is that of `tokens[b, i + 1]` given `tokens[b, :i + 1]`.

    Args:
        model: a `Model` of `load_model`.
        tokens: ids, padded on the right.
        lengths: tokens of each sequence; entries at and after `lengths[b] - 1` are 0.
    """
    return _token_logprobs(model.params, model.config, jnp.asarray(tokens), jnp.asarray(lengths))


@functools.partial(jax.jit, static_argnames="config")
def _token_logprobs(params, config, tokens, lengths):
    hidden, _ = forward(params, config, plain_rows(tokens, lengths))
    hidden = hidden[:, :-1]
    values = chosen_logprobs(params, hidden.reshape(-1, hidden.shape[-1]), tokens[:, 1:].reshape(-1))
    index = jnp.arange(tokens.shape[1] - 1, dtype=jnp.int32)
    return jnp.where(index < lengths[:, None] - 1, values.reshape(hidden.shape[:2]), 0.0)
