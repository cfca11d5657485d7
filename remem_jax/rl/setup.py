"""What a training run is made of before its first step: model, agent, data, state on its mesh, each checked in turn.

Axes: `L` layers.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from remem_jax.agent.loop import Agent
from remem_jax.agent.reading import question_ids
from remem_jax.config import AGENT_FILE, AgentConfig, Sampling, agent_json
from remem_jax.data.pipeline import Batches, Example, make_example, question_texts
from remem_jax.errors import RememError
from remem_jax.mesh import check_mesh, make_mesh, parameter_shardings
from remem_jax.model import load_model
from remem_jax.model.attention import not_here, why_not
from remem_jax.model.config import parameter_tree, to_hf
from remem_jax.model.hub import resolve_model
from remem_jax.model.load import Model, unstack_layers
from remem_jax.paths import local
from remem_jax.rl import lora
from remem_jax.rl.config import TrainConfig, agent_config
from remem_jax.rl.demonstrations import read_demonstrations
from remem_jax.rl.rows import Group
from remem_jax.rl.step import Objective, Optimizer, TrainState, init_state
from remem_jax.tokenizer import tokenizer_files


@dataclasses.dataclass
class Run:
    """A run ready to start; what changes while it runs are the state and the step, which are not here."""

    config: TrainConfig
    agent: AgentConfig
    """Settings of the agent, its sampling that of validation and use."""
    model: Model
    """Configuration and tokenizer; `params` is empty."""
    mesh: Mesh
    dtype: str
    batches: Batches
    """Of examples (grpo) or of groups (sft)."""
    validation: list[Example]
    objective: Objective
    optimizer: Optimizer
    base: dict | None = None
    """Weights that are not trained, in the compute dtype: base of adapters, reference policy, or None."""
    notes: tuple[str, ...] = ()
    """What the user should know."""
    in_flight: int = 1
    """Questions of a wave, each with all its rollouts."""

    @property
    def frozen(self) -> dict | None:
        """The base of the adapters; None when all weights are trained."""
        return self.base if self.config.lora.rank else None

    @property
    def lora_scale(self) -> float:
        """Factor of the adapters' output."""
        return self.config.lora.alpha / self.config.lora.rank if self.config.lora.rank else 1.0

    def player(self, params: dict, sampling: Sampling | None = None) -> Agent:
        """An agent that plays with `params` of `engine_params`; `sampling` in place of the agent's own."""
        settings = self.agent if sampling is None else dataclasses.replace(self.agent, sampling=sampling)
        return Agent(dataclasses.replace(self.model, params=params), settings, attention=self.config.attention)


def look(config: TrainConfig) -> tuple[Model, AgentConfig, tuple[str, ...]]:
    """The model without its weights and the agent's settings, with what the user should know about them."""
    root = resolve_model(config.model)
    model = load_model(root, weights=False)
    if model.tokenizer is None:
        raise RememError(f"{config.model} holds no tokenizer: put tokenizer.json or tokenizer.model beside the weights")
    agent, trained = agent_config(config, root)
    notes = []
    if trained and config.agent:
        changed = ", ".join(config.agent)
        notes.append(f"agent settings in place of the model's own remem.json: {changed}")
    return model, agent, tuple(notes)


def prepare_run(config: TrainConfig, *, weights: bool = True) -> Run:
    """Everything but the state; cheap checks come before weights are read, which `weights` False leaves out.

    Raises RememError for whatever does not fit: files, fields, lengths, mesh.
    """
    model, agent, notes = look(config)
    dtype = config.dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    if config.attention is not None and (reason := why_not(config.attention, tokens=128, dtype=jnp.dtype(dtype))):
        raise RememError(f"attention: {reason}")
    if weights and config.attention is not None and (reason := not_here(config.attention)):
        raise RememError(f"attention: {reason}")
    mesh = make_mesh(config.mesh)
    check_mesh(mesh, model.config, questions=config.rollout.questions if config.algorithm == "grpo" else None)
    model = dataclasses.replace(model, dtype=jnp.dtype(dtype))
    batches, validation = _data(config, model, agent)
    loss, adam = config.loss, config.optimizer
    run = Run(
        config=config,
        agent=agent,
        model=model,
        mesh=mesh,
        dtype=dtype,
        batches=batches,
        validation=validation,
        objective=Objective(
            kind="policy" if config.algorithm == "grpo" else "sft",
            temperature=config.rollout.temperature if config.algorithm == "grpo" else 1.0,
            eps_low=loss.eps_low,
            eps_high=loss.eps_high,
            dual_clip=loss.dual_clip,
            beta=loss.beta,
            importance_cap=loss.importance_cap,
            entropy_bonus=loss.entropy_bonus,
        ),
        optimizer=Optimizer(adam.b1, adam.b2, adam.eps, adam.weight_decay, adam.clip_norm),
        notes=notes,
    )
    needs_reference = config.algorithm == "grpo" and loss.beta > 0
    if weights and (config.lora.rank or needs_reference):
        run.base = load_model(
            model.path,
            dtype,
            stacked=True,
            shardings=functools.partial(parameter_shardings, mesh, head_dim=model.config.head_dim),
        ).params
    return run


def plain(value: Any) -> Any:
    """Nested settings as YAML and JSON know them."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple | list) else value


def _data(config: TrainConfig, model: Model, agent: AgentConfig) -> tuple[Batches, list[Example]]:
    blocks = Agent(model, agent).blocks
    context, cache = model.config.max_positions, config.data.token_cache

    def example(record) -> Example:
        return make_example(record, model.tokenizer, agent, blocks, context, cache)  # pyright: ignore[reportArgumentType]

    if config.data.documents is not None and not any(
        path is not None and local(path).is_dir() for path in (config.data.train, config.data.validation)
    ):
        raise RememError(
            f"data.documents: expected none with files of questions, found {config.data.documents}: it is for folders "
            "of remem data build"
        )
    validation: list[Example] = []
    if config.data.validation is not None:
        records = config.data.questions(config.data.validation)[: config.validation.questions]
        validation = [example(record) for record in records]
    if config.algorithm == "sft":
        groups = read_demonstrations(config.data.train, model.tokenizer, agent, blocks, context)  # pyright: ignore[reportArgumentType]
        return Batches(groups, config.optimizer.mini_batch, config.seed, _same), validation
    records = config.data.questions(config.data.train)
    example(records[0])  # lengths that do not fit are told now
    for name, text in question_texts(records):
        if 4 * len(text) > agent.question_tokens:  # a character has at most four bytes, so four tokens
            _check_question(name, text, model, agent)
    grouped = config.data.like_lengths > 1
    batches = Batches(
        records,
        config.rollout.questions,
        config.seed,
        example,
        workers=config.data.workers,
        lengths=[sum(len(p.text) for p in record.paragraphs) for record in records] if grouped else None,
        window=config.data.like_lengths,
    )
    return batches, validation


def _check_question(name: str, text: str, model: Model, agent: AgentConfig) -> None:
    try:
        question_ids(model.tokenizer, agent, text)  # pyright: ignore[reportArgumentType]
    except RememError as error:
        raise RememError(f"question {name}: {error}") from None


def _same(group: Group) -> Group:
    return group


def trained_specs(run: Run) -> dict:
    """`Spec`s of the trained tree: stacked parameters, or adapters."""
    if run.config.lora.rank:
        return lora.adapter_specs(run.model.config, run.config.lora.rank, run.config.lora.targets)
    return parameter_tree(run.model.config, stacked=True)


def abstract_state(run: Run) -> TrainState:
    """Shapes, dtypes and shardings of the state: what a checkpoint is restored to."""
    shardings = parameter_shardings(run.mesh, trained_specs(run), head_dim=run.model.config.head_dim)
    shapes = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32), trained_specs(run))
    state = jax.eval_shape(lambda params: init_state(params, run.optimizer), shapes)
    everywhere = NamedSharding(run.mesh, PartitionSpec())
    moments = optax.tree_utils.tree_map_params(
        run.optimizer.transformation(),
        lambda _, own: own,
        state.moments,
        shardings,
        transform_non_params=lambda _: everywhere,
    )
    places = TrainState(shardings, moments, everywhere, everywhere)  # pyright: ignore[reportArgumentType]
    return jax.tree.map(
        lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place), state, places
    )


def fresh_state(run: Run) -> TrainState:
    """The state before the first step, made where it belongs."""
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(run))
    make = jax.jit(lambda params: init_state(params, run.optimizer), out_shardings=places)
    if run.config.lora.rank:
        settings = run.config.lora
        start = functools.partial(lora.init, run.model.config, rank=settings.rank, targets=settings.targets)
        adapters = jax.jit(start, out_shardings=places.params)(jax.random.key(run.config.seed))
        return make(adapters)
    shardings = functools.partial(parameter_shardings, run.mesh, head_dim=run.model.config.head_dim)
    return make(load_model(run.model.path, "float32", stacked=True, shardings=shardings).params)


def engine_params(run: Run, state: TrainState) -> dict:
    """Weights for decoding: adapters merged, layers unstacked, in the compute dtype, split by tensor only."""
    return engine_move(run)(state.params, run.frozen)


def engine_move(run: Run) -> Any:
    """The jitted function of trained and frozen parameters that makes them."""
    config = run.model.config
    places = parameter_shardings(run.mesh, parameter_tree(config), head_dim=config.head_dim, decoding=True)
    leaves, structure = jax.tree.flatten(places)
    scale = run.lora_scale if run.config.lora.rank else None
    return _move_to_engine(tuple(leaves), structure, scale, run.dtype)


@functools.cache
def _move_to_engine(leaves: tuple, structure: Any, scale: float | None, dtype: str) -> Any:
    """The jitted move to these shardings, compiled once; `scale` None is without adapters."""

    def move(params, frozen):
        whole = params if scale is None else lora.merge(frozen, params, scale)
        return unstack_layers(jax.tree.map(lambda x: x.astype(dtype), whole))

    return jax.jit(move, out_shardings=jax.tree.unflatten(structure, leaves))


def model_files(run: Run) -> dict[str, bytes | Path]:
    """Small files that lie in every checkpoint and export: remem.json, config.json, the tokenizer's."""
    return {
        **tokenizer_files(run.model.path),
        "config.json": json.dumps(to_hf(run.model.config), indent=2).encode(),
        AGENT_FILE: agent_json(run.agent).encode(),
    }


def learning_rate(config: TrainConfig, step: int) -> float:
    """Rate of 0-based step `b`: `lr * min(1, (b + 1) / warmup)`, then constant or a cosine to the last step."""
    o = config.optimizer
    if step < o.warmup or o.schedule == "constant":
        return o.learning_rate * min(1.0, (step + 1) / max(o.warmup, 1))
    share = (step - o.warmup) / max(config.steps - 1 - o.warmup, 1)
    return o.final_learning_rate + (o.learning_rate - o.final_learning_rate) * 0.5 * (1 + math.cos(math.pi * share))


def lines_that_differ(old: dict, new: dict) -> Sequence[str]:
    """Names of settings whose values differ between a checkpoint's configuration and this run's."""
    found = []
    for name in sorted(set(old) | set(new)):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += [f"{name}.{inner}" for inner in lines_that_differ(a, b)]
        elif a != b:
            found.append(name)
    return found
