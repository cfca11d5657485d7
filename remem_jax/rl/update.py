"""One optimizer step from a list of groups: micro-batches, the gradient's sum, AdamW, and metrics as plain numbers.

The only loop between packed rows and the jitted step, for GRPO and the warm start alike.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.mesh import placement_of
from remem_jax.model.transformer import Params
from remem_jax.rl.memory import out_of_memory
from remem_jax.rl.rows import Group, micro_batches, pack_rows
from remem_jax.rl.setup import Run
from remem_jax.rl.step import TrainState, accumulate, apply, zeros_like


@functools.cache
def _zeros_like(leaves: tuple, structure: Any) -> Any:
    """One program, where each shape would be one; every gradient lies where its parameter does."""
    return jax.jit(zeros_like, out_shardings=jax.tree.unflatten(structure, leaves))


def _zeros(params: Params) -> Params:
    leaves, structure = jax.tree.flatten(params)
    return _zeros_like(tuple(leaf.sharding for leaf in leaves), structure)(params)


def optimizer_step(
    run: Run, state: TrainState, groups: Sequence[Group], total: float, rate: float
) -> tuple[TrainState, dict[str, tuple[float, float]], list[str]]:
    """The state after one step, metrics as (sum, weight), and the parameters whose gradient was not finite.

    Args:
        total: what the weighted sum of all losses is divided by.
        rate: learning rate.

    Raises:
        RememError: the device is out of memory; it names what to lower.
    """
    memory, placement = run.config.memory, placement_of(state.params)
    with out_of_memory("update", "memory.token_budget", memory.token_budget):
        gradients, collected = _zeros(state.params), []
        for micro in micro_batches(groups, token_budget=memory.token_budget, row_tokens=memory.row_tokens):
            gradients, (value, _), metrics = accumulate(
                gradients,
                state.params,
                placement.put(pack_rows(micro, shards=len(placement.own_shards))),
                config=run.model.config,
                objective=run.objective,
                dtype=run.dtype,
                backend=run.config.attention,
                frozen=run.frozen,
                lora_scale=run.lora_scale,
            )
            collected.append(metrics | {"loss": (value, jnp.float32(0))})
        state, applied = apply(state, gradients, jnp.float32(total), jnp.float32(rate), optimizer=run.optimizer)
        collected, applied = jax.device_get((collected, applied))
    sums = add_up(collected)
    sums["loss"] = (sums["loss"][0], total)
    sums["grad_norm"] = (float(applied["grad_norm"]), 1.0)
    return state, sums, _not_finite(state, applied["finite"])


def add_up(parts: Sequence[dict]) -> dict[str, tuple[float, float]]:
    """(sum, weight) of each metric over micro-batches or steps."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: (
            float(sum(float(part[name][0]) for part in parts if name in part)),
            float(sum(float(part[name][1]) for part in parts if name in part)),
        )
        for name in names
    }


def means(sums: dict[str, tuple[float, float]]) -> dict[str, float]:
    """sum / weight of each metric; 0 for a weight of 0."""
    return {name: value / weight if weight else 0.0 for name, (value, weight) in sums.items()}


def _not_finite(state: TrainState, finite: np.ndarray) -> list[str]:
    paths = jax.tree_util.tree_flatten_with_path(state.params)[0]
    return [
        "/".join(str(getattr(key, "key", key)) for key in path)
        for (path, _), ok in zip(paths, finite, strict=True)
        if not ok
    ]
