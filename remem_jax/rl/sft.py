"""One step of the warm start: weighted negative log-likelihood of demonstrations, through the update of GRPO."""

import dataclasses
import time

import numpy as np

from remem_jax.observe.live import TrainScreen
from remem_jax.rl.rows import Group
from remem_jax.rl.setup import Run, learning_rate
from remem_jax.rl.step import TrainState
from remem_jax.rl.stop import StopRequest
from remem_jax.rl.update import means, optimizer_step
from remem_jax.rollout.buckets import compilations


def sft_step(
    run: Run, state: TrainState, step: int, screen: TrainScreen, stop: StopRequest
) -> tuple[TrainState, dict[str, float], None]:
    """Optimizer step `step` (from 0) on a batch of demonstrations: the new state and metrics."""
    stop.check()
    began, compiled = time.perf_counter(), compilations()
    groups, total = weighted(run.batches[step], run.config.loss.average, run.config.loss.divisor)
    rate = learning_rate(run.config, step)
    state, sums, broken = optimizer_step(run, state, groups, total, rate)
    if broken:
        screen.note(f"step {step + 1} skipped: gradient not finite in {', '.join(broken)}")
    tokens = sum(len(group.prefix_ids) + group.suffix_tokens for group in groups)
    values = means(sums)
    seconds = time.perf_counter() - began
    metrics = {f"loss/{name}": value for name, value in values.items() if name not in ("loss", "grad_norm")}
    return (
        state,
        metrics
        | {
            "loss/total": values["loss"],
            "optimizer/grad_norm": values["grad_norm"],
            "optimizer/learning_rate": rate,
            "optimizer/skipped": float(state.skipped),
            "run/compilations": float(compilations() - compiled),
            "run/tokens_per_second": tokens / seconds,
            "time/step": seconds,
        },
        None,
    )


def weighted(groups: list[Group], average: str, divisor: float | None) -> tuple[list[Group], float]:
    """Groups of one reply with the weights of an average, and its total.

    `state_mean`: every demonstration counts the same, its tokens by their own weights. `token_mean`: every token counts
    by its own weight. `constant`: the same, divided by demonstrations * `divisor` (default 1).
    """
    if average == "token_mean":
        return groups, max(float(sum(reply.weights.sum() for group in groups for reply in group.replies)), 1e-8)
    if average == "constant":
        return groups, len(groups) * (divisor or 1.0)
    scaled = []
    for group in groups:
        (reply,) = group.replies
        share = (reply.weights / max(float(reply.weights.sum()), 1e-8)).astype(np.float32)
        scaled.append(Group(group.prefix_ids, (dataclasses.replace(reply, weights=share),)))
    return scaled, float(len(groups))
