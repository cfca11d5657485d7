"""The jitted functions of a training run with abstract arguments, and what the compiler says of each.

Axes: `N` questions, `G` rollouts.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.errors import RememError
from remem_jax.mesh import Placement
from remem_jax.model.packing import Ragged
from remem_jax.plan.hlo import collectives, matmul_flops
from remem_jax.plan.run import base_weights, by_question, bytes_a_device, engine_weights, placed, prompts, training_rows
from remem_jax.rl import step
from remem_jax.rl.memory import turn_tokens
from remem_jax.rl.setup import Run, abstract_state, engine_move
from remem_jax.rollout.generate import _decode, _fit, _plan, _prefill

INTERVAL = 8  # decode steps between two tests for the end, as on accelerators
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class EveryProcess(Placement):
    """A mesh whose rows are all here, whatever process its devices would belong to."""

    @property
    def own_shards(self) -> list[int]:
        return list(range(self.shards))


@dataclasses.dataclass
class Program:
    """A function of the run, ready to be lowered."""

    name: str
    lower: Callable[[], Any]
    live: Any
    """Arrays that exist while it runs and are no argument of it."""
    change: str
    """What to change where it does not fit."""
    calls: int = 1
    """Steps that one call makes."""
    made: Callable[[Any], None] = lambda compiled: None
    """Given the compiled program, whose outputs may be another's arguments."""


def programs(run: Run, questions: int) -> Iterator[Program]:
    """Every function with the shapes of `questions` in flight at their longest turn."""
    c, mesh = run.model.config, run.mesh
    state = abstract_state(run)
    engine = engine_weights(run)
    needs_base = run.config.lora.rank or run.config.loss.beta > 0
    base = base_weights(run) if needs_base else None
    frozen = base if run.config.lora.rank else None
    masters_and_base = (state, base)

    moments = dataclasses.replace(state, params=None)
    yield Program(
        "weight move",
        lambda: engine_move(run).lower(state.params, frozen),
        (moments, None if frozen else base),
        "more chips along fsdp, or lora.rank above 0",
    )

    fewer = "rollout.questions_in_flight, rollout.group or the agent's lengths lower, or more chips"
    started: list[Any] = []
    statics = dict(config=c, sampling=run.config.rollout.sampling, eos=c.eos_ids or (0,))

    def prefill():
        prefixes, suffixes = prompts(run, questions)
        sizes = _plan(c, prefixes, suffixes, run.agent.max_reply_tokens, EveryProcess(mesh))
        keys = jax.ShapeDtypeStruct((sizes.rows, run.config.rollout.group), jax.random.key(0).dtype)
        cut = (_fit(x, size, sizes.rows) for x, size in ((prefixes, sizes.prefix), (suffixes, sizes.suffix)))
        arrays = by_question(mesh, (*cut, keys))
        kwargs = dict(plan=sizes, backend=run.config.attention, **statics)
        shapes = jax.eval_shape(lambda params, *a: _prefill(params, *a, **kwargs), engine, *arrays)
        started.append(by_question(mesh, shapes))  # where the compiler leaves them is known once it has been through
        return _prefill.lower(engine, *arrays, **kwargs)

    def prefilled(compiled):
        started[0] = placed(started[0], compiled.output_shardings)

    yield Program("prefill", prefill, masters_and_base, fewer, made=prefilled)

    def decode():
        if not started:
            raise RememError("prefill could not be traced, which makes what decoding starts from")
        return _decode.lower(engine, started[0], jax.ShapeDtypeStruct((), jnp.int32), interval=INTERVAL, **statics)

    yield Program("decode step", decode, masters_and_base, fewer, calls=INTERVAL)

    batch = by_question(mesh, training_rows(run))
    static = dict(config=c, dtype=run.dtype, backend=run.config.attention, lora_scale=run.lora_scale)
    shorter = "memory.row_tokens and memory.token_budget lower, or more chips"
    temperature = run.config.rollout.temperature
    if run.config.rollout.old_logprobs == "recomputed":
        params, rest = state.params, (moments, None if frozen else base, engine)
        yield Program(
            "log-probs",
            lambda: step.logprobs.lower(params, batch, temperature=temperature, frozen=frozen, **static),
            rest,
            shorter,
        )
    elif run.config.loss.beta > 0:
        params = None if frozen else base
        yield Program(
            "log-probs",
            lambda: step.logprobs.lower(params, batch, temperature=temperature, frozen=frozen, **static),
            (state, engine),
            shorter,
        )
    gradients = state.params
    yield Program(
        "update",
        lambda: step.accumulate.lower(gradients, state.params, batch, objective=run.objective, frozen=frozen, **static),
        (moments, None if frozen else base, engine),
        shorter,
    )
    number = jax.ShapeDtypeStruct((), jnp.float32)
    yield Program(
        "optimizer step",
        lambda: step.apply.lower(state, gradients, number, number, optimizer=run.optimizer),
        (base, engine),
        "more chips along fsdp, or lora.rank above 0",
    )


def look(program: Program, hbm_bytes: int | None, *, fast: bool, tpu: bool) -> dict[str, Any]:
    """One entry of a plan's `functions`: memory, work and traffic of a device for one call (a step, where it loops)."""
    began = time.perf_counter()
    live = bytes_a_device(program.live)
    found: dict[str, Any] = {"name": program.name, "live_bytes": live, "fits": False}
    options = {"exec_time_optimization_effort": -1.0} if fast and tpu else None
    try:
        compiled = program.lower().compile(compiler_options=options)
    except RememError as error:
        return found | {"peak_bytes": None, "problem": str(error), "change": program.change}
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return found | _too_large(str(error), live) | {"change": program.change}
    program.made(compiled)
    memory, calls = compiled.memory_analysis(), program.calls
    own = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = own + memory.temp_size_in_bytes + live
    found |= {
        "peak_bytes": peak,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "fits": None if hbm_bytes is None else peak <= hbm_bytes,
        "compiler_flops": _analysed_flops(compiled),
        "compile_seconds": round(time.perf_counter() - began, 1),
    }
    if tpu:
        text = compiled.as_text()
        found["matmul_flops"] = matmul_flops(text) // calls
        found["collectives"] = {
            kind: {what: number / calls for what, number in of_kind.items()}
            for kind, of_kind in sorted(collectives(text).items())
        }
    if found["fits"] is False:
        found["change"] = program.change
    return found


def _analysed_flops(compiled) -> float | None:
    analysis = compiled.cost_analysis()
    return None if analysis is None else analysis.get("flops")


def _too_large(message: str, live: int) -> dict[str, Any]:
    """What the compiler tells of a program that it gives up on."""
    used = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", message) or re.search(
        r"required for HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", message
    )
    if used is None:
        return {"peak_bytes": None, "problem": "the compiler runs out of memory: " + " ".join(message.split())[:200]}
    return {
        "peak_bytes": int(float(used[1]) * _UNITS[used[2]]) + live,
        "problem": f"its own arrays take {used[1]}{used[2]} of {used[3]}{used[4]}",
    }


def question_bytes(run: Run) -> int:
    """Decoding cache of one question on the device that holds it, heads split by tensor where they divide."""
    c, tokens = run.model.config, turn_tokens(run)
    prefixes, suffixes = (Ragged(x.ids[:1], x.lengths[:1]) for x in prompts(run, 1))
    sizes = _plan(c, prefixes, suffixes, tokens["reply"], Placement(None))
    slots = sizes.prefix + run.config.rollout.group * sizes.own_slots
    tensor = run.mesh.shape["tensor"]
    heads = c.num_kv_heads // tensor if c.num_kv_heads % tensor == 0 else c.num_kv_heads
    return int(slots * 2 * c.num_layers * heads * c.head_dim * np.dtype(run.dtype).itemsize)
