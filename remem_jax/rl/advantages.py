"""Advantages on two levels: how good a rollout's answer was, and how good each of its turns was, within their groups.

A group is an axis: rollouts of one question (outcome), rollouts of one question at one turn (state).

Axes: `N` questions, `T1` turns (`T` memory turns and, last, the final one), `G` rollouts of a question.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

STD_EPSILON = 1e-6


def centre(
    values: Float[ArrayLike, "*B G"], live: Bool[ArrayLike, "*B G"], *, std: bool = False
) -> Float[Array, "*B G"]:
    """`value - mean of the live values of its group`, the groups being the last axis.

    Args:
        values: anything at places that are not live, also nan.
        live: the members of each group.
        std: also divide by the group's standard deviation (of a sample: n - 1).

    Returns:
        Float32; 0 at places that are not live, in groups of fewer than two and in groups of equal values.
    """
    live = jnp.asarray(live, bool)
    values = jnp.where(live, jnp.asarray(values, jnp.float32), 0.0)
    count = live.sum(-1, keepdims=True)
    mean = values.sum(-1, keepdims=True) / jnp.maximum(count, 1).astype(jnp.float32)
    # Unequal values also mean at least two members. A mean rounds: without this test equal values would leave a rest,
    # which the standard deviation blows up.
    high = jnp.where(live, values, -jnp.inf).max(-1, keepdims=True)
    low = jnp.where(live, values, jnp.inf).min(-1, keepdims=True)
    centred = jnp.where(live & (high > low), values - mean, 0.0)
    if not std:
        return centred
    variance = (centred**2).sum(-1, keepdims=True) / jnp.maximum(count - 1, 1).astype(jnp.float32)
    return centred / (jnp.sqrt(variance) + STD_EPSILON)


def _mix(outcome: Float[Array, "N G"], state: Float[Array, "N T1 G"], mask: Bool[Array, "N T1 G"], alpha: float):
    return jnp.where(mask, alpha * outcome[:, None] + (1 - alpha) * state, 0.0)


def multi_level_advantages(
    outcome: Float[ArrayLike, "N G"],
    state: Float[ArrayLike, "N T1 G"],
    mask: Bool[ArrayLike, "N T1 G"],
    alpha: float = 0.8,
    *,
    std: bool = False,
) -> Float[Array, "N T1 G"]:
    """`A = alpha * A_outcome + (1 - alpha) * A_state`, both centred on the live members of their group.

    Outcome: live rollouts (those with a live final turn) of the question. State: live rollouts at the same turn of the
    same question; the final turn is a group of its own. Paper: multi-level GRPO; `alpha = 1` is MemAgent's objective.

    Args:
        outcome: reward of each answer.
        state: reward of each turn.
        mask: live turns of live rollouts; index -1 is the final turn.
        alpha: share of the outcome.
        std: divide each level by its group's standard deviation; off in the paper.

    Returns:
        Float32; 0 at masked places.
    """
    mask = jnp.asarray(mask, bool)
    return _mix(centre(outcome, mask[:, -1], std=std), centre(state, mask, std=std), mask, alpha)


def decoupled_advantages(
    outcome: Float[ArrayLike, "N G"],
    parts: Mapping[str, Float[ArrayLike, "N T1 G"]],
    mask: Bool[ArrayLike, "N T1 G"],
    alpha: float = 0.8,
    *,
    weights: Mapping[str, float] | None = None,
) -> Float[Array, "N T1 G"]:
    """Multi-level advantages with every part of the state reward normalised by itself before they are added.

    Divided by one common deviation, rewards of several parts collapse: rare parts drown in frequent ones. Here each
    part is centred and divided by its own group's deviation, the weighted sum is divided by its root mean square over
    the live places of the batch (its scale then does not grow with the number of parts), and so is the outcome. After
    GDPO (arXiv 2601.05242), applied on each level.

    Args:
        outcome: reward of each answer.
        parts: rewards of each turn by name, as from `rewards.state_parts`.
        mask: live turns of live rollouts; index -1 is the final turn.
        alpha: share of the outcome.
        weights: weight of a part, 1 where absent.

    Returns:
        Float32; 0 at masked places.
    """
    mask = jnp.asarray(mask, bool)
    weights = weights or {}
    unknown = sorted(set(weights) - set(parts))
    if unknown:
        raise ValueError(f"expected weights of {sorted(parts)}, found one of {unknown}: remove it")
    state = sum(
        (weights.get(name, 1.0) * centre(part, mask, std=True) for name, part in parts.items()),
        start=jnp.zeros(mask.shape, jnp.float32),
    )
    outcome = centre(outcome, mask[:, -1], std=True)
    return _mix(_unit_scale(outcome, mask[:, -1]), _unit_scale(state, mask), mask, alpha)


def _unit_scale(values: Float[Array, "*B"], live: Bool[Array, "*B"]) -> Float[Array, "*B"]:
    """Root mean square 1 over the live places; their mean is 0 already, group by group."""
    square = jnp.where(live, values**2, 0.0).sum() / jnp.maximum(live.sum(), 1).astype(jnp.float32)
    return values / (jnp.sqrt(square) + STD_EPSILON)
