"""Sampling of one token a row: temperature, top-k, top-p, greedy; a row's draw depends on its own key alone.

Axes: `M` rows, `V` vocabulary, `N` questions, `G` rollouts.
"""

import hashlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from remem_jax.config import Sampling

_BLOCK = 256


def question_digest(question_id: str) -> int:
    """A stable 32-bit number of a question's id: the same on every machine, process and run."""
    return int.from_bytes(hashlib.sha256(question_id.encode("utf-8", "surrogatepass")).digest()[:4], "little")


def row_keys(
    seed: int | Key[Array, ""], step: int, digests: Int[Array, "N"], rollouts: Int[Array, "G"], turns: Int[Array, "N"]
) -> Key[Array, "N G"]:
    """The key of each row, folded from (seed, rollout step, question digest, g, t); `generate` folds the token index.

    `seed` is a number or, so that the call can be jitted for all of them, its `jax.random.key`.

    Never from the row number, so who shares a batch, waves, compaction and meshes do not change a row's numbers.
    """
    is_key = isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
    key = jax.random.fold_in(seed if is_key else jax.random.key(seed), step)

    def one(digest, turn, g):
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, digest), g), turn)

    over_rollouts = jax.vmap(one, in_axes=(None, None, 0))
    return jax.vmap(over_rollouts, in_axes=(0, 0, None))(digests, turns, rollouts)


def sample(
    logits: Float[Array, "M V"], keys: Key[Array, "M"], sampling: Sampling
) -> tuple[Int[Array, "M"], Float[Array, "M"], Float[Array, "M"]]:
    """Draw one token a row.

    Args:
        logits: float32.
        keys: one key a row, already folded with the token's index.
        sampling: temperature 0 takes the most likely token (the first of equals).

    Returns:
        tokens; their log-probability under the full softmax at the temperature (at 1 when greedy); and under the
        distribution left after top-k and top-p (0 when greedy).
    """
    greedy = sampling.temperature == 0
    scaled = logits if greedy else logits / jnp.float32(sampling.temperature)
    top = scaled.max(axis=-1, keepdims=True)
    weights = jnp.exp(scaled - top)
    log_total = jnp.log(weights.sum(axis=-1))
    if greedy:
        tokens = jnp.argmax(scaled, axis=-1).astype(jnp.int32)
        return tokens, -log_total, jnp.zeros_like(log_total)
    kept = weights
    if 0 < sampling.top_k < logits.shape[-1]:
        threshold = jax.lax.top_k(kept, sampling.top_k)[0][:, -1:]
        kept = jnp.where(kept >= threshold, kept, 0.0)
    if sampling.top_p < 1:
        kept = jnp.where(kept >= _nucleus_threshold(kept, sampling.top_p), kept, 0.0)
    tokens = _draw(kept, jax.vmap(jax.random.uniform)(keys))
    chosen = jnp.take_along_axis(scaled - top, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - log_total, chosen - jnp.log(kept.sum(axis=-1))


def _nucleus_threshold(weights, top_p: float):
    """The largest weight t such that the tokens with weight >= t hold at least `top_p` of the total, `[M, 1]`.

    Bisection on the bits of the float, which sorts like the float itself: no sort of the vocabulary. Tokens as likely
    as the last one of the nucleus are kept with it.
    """
    need = jnp.float32(top_p) * weights.sum(axis=-1)

    def halve(_, bounds):
        low, high = bounds  # weights >= value(low) hold enough, weights >= value(high) do not
        middle = low + (high - low) // 2
        value = jax.lax.bitcast_convert_type(middle, jnp.float32)
        enough = jnp.where(weights >= value[:, None], weights, 0.0).sum(axis=-1) >= need
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low = jnp.zeros(weights.shape[:1], jnp.int32)
    high = jnp.full(weights.shape[:1], 0x3F800001, jnp.int32)  # just above 1.0, the largest weight
    low, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
    return jax.lax.bitcast_convert_type(low, jnp.float32)[:, None]


def _draw(weights, uniform):
    """Index drawn in proportion to `weights [M, V]` by inverting their sum: first a block of 256, then within it."""
    m, v = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -v % _BLOCK))).reshape(m, -1, _BLOCK)
    ends = jnp.cumsum(blocks.sum(axis=-1), axis=-1)  # [M, blocks]
    target = uniform * ends[:, -1]
    which = _first_above(ends, target)
    before = jnp.where(which > 0, jnp.take_along_axis(ends, jnp.maximum(which - 1, 0)[:, None], axis=1)[:, 0], 0.0)
    block = jnp.take_along_axis(blocks, which[:, None, None], axis=1)[:, 0]  # [M, 256]
    inner = _first_above(jnp.cumsum(block, axis=-1), target - before)
    last_possible = _BLOCK - 1 - jnp.argmax(block[:, ::-1] > 0, axis=-1)  # rounding may leave nothing above the target
    return (which * _BLOCK + jnp.minimum(inner, last_possible.astype(jnp.int32))).astype(jnp.int32)


def _first_above(ends, target):
    """Index of the first entry of a rising row that is above its target; the last index where none is."""
    count = jnp.sum(ends <= target[:, None], axis=-1, dtype=jnp.int32)
    return jnp.minimum(count, ends.shape[1] - 1)
