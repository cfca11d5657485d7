"""A process that runs google-tunix's GRPO learner step by step: one step for every line of standard input.

It answers each with a JSON line of seconds by phase, and with its versions before the first; `train_peers.py` starts
it with a Python that has google-tunix.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")

try:
    import tunix  # noqa: F401  # pyright: ignore[reportMissingImports]
except ImportError:
    sys.exit("google-tunix is not installed here: make an environment with google-tunix==0.1.7 and jax==0.10.2")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen2 import model as qwen2  # pyright: ignore[reportMissingImports]
from tunix.rl import rl_cluster  # pyright: ignore[reportMissingImports]
from tunix.rl.grpo import grpo_learner  # pyright: ignore[reportMissingImports]
from tunix.rl.rollout import base_rollout  # pyright: ignore[reportMissingImports]

# What is timed, by the cluster's method that does it.
PHASES = {
    "generate": "rollout",
    "get_ref_per_token_logps": "reference",
    "get_old_per_token_logps": "old",
    "update_actor": "update",
}


class Numbers:
    """A tokenizer for text that is ids with spaces between; its end id is none of the vocabulary's."""

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary

    def encode(self, text: str, **_) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids, **_) -> str:
        return " ".join(str(int(i)) for i in ids)

    def bos_id(self) -> int:
        return 0

    def pad_id(self) -> int:
        return 0

    def eos_id(self) -> int:
        return self.vocabulary


def decoder(sizes: dict, seed: int):
    """A Qwen2 decoder with every matrix normal(0.02), as the other sides have it."""
    config = qwen2.ModelConfig(
        num_layers=sizes["num_layers"],
        vocab_size=sizes["vocab_size"],
        embed_dim=sizes["hidden_size"],
        hidden_dim=sizes["intermediate_size"],
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_kv_heads"],
        head_dim=sizes["head_dim"],
        rope_theta=100_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
        dtype=jnp.float32,
        param_dtype=jnp.float32,
    )
    model = qwen2.Qwen2(config, rngs=nnx.Rngs(0))
    numbers = np.random.default_rng(seed)

    def fresh(x):
        return jnp.asarray(0.02 * numbers.normal(size=x.shape), x.dtype) if x.ndim > 1 else x

    nnx.update(model, jax.tree.map(fresh, nnx.state(model, nnx.Param)))
    return model


def cluster_of(settings: argparse.Namespace, sizes: dict):
    """Actor, reference and sampler on one device."""
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, b2=0.999, weight_decay=0.01))
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optimizer,
        eval_every_n_steps=10**9,
        max_steps=10**9,
        mini_batch_size=1,
        train_micro_batch_size=1,
        rollout_micro_batch_size=1,
        compute_logps_micro_batch_size=1,
    )
    rollout = base_rollout.RolloutConfig(
        max_tokens_to_generate=settings.new,
        max_prompt_length=settings.prompt,
        kv_cache_size=settings.prompt + settings.new,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        eos_tokens=[sizes["vocab_size"]],
    )
    return rl_cluster.RLCluster(
        actor=decoder(sizes, 0),
        reference=decoder(sizes, 0),
        tokenizer=Numbers(sizes["vocab_size"]),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=training,
            rollout_config=rollout,
        ),
    )


def timed(cluster, seconds: dict[str, float], new: int) -> None:
    """Puts a clock round each of the cluster's methods in `PHASES`; all wait for the device."""

    def wrap(method, phase: str):
        def run(*args, **kwargs):
            began = time.perf_counter()
            out = method(*args, **kwargs)
            jax.block_until_ready(nnx.state(cluster.actor_trainer.model) if phase == "update" else jax.tree.leaves(out))
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - began
            if phase == "rollout":
                assert all(len(ids) == new for ids in out.tokens), "a reply ended early"
            return out

        return run

    for name, phase in PHASES.items():
        setattr(cluster, name, wrap(getattr(cluster, name), phase))


def even_share(prompts, completions, **_) -> list[float]:
    """The reward: share of even ids."""
    return [float(np.mean([int(word) % 2 == 0 for word in text.split()])) for text in completions]


def prompts_on_demand(answers, seconds: dict[str, float], settings: argparse.Namespace, sizes: dict) -> Iterator[dict]:
    """Says what the last step took, waits for a line, gives the next prompt; ends with the input."""
    numbers = np.random.default_rng(0)
    said = {name: importlib.metadata.version(name) for name in ("google-tunix", "jax", "flax")}
    while True:
        print(json.dumps(said), file=answers, flush=True)
        if not sys.stdin.readline():
            return
        seconds.clear()
        began = time.perf_counter()
        ids = numbers.integers(1, sizes["vocab_size"], settings.prompt)
        yield {"prompts": np.array([" ".join(map(str, ids))])}
        said = {**seconds, "all": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", required=True, help="the decoder's sizes, JSON")
    parser.add_argument("--group", type=int, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--new", type=int, required=True)
    parser.add_argument("--beta", type=float, required=True)
    settings = parser.parse_args()
    sizes = json.loads(settings.sizes)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints goes where errors go
    cluster, seconds = cluster_of(settings, sizes), {}
    timed(cluster, seconds, settings.new)
    algorithm = grpo_learner.GRPOConfig(num_generations=settings.group, num_iterations=1, beta=settings.beta)
    learner = grpo_learner.GRPOLearner(rl_cluster=cluster, reward_fns=even_share, algo_config=algorithm)
    learner.train(prompts_on_demand(answers, seconds, settings, sizes))


if __name__ == "__main__":
    main()
