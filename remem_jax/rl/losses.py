"""The objective: clipped policy loss, KL and entropy terms, and how tokens are averaged, all as weighted sums.

Every average is a weight a token, computed before packing, and one total of the whole mini-batch: a loss is then
`sum(weight * loss) / total` whatever the micro-batches, the mesh or the packing.

Axes: `N` questions, `T1` turns (the final one is last), `G` rollouts of a question, `R` reply tokens; `B` any axes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

Sums = tuple[Float[Array, ""], Float[Array, ""]]
MAX_LOG_RATIO = 20.0


class TokenWeights(NamedTuple):
    """Weight of each reply token's loss, and what the weighted sum of the whole mini-batch is divided by."""

    weights: Float[Array, "N T1 G R"]
    total: Float[Array, ""]


def token_weights(kind: str, reply_mask: Bool[ArrayLike, "N T1 G R"], *, divisor: float | None = None) -> TokenWeights:
    """Weights of an average by name. A turn, rollout or question is live if it holds a masked-in token.

    - `state_mean` (the paper's): `1 / (tokens of the turn * live turns of the rollout * live rollouts of the
      question)`, total: live questions.
    - `token_mean` (the published code's): 1, total: tokens.
    - `constant`: 1, total: live questions * `divisor`.

    Args:
        kind: `state_mean`, `token_mean` or `constant`.
        reply_mask: True at tokens that the policy sampled, the end token included.
        divisor: for `constant`, the most tokens that a question can have (rollouts * turns * reply tokens, from the
            configuration: taken from the shape it would change with padding).

    Returns:
        Float32 weights, 0 at masked places, and the total (at least 1).
    """
    mask = jnp.asarray(reply_mask, bool)
    ones = mask.astype(jnp.float32)
    turn_live = mask.any(-1)
    rollout_live = turn_live.any(1)
    questions = rollout_live.any(-1).sum().astype(jnp.float32)
    if kind == "token_mean":
        return TokenWeights(ones, jnp.maximum(ones.sum(), 1.0))
    if kind == "constant":
        if divisor is None:
            raise ValueError("expected a divisor for the average 'constant', found none: set loss_divisor")
        return TokenWeights(ones, jnp.maximum(questions, 1.0) * divisor)
    if kind != "state_mean":
        raise ValueError(f"expected state_mean, token_mean or constant, found {kind!r}: choose one of them")
    tokens = ones.sum(-1, keepdims=True)
    turns = turn_live.sum(1)[:, None, :, None].astype(jnp.float32)
    rollouts = rollout_live.sum(-1)[:, None, None, None].astype(jnp.float32)
    return TokenWeights(ones / jnp.maximum(tokens * turns * rollouts, 1.0), jnp.maximum(questions, 1.0))


def _clamp(log_ratio: Float[Array, "*B"]) -> Float[Array, "*B"]:
    return jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def k3(logp: Float[ArrayLike, "*B"], logp_ref: Float[ArrayLike, "*B"]) -> Float[Array, "*B"]:
    """`exp(d) - d - 1` with `d = logp_ref - logp` clamped to ±20: an estimate of KL(policy | reference).

    Never negative, and unbiased for tokens sampled from the policy. With logp -1 and reference -1.5 it is 0.1065.
    """
    difference = _clamp(jnp.asarray(logp_ref, jnp.float32) - jnp.asarray(logp, jnp.float32))
    # expm1 keeps the digits that exp(d) - 1 loses for small d.
    return jnp.expm1(difference) - difference


def surrogate(
    log_ratio: Float[ArrayLike, "*B"],
    advantages: Float[ArrayLike, "*B"],
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
) -> Float[Array, "*B"]:
    """`min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A)`, `rho = exp(log_ratio)`, to be maximised.

    With `dual_clip = c > 1` it is not below `c * A` where `A < 0`, which bounds the loss of a token that has become
    much more likely. PPO (arXiv 1707.06347), separate bounds after DAPO (2503.14476), dual clip after 1912.09729.
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"expected a dual clip above 1 or none, found {dual_clip}: 3.0 is usual")
    advantages = jnp.asarray(advantages, jnp.float32)
    ratio = jnp.exp(_clamp(jnp.asarray(log_ratio, jnp.float32)))
    value = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - eps_low, 1 + eps_high) * advantages)
    if dual_clip is None:
        return value
    return jnp.where(advantages < 0, jnp.maximum(value, dual_clip * advantages), value)


def importance_weights(
    logp_old: Float[ArrayLike, "*B"], sampled_logp: Float[ArrayLike, "*B"], cap: float
) -> Float[Array, "*B"]:
    """`min(exp(logp_old - sampled_logp), cap)`: truncated importance sampling.

    It corrects for a sampler that drew from another distribution than the old policy: top-k, top-p, other numerics.
    """
    difference = jnp.asarray(logp_old, jnp.float32) - jnp.asarray(sampled_logp, jnp.float32)
    return jnp.minimum(jnp.exp(_clamp(difference)), cap)


def policy_loss(
    logp: Float[ArrayLike, "*B"],
    logp_old: Float[ArrayLike, "*B"],
    advantages: Float[ArrayLike, "*B"],
    weights: Float[ArrayLike, "*B"],
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    logp_ref: Float[ArrayLike, "*B"] | None = None,
    entropy_bonus: float = 0.0,
    entropy: Float[ArrayLike, "*B"] | None = None,
    sampled_logp: Float[ArrayLike, "*B"] | None = None,
    importance_cap: float = 2.0,
) -> tuple[Sums, dict[str, Sums]]:
    """`sum(weights * (-surrogate * importance + beta * k3 - entropy_bonus * entropy))`. Paper: the GRPO objective.

    Only `logp` and `entropy` carry a gradient. Values where the weight is 0 are replaced before anything is computed
    from them, so inf and nan there reach neither the loss nor the gradient.

    Args:
        logp: log-probability of each reply token under the policy in training (temperature-scaled).
        logp_old: the same under the policy that opened the rollout batch.
        advantages: of each token; an array that broadcasts to `logp`, such as `[..., 1]`.
        weights: of each token, from `token_weights`; 0 is padding.
        eps_low: clip bound below 1.
        eps_high: clip bound above 1.
        dual_clip: see `surrogate`; None is off.
        beta: weight of the KL estimate; at 0 no reference is needed.
        logp_ref: log-probabilities of the reference policy.
        entropy_bonus: weight of the entropy.
        entropy: of the policy at each token; without a bonus it is only logged.
        sampled_logp: log-probability with which the sampler really drew the token; given, the surrogate is weighted by
            `importance_weights`.
        importance_cap: the truncation of those.

    Returns:
        `(sum, weight)` with `weight = sum(weights)`, and metrics by name, each `(sum, weight)` with a token counting 1
        (loss parts: its weight). Divide the loss sum of a mini-batch by the total of `token_weights`; that is
        `sum(weights)` but for the average `constant`.
    """
    _check_given(beta, logp_ref, "beta", "logp_ref")
    _check_given(entropy_bonus, entropy, "entropy_bonus", "entropy")
    weights = jnp.asarray(weights, jnp.float32)
    live, shape = weights > 0, jnp.shape(logp)

    def masked(values, gradient=False):
        values = jnp.where(live, jnp.broadcast_to(jnp.asarray(values, jnp.float32), shape), 0.0)
        return values if gradient else jax.lax.stop_gradient(values)

    policy, old, advantages = masked(logp, gradient=True), masked(logp_old), masked(advantages)
    value = surrogate(policy - old, advantages, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip)
    ones = live.astype(jnp.float32)
    per_token: dict[str, Array] = _ratio_metrics(policy - old, advantages, eps_low, eps_high, dual_clip)
    if sampled_logp is not None:
        importance = jnp.where(live, importance_weights(old, masked(sampled_logp), importance_cap), 0.0)
        value = value * importance
        per_token |= {"importance": importance, "importance_capped": (importance >= importance_cap).astype(jnp.float32)}
    loss = -value
    parts = {"policy_loss": loss}
    if logp_ref is not None:
        per_token["ref_kl"] = k3(policy, masked(logp_ref))
        parts["kl_loss"] = beta * per_token["ref_kl"]
        loss = loss + parts["kl_loss"]
    if entropy is not None:
        per_token["entropy"] = masked(entropy, gradient=True)
    if entropy_bonus:
        parts["entropy_loss"] = -entropy_bonus * per_token["entropy"]
        loss = loss + parts["entropy_loss"]

    total, count = weights.sum(), ones.sum()
    metrics = {name: ((values * ones).sum(), count) for name, values in per_token.items()}
    metrics |= {name: ((values * weights).sum(), total) for name, values in parts.items()}
    return ((loss * weights).sum(), total), jax.lax.stop_gradient(metrics)


def supervised_loss(logp: Float[ArrayLike, "*B"], weights: Float[ArrayLike, "*B"]) -> tuple[Sums, dict[str, Sums]]:
    """`sum(weights * -logp)`: the likelihood of given replies. Values where the weight is 0 are never looked at.

    Returns `(sum, weight)` with `weight = sum(weights)`, and metrics by name: `nll`, the same pair, a mean a unit of
    weight.
    """
    weights = jnp.asarray(weights, jnp.float32)
    logp = jnp.where(weights > 0, jnp.asarray(logp, jnp.float32), 0.0)
    sums = -(weights * logp).sum(), weights.sum()
    return sums, jax.lax.stop_gradient({"nll": sums})


def _check_given(weight: float, values: object, weight_name: str, values_name: str) -> None:
    if values is None and weight:
        raise ValueError(f"expected {values_name} with {weight_name} {weight}, found none: pass it or set 0")


def _ratio_metrics(
    log_ratio: Float[Array, "*B"],
    advantages: Float[Array, "*B"],
    eps_low: float,
    eps_high: float,
    dual_clip: float | None,
) -> dict[str, Float[Array, "*B"]]:
    """The ratio, the estimate of KL(old | policy), and where a clip cut the gradient off, at each token."""
    log_ratio = _clamp(log_ratio)
    ratio = jnp.exp(log_ratio)
    flags = {
        "clip_high": (ratio > 1 + eps_high) & (advantages > 0),
        "clip_low": (ratio < 1 - eps_low) & (advantages < 0),
    }
    if dual_clip is not None:
        flags["clip_dual"] = (ratio > dual_clip) & (advantages < 0)
    return {"ratio": ratio, "old_kl": jnp.expm1(log_ratio) - log_ratio} | {
        name: flag.astype(jnp.float32) for name, flag in flags.items()
    }


def logprob_gap(
    sampler: Float[ArrayLike, "*B"], recomputed: Float[ArrayLike, "*B"], mask: Bool[ArrayLike, "*B"]
) -> dict[str, Sums]:
    """How far the sampler's log-probabilities are from the trainer's, before the first optimizer step of a batch.

    Args:
        sampler: log-probabilities of the drawn tokens, from generation.
        recomputed: the same tokens and weights in the training code.
        mask: reply tokens.

    Returns:
        `gap_abs` (mean absolute difference) and `gap_kl` (k3 estimate of KL(sampler | trainer)), each `(sum, weight)`.
    """
    mask = jnp.asarray(mask, bool)
    sampler, recomputed = (jnp.where(mask, jnp.asarray(one, jnp.float32), 0.0) for one in (sampler, recomputed))
    count = mask.sum().astype(jnp.float32)
    return {
        "gap_abs": (jnp.abs(sampler - recomputed).sum(), count),
        "gap_kl": (k3(sampler, recomputed).sum(), count),
    }
