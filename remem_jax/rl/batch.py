"""From a scored rollout batch to the groups that an update packs: every reply with its weights and advantage.

Host work in NumPy; what is trained on are the ids that were sampled, never text encoded again.

Axes: `N` questions, `T1` turns (the final one is last), `G` rollouts, `R` reply tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from remem_jax.agent.loop import Episode, Turn
from remem_jax.config import AgentConfig
from remem_jax.rl.config import Loss
from remem_jax.rl.losses import token_weights
from remem_jax.rl.rows import Group, Reply, TrainRows, micro_batches, pack_rows
from remem_jax.rl.scoring import Scores, place

_token_weights = jax.jit(token_weights, static_argnames=("kind", "divisor"))


@dataclasses.dataclass(frozen=True)
class MiniBatch:
    """What one optimizer step sees."""

    groups: list[Group]
    total: float
    """What the weighted sum of its losses is divided by."""


def shuffled(questions: int, size: int, seed: int, step: int) -> list[np.ndarray]:
    """Question indices of each mini-batch of a rollout batch; a function of (seed, step) alone."""
    order = np.random.default_rng([seed, step]).permutation(questions)
    return [order[first : first + size] for first in range(0, questions, size)]


def mini_batch(
    episodes: Sequence[Sequence[Episode]], scores: Scores, indices: np.ndarray, loss: Loss, agent: AgentConfig
) -> MiniBatch:
    """The groups of some questions: one a turn, the prefix once, with every rollout's suffix and reply.

    Weights and their total are those of exactly these questions, so a mini-batch is a batch of its own (METHOD 6).
    """
    turns = scores.mask.shape[1] - 1
    lengths = np.zeros((len(indices), turns + 1, scores.mask.shape[2]), np.int32)
    for row, n in enumerate(indices):
        for g, episode in enumerate(episodes[n]):
            for turn in episode.turns:
                lengths[row, place(turn.turn, turn.final, turns), g] = len(turn.reply_ids)
    mask = np.arange(agent.max_reply_tokens) < lengths[..., None]
    divisor = loss.divisor or float(scores.mask.shape[2] * (turns + 1) * agent.max_reply_tokens)
    weights, total = _token_weights(loss.average, mask, divisor=divisor)
    weights = np.asarray(weights)
    groups = []
    for row, n in enumerate(indices):
        for members in zip(*(episode.turns for episode in episodes[n]), strict=True):
            at = place(members[0].turn, members[0].final, turns)
            replies = [
                _reply(turn, weights[row, at, g], scores.advantages[n, at, g], loss.importance_sampling)
                for g, turn in enumerate(members)
            ]
            groups.append(Group(_ids(members[0].prefix_ids), tuple(replies)))
    return MiniBatch(groups, float(total))


def _reply(turn: Turn, weights: np.ndarray, advantage: float, importance: bool) -> Reply:
    return Reply(
        suffix_ids=_ids(turn.suffix_ids),
        reply_ids=turn.reply_ids,
        weights=weights[: len(turn.reply_ids)],
        advantage=float(advantage),
        logp_old=turn.logprobs,
        sampled_logp=turn.sampled_logprobs if importance else None,
    )


def _ids(ids: np.ndarray | None) -> np.ndarray:
    assert ids is not None, "rollouts keep their prompts"
    return ids


def rescored(
    batch: MiniBatch, run: Callable[[TrainRows], np.ndarray], field: str, *, token_budget: int, row_tokens: int | None
) -> MiniBatch:
    """The same mini-batch with `field` (`logp_old` or `logp_ref`) of every reply set to what `run` says of its rows.

    Args:
        run: log-probabilities `[N, M]` of a micro-batch.
    """
    found: dict[int, np.ndarray] = {}
    for groups in micro_batches(batch.groups, token_budget=token_budget, row_tokens=row_tokens):
        values = np.asarray(run(pack_rows(groups)))
        for row, group in zip(values, groups, strict=False):
            at = 0
            for reply in group.replies:
                found[id(reply)] = row[at : at + len(reply.reply_ids)]
                at += len(reply.reply_ids)
    groups = [
        Group(group.prefix_ids, tuple(dataclasses.replace(r, **{field: found[id(r)]}) for r in group.replies))
        for group in batch.groups
    ]
    return MiniBatch(groups, batch.total)


def sampler_gap(before: Sequence[MiniBatch], after: Sequence[MiniBatch]) -> dict[str, float]:
    """Mean and largest difference between the sampler's log-probabilities and the trainer's, over all reply tokens."""
    replies = [
        (a, b)
        for one, two in zip(before, after, strict=True)
        for x, y in zip(one.groups, two.groups, strict=True)
        for a, b in zip(x.replies, y.replies, strict=True)
    ]
    difference = np.abs(np.concatenate([a.logp_old - b.logp_old for a, b in replies]))  # pyright: ignore[reportOptionalOperand]
    return {"gap_abs": float(difference.mean()), "gap_max": float(difference.max())}
