"""From episodes to rewards and advantages: texts become hit arrays on the host, the rest is the method's own formulas.

One place for the trainer, its trajectories and its metrics, so that all three tell of the same numbers.

Axes: `N` questions, `T` memory turns, `T1` = `T` + 1 (the last is the final turn), `G` rollouts, `Y` gold answers,
`A` words of an answer.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from remem_jax.agent.loop import Episode
from remem_jax.agent.words import words
from remem_jax.rl.advantages import decoupled_advantages, multi_level_advantages
from remem_jax.rl.own_reward import load_reward, own_outcome
from remem_jax.rl.rewards import (
    answer_hits,
    answer_mask,
    callback_gain,
    format_reward,
    memory_gain,
    outcome_reward,
    state_parts,
)
from remem_jax.rollout.buckets import power_of_two
from remem_jax.settings import check_types, expect, expect_one_of
from remem_jax.tokenizer import Tokenizer


@dataclass(frozen=True)
class Reward:
    """What a trajectory earns and how it becomes advantages (METHOD 4 and 5)."""

    outcome: float = 1.0
    """Weight of the outcome: the final answer equals a gold answer."""
    memory: float = 1.0
    """Weight of the memory gain: answer words that a turn brought into the memory."""
    callback: float = 1.0
    """Weight of the callback gain: answer words that only the recalled memory brought to the next turn."""
    format: float = 1.0
    """Weight of the format: a reply that keeps to the marks."""
    alpha: float = 0.8
    """Share of the outcome in the advantage; 1 is MemAgent's objective."""
    function: str | None = None
    """`my_module:my_reward`, which takes the outcome's place: see docs/own-reward.md."""
    normalise: str = "none"
    """none (the paper), std (each level by its group's deviation) or separate (each part by its own)."""

    def __post_init__(self):
        check_types(self)
        expect(0 <= self.alpha <= 1, "alpha", "a number from 0 to 1", self.alpha)
        expect_one_of("normalise", self.normalise, ("none", "std", "separate"))
        if self.function is not None:
            load_reward(self.function)


@dataclass(frozen=True)
class Scores:
    """Rewards and advantages of a rollout batch; 0 at masked places. Memory turn `t` is index `t`, the final one -1."""

    outcome: Float[np.ndarray, "N G"]
    memory: Float[np.ndarray, "N T1 G"]
    callback: Float[np.ndarray, "N T1 G"]
    format: Float[np.ndarray, "N T1 G"]
    state: Float[np.ndarray, "N T1 G"]
    """Weighted sum of the three parts."""
    mask: Bool[np.ndarray, "N T1 G"]
    advantages: Float[np.ndarray, "N T1 G"]


def place(turn: int, final: bool, turns: int) -> int:
    """Index of a turn in arrays with `turns` memory turns."""
    return turns if final else turn


def score(
    episodes: Sequence[Sequence[Episode]],
    answers: Sequence[Sequence[str]],
    reward: Reward,
    tokenizer: Tokenizer,
    *,
    writes_queries: bool,
) -> Scores:
    """Rewards and advantages of `[N][G]` episodes.

    Args:
        answers: gold answers of each question.
        writes_queries: False for agents that write no queries, whose callback gain is 0.
    """
    n, g = len(episodes), len(episodes[0])
    turns = max(len(episode.turns) - 1 for group in episodes for episode in group)
    masks = [answer_mask(gold) for gold in answers]
    y, a = (power_of_two(max(m.shape[axis] for m in masks)) for axis in (0, 1))  # few sizes, few compilations
    known = np.stack([answer_mask(gold, (y, a)) for gold in answers])

    memory_hits = np.zeros((n, turns + 1, g, y, a), bool)
    recalled_hits = np.zeros((n, turns, g, y, a), bool)
    chunk_hits = np.zeros((n, turns, y, a), bool)
    mask, valid = np.zeros((n, turns + 1, g), bool), np.zeros((n, turns + 1, g), bool)
    for i, (group, gold) in enumerate(zip(episodes, answers, strict=True)):
        held: dict[str | None, np.ndarray] = {None: np.zeros((y, a), bool)}

        def hits(text: str | None, held=held, gold=gold) -> np.ndarray:
            if text not in held:
                held[text] = answer_hits(text or "", gold, (y, a))
            return held[text]

        memory_turns = len(group[0].turns) - 1
        for t, chunk in enumerate(group[0].reading.chunks[1:memory_turns]):
            chunk_hits[i, t] = answer_hits(words(tokenizer.decode(chunk.tolist())), gold, (y, a))
        for j, episode in enumerate(group):
            for turn, after in zip(episode.turns, [*episode.turns[1:], None], strict=True):
                at = place(turn.turn, turn.final, turns)
                mask[i, at, j], valid[i, at, j] = True, turn.valid
                if after is not None:
                    memory_hits[i, at + 1, j] = hits(turn.memory)
                    if writes_queries:
                        recalled_hits[i, at, j] = hits(after.recalled)
    if reward.function is None:
        outcome = outcome_reward([[episode.answer for episode in group] for group in episodes], answers)
    else:
        outcome = own_outcome(reward.function, episodes, answers)
    held_words = (recalled_hits, memory_hits, chunk_hits, known)
    values = jax.device_get(_formulas(*held_words, outcome, valid, mask, reward=reward))
    return Scores(outcome=outcome, mask=mask, **values)


@functools.partial(jax.jit, static_argnames="reward")
def _formulas(recalled_hits, memory_hits, chunk_hits, known, outcome, valid, mask, *, reward: Reward) -> dict:
    """The rewards and advantages; after a question's last turn the hits are not read."""
    live = mask[:, :-1]
    memory = memory_gain(memory_hits, known, live)
    callback = callback_gain(recalled_hits, memory_hits, chunk_hits, known, live)
    parts = state_parts(memory, callback, jnp.where(mask, format_reward(valid), 0.0))
    weights = {"memory": reward.memory, "callback": reward.callback, "format": reward.format}
    state = sum((weights[name] * part for name, part in parts.items()), start=jnp.zeros(mask.shape, jnp.float32))
    outcome = reward.outcome * outcome
    if reward.normalise == "separate":
        advantages = decoupled_advantages(outcome, parts, mask, reward.alpha, weights=weights)
    else:
        advantages = multi_level_advantages(outcome, state, mask, reward.alpha, std=reward.normalise == "std")
    return {**parts, "state": state, "advantages": advantages}
