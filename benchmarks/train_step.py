"""One GRPO step of this package on random prompts, from the parts that `remem train` is made of, each phase timed.

Rollout, log-probabilities of the reference policy, update: nothing but the reward is made up.

Axes: `N` questions, `G` rollouts of one, `R` reply tokens.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.config import Sampling
from remem_jax.model.config import ModelConfig
from remem_jax.model.load import Model, init_params, unstack_layers
from remem_jax.rl.advantages import centre
from remem_jax.rl.batch import MiniBatch, rescored
from remem_jax.rl.rows import Group, Reply, TrainRows, micro_batches, pack_rows
from remem_jax.rl.step import (
    Objective,
    Optimizer,
    TrainState,
    accumulate,
    apply,
    init_state,
    logprobs,
    zeros_like,
)
from remem_jax.rollout import generate, row_keys

SAMPLING = Sampling(temperature=1.0, top_p=1.0)
OPTIMIZER = Optimizer()
RATE = 1e-4
TOKEN_BUDGET = 16384

Prompts = tuple[Sequence[Sequence[int]], Sequence[Sequence[Sequence[int]]]]
"""Prefixes `[N]` and suffixes `[N][G]`, as `generate` takes them."""


def decoder(**sizes) -> ModelConfig:
    """A Qwen2 decoder with tied embeddings whose replies never end before their limit."""
    fixed: dict[str, Any] = dict(
        model_type="qwen2", rms_norm_eps=1e-6, rope_scaling=None, tie_embeddings=True, qkv_bias=True
    )
    fixed |= dict(rope_theta=1e5, o_bias=False, qk_norm=False, max_positions=8192, eos_ids=())
    return ModelConfig(**fixed | sizes)


@jax.jit
def engine_weights(params: dict) -> dict:
    """Weights in the form that decoding takes."""
    return unstack_layers(params)


@dataclasses.dataclass
class Trainer:
    """A policy in training beside its reference."""

    config: ModelConfig
    state: TrainState
    reference: dict
    objective: Objective

    @classmethod
    def fresh(cls, config: ModelConfig, *, beta: float) -> "Trainer":
        """Small random weights: every token is about as likely as any other, so replies of a group differ."""
        params = init_params(config, jax.random.key(0), stacked=True)
        return cls(config, init_state(params, OPTIMIZER), params, Objective(beta=beta))

    def step(self, prompts: Prompts, new: int, seed: int) -> dict[str, float]:
        """Seconds of each phase of one step on replies of `new` tokens."""
        began = time.perf_counter()
        replies, logp = self.rollout(prompts, new, seed)
        rolled = time.perf_counter()
        batch = self.referenced(batch_of(prompts, replies, logp))
        scored = time.perf_counter()
        self.update(batch)
        done = time.perf_counter()
        parts = {"rollout": rolled - began, "reference": scored - rolled, "update": done - scored}
        return parts | {"all": done - began}

    def rollout(self, prompts: Prompts, new: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Sampled ids and their log-probabilities, `[N, G, R]`."""
        model = Model(self.config, engine_weights(self.state.params), None, jnp.dtype("float32"), Path())
        n, g = len(prompts[1]), len(prompts[1][0])
        indices = (np.arange(n, dtype=np.uint32), np.arange(g, dtype=np.uint32), np.zeros(n, np.int32))
        keys = row_keys(seed, 0, *map(jnp.asarray, indices))
        out = generate(model, *prompts, SAMPLING, max_new_tokens=new, keys=keys, eos_ids=())
        assert (out.lengths == new).all()
        return out.ids, out.logprobs

    def referenced(self, batch: MiniBatch) -> MiniBatch:
        """The batch with the reference policy's log-probabilities; as it is where no loss asks for them."""
        if self.objective.beta == 0:
            return batch

        def run(rows: TrainRows) -> np.ndarray:
            return np.asarray(logprobs(self.reference, rows, config=self.config, temperature=1.0))

        return rescored(batch, run, "logp_ref", token_budget=TOKEN_BUDGET, row_tokens=None)

    def update(self, batch: MiniBatch) -> None:
        """One optimizer step, waited for."""
        rows = [pack_rows(groups) for groups in micro_batches(batch.groups, token_budget=TOKEN_BUDGET)]
        self.update_on(rows, batch.total)

    def update_on(self, rows: Sequence[TrainRows], total: float) -> None:
        """The same on rows that are packed already, one micro-batch each."""
        gradients = zeros_like(self.state.params)
        for one in rows:
            gradients, _, _ = accumulate(
                gradients, self.state.params, one, config=self.config, objective=self.objective
            )
        self.state, metrics = apply(self.state, gradients, jnp.float32(total), jnp.float32(RATE), optimizer=OPTIMIZER)
        assert bool(metrics["finite"].all())  # waits for the device


def batch_of(prompts: Prompts, replies: np.ndarray, logp: np.ndarray) -> MiniBatch:
    """Groups of an update; the reward of a reply is its share of even ids."""
    rewards = (replies % 2 == 0).mean(axis=-1)
    advantages = np.asarray(centre(rewards, np.ones(rewards.shape, bool)))
    ones = np.ones(replies.shape[-1], np.float32)
    groups = [
        Group(
            np.asarray(prefix, np.int32),
            tuple(
                Reply(np.asarray(suffix, np.int32), ids, ones, float(advantage), logp_old=old)
                for suffix, ids, advantage, old in zip(*of_group, strict=True)
            ),
        )
        for prefix, *of_group in zip(*prompts, replies, advantages, logp, strict=True)
    ]
    return MiniBatch(groups, float(replies.size))


def random_ids(rng: np.random.Generator, size: int, config: ModelConfig) -> list[int]:
    """So many ids of the vocabulary."""
    return rng.integers(1, config.vocab_size, size).tolist()
