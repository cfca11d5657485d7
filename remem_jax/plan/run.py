"""The run of a configuration as shapes alone: no weights, no data, no device; and the longest turn that it allows.

Axes: `N` questions, `G` rollouts, `T` tokens of a row.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.agent.prompts import LOOPLESS
from remem_jax.errors import RememError
from remem_jax.mesh import parameter_shardings, sharding
from remem_jax.model.config import ModelConfig, from_hf, parameter_tree
from remem_jax.model.load import Model, load_model
from remem_jax.model.packing import Ragged
from remem_jax.plan.known import MODELS, known_model
from remem_jax.rl.config import TrainConfig, agent_config
from remem_jax.rl.memory import turn_tokens
from remem_jax.rl.rows import Group, Reply, TrainRows, pack_rows, row_size, split_group
from remem_jax.rl.setup import Run
from remem_jax.rl.step import Objective, Optimizer
from remem_jax.rollout.buckets import power_of_two


class _Lengths:
    """Stands for a tokenizer where a model has none here: only how many tokens a text has, four characters each."""

    vocab_size, eos_ids, special_ids, bos_id, fingerprint = 1, (0,), frozenset(), None, "lengths"

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [0] * math.ceil(len(text) / 4)

    def chat(self) -> tuple[list[int], list[int]]:
        return [0] * 8, [0] * 8


def find_model(name: str, dtype: str) -> tuple[Model, str | None]:
    """The model without weights, and a note where its tokenizer is guessed.

    `name` is a folder with config.json (weights or not), a config.json, what `load_model` takes, or a known Qwen2.5.
    """
    path = Path(name).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if file.suffix == ".json" and file.is_file():
        try:
            config: ModelConfig | None = from_hf(json.loads(file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise RememError(f"{file}: expected JSON, found: {error}") from None
        has_weights = any(file.parent.glob("*.safetensors")) and path.is_dir()
    else:
        config, has_weights = known_model(name), path.exists()
    if has_weights:
        model = load_model(path, dtype, weights=False)
        if model.tokenizer is not None:
            return model, None
        config = model.config
    if config is None:
        raise RememError(
            f"model: expected a folder with config.json, a config.json or one of {', '.join(MODELS)}, found {name}"
        )
    note = "no tokenizer at hand: prompt texts are taken as a token for every four characters"
    return Model(config, {}, _Lengths(), jnp.dtype(dtype), path), note  # pyright: ignore[reportArgumentType]


def abstract_run(config: TrainConfig, mesh, dtype: str, backend: str) -> tuple[Run, tuple[str, ...]]:
    """A `Run` that has everything but data and weights, and notes."""
    if config.algorithm != "grpo":
        raise RememError(f"algorithm: a plan is made for grpo, found {config.algorithm}")
    model, note = find_model(config.model, dtype)
    agent, _ = agent_config(config, model.path)
    if agent.agent in LOOPLESS:
        raise RememError(f"agent.agent: a plan is made for agents that read in turns, found {agent.agent}")
    loss, adam = config.loss, config.optimizer
    shared = {f.name for f in dataclasses.fields(Objective)} & {f.name for f in dataclasses.fields(loss)}
    run = Run(
        config=dataclasses.replace(config, attention=backend),
        agent=agent,
        model=model,
        mesh=mesh,
        dtype=dtype,
        batches=None,  # pyright: ignore[reportArgumentType]
        validation=[],
        objective=Objective(temperature=config.rollout.temperature, **{name: getattr(loss, name) for name in shared}),
        optimizer=Optimizer(adam.b1, adam.b2, adam.eps, adam.weight_decay, adam.clip_norm),
    )
    return run, (note,) if note else ()


def batch_shards(mesh) -> int:
    """Parts that arrays with questions are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def placed(tree: Any, places: Any) -> Any:
    """Shapes with shardings."""
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places)


def by_question(mesh, tree: Any) -> Any:
    """Shapes of a tree whose arrays with questions first are split by them; single numbers are everywhere."""

    def one(x):
        axes = ["batch"] + [None] * (x.ndim - 1) if x.ndim else []
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding(mesh, axes))

    return jax.tree.map(one, tree)


def engine_weights(run: Run) -> Any:
    """Shapes of the weights that decode."""
    return _weights(run, stacked=False, decoding=True)


def base_weights(run: Run) -> Any:
    """Shapes of the frozen base or the reference."""
    return _weights(run, stacked=True, decoding=False)


def _weights(run: Run, *, stacked: bool, decoding: bool) -> Any:
    c = run.model.config
    specs = parameter_tree(c, stacked=stacked)
    shapes = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.dtype(run.dtype)), specs)
    return placed(shapes, parameter_shardings(run.mesh, specs, head_dim=c.head_dim, decoding=decoding))


def prompts(run: Run, questions: int) -> tuple[Ragged, Ragged]:
    """Prefixes and suffixes, NumPy, of `questions` at their longest memory turn."""
    tokens, group = turn_tokens(run), run.config.rollout.group

    def full(*shape: int) -> Ragged:
        return Ragged(np.zeros(shape, np.int32), np.full(shape[:-1], shape[-1], np.int32))  # pyright: ignore

    return full(questions, tokens["prefix"]), full(questions, group, tokens["suffix"])


def pieces(run: Run) -> list[Group]:
    """One question's longest turn, cut to what a row holds."""
    tokens, memory = turn_tokens(run), run.config.memory
    zeros = np.zeros(tokens["reply"], np.float32)
    importance = zeros if run.config.loss.importance_sampling else None
    reference = zeros if run.config.loss.beta > 0 else None
    reply = Reply(
        np.zeros(tokens["suffix"], np.int32), zeros.astype(np.int32), zeros, 0.0, zeros, importance, reference
    )
    group = Group(np.zeros(tokens["prefix"], np.int32), (reply,) * run.config.rollout.group)
    return split_group(group, min(memory.token_budget, memory.row_tokens or memory.token_budget))


def training_rows(run: Run) -> TrainRows:
    """A micro-batch: as many full rows a shard as the token budget holds, at least one."""
    piece = pieces(run)[0]
    tokens = row_size(len(piece.prefix_ids), piece.suffix_tokens)[1]
    fitting = max(run.config.memory.token_budget // tokens, 1)
    shards = batch_shards(run.mesh)
    return pack_rows([piece] * (power_of_two(fitting + 1) // 2 * shards), shards=shards)


def bytes_a_device(tree: Any) -> int:
    """Bytes that one device holds of shapes with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize
        for x in jax.tree.leaves(tree)
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    )
