"""The process that compiles for a plan, started by `make_plan` with the environment that it needs.

Reads a request as JSON from standard input; writes JSON lines: `{"progress": text}`, at the end `plan` or `error`.
"""

import contextlib
import importlib.metadata
import json
import os
import sys
from typing import Any

import jax

from remem_jax.errors import RememError
from remem_jax.mesh import check_mesh, make_mesh
from remem_jax.plan import costs
from remem_jax.plan.known import Chip, chip_of
from remem_jax.plan.programs import look, programs
from remem_jax.plan.run import abstract_run, base_weights, batch_shards, bytes_a_device, engine_weights, training_rows
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.memory import turn_tokens
from remem_jax.rl.setup import abstract_state
from remem_jax.settings import load_config


def devices_of(topology: str) -> list[Any]:
    """Devices of a named slice; raises RememError where libtpu is missing or knows no such slice."""
    try:
        importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        raise RememError("a plan for a TPU needs libtpu: install the extra tpu, remem_jax[tpu]") from None
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).split("\n")[0].removeprefix("INVALID_ARGUMENT: ")
        raise RememError(f"topology: expected a slice that libtpu knows, found {topology}: {reason}") from None


def plan(request: dict[str, Any], tell) -> dict[str, Any]:
    """The plan of a request; `tell` is given a line before each function is compiled."""
    config = load_config(TrainConfig, request["config"], request["overrides"])
    topology, chunks = request["topology"], request["chunks"]
    chip: Chip | None = chip_of(topology) if topology else None
    devices = devices_of(topology) if topology else jax.devices()
    mesh = make_mesh(config.mesh, devices)
    dtype = config.dtype or ("bfloat16" if chip else "float32")
    backend = config.attention or ("splash" if chip else "blocked")
    run, notes = abstract_run(config, mesh, dtype, backend)
    check_mesh(mesh, run.model.config, questions=config.rollout.questions)
    gib = chip.gib if chip else request["gib"]
    hbm_bytes = None if gib is None else int(gib * 2**30)
    parts = batch_shards(mesh)
    questions = config.rollout.questions_in_flight or parts
    functions = []
    for program in programs(run, questions):
        tell(f"compiling {program.name}")
        found = look(program, hbm_bytes, fast=request["fast"], tpu=chip is not None)
        costs.add_work(found, run, questions, chip)
        functions.append(found)
    decoding = engine_weights(run)
    engine = bytes_a_device(decoding)
    state = abstract_state(run)
    made: dict[str, Any] = {
        "model": config.model,
        "parameters": costs.trained_parameters(decoding),
        "trained_parameters": costs.trained_parameters(state.params),
        "topology": topology,
        "devices": len(devices),
        "chips": len(devices) // chip.devices if chip else None,
        "mesh": dict(mesh.shape),
        "versions": {name: _version(name) for name in ("remem_jax", "jax", "libtpu")},
        "fast": request["fast"],
        "tokens": turn_tokens(run) | {"row": training_rows(run).rows.tokens.shape[1], "chunks": chunks},
        "group": config.rollout.group,
        "hbm_bytes": hbm_bytes,
        "live": {
            "master weights and moments": bytes_a_device(state),
            "reference or base": bytes_a_device(base_weights(run)) if config.lora.rank or config.loss.beta > 0 else 0,
            "engine weights": engine,
        },
        "functions": functions,
        "compiled_questions": questions,
        "notes": list(notes),
    }
    return made | _whole(run, made, chip, engine)


def _whole(run, made: dict[str, Any], chip: Chip | None, engine: int) -> dict[str, Any]:
    """What follows from all functions together."""
    functions, questions, hbm = made["functions"], made["compiled_questions"], made["hbm_bytes"]
    problems = [found["name"] for found in functions if found["fits"] is False]
    if hbm is None:
        return {
            "fits": False if problems else None,
            "does_not_fit": problems,
            "slots": None,
            "questions_in_flight": None,
        }
    fitting = costs.slots(run, functions, questions, hbm, engine)
    in_flight = run.config.rollout.questions_in_flight or fitting
    out: dict[str, Any] = {
        "fits": not problems and fitting > 0,
        "does_not_fit": problems,
        "slots": fitting * run.config.rollout.group,
        "questions_in_flight": in_flight,
    }
    for found in functions:
        if found["name"] == "decode step" and found.get("argument_bytes"):
            found["weights_share"] = engine / (found["argument_bytes"] + found["output_bytes"])
    seconds = None
    if chip is not None and out["fits"]:
        seconds = costs.step_seconds(run, functions, questions, in_flight, made["tokens"]["chunks"])
    if seconds is None or chip is None:
        return out
    total = sum(seconds.values())
    return out | {
        "efficiency": costs.EFFICIENCY,
        "seconds": seconds,
        "step_seconds": total,
        "questions_an_hour": 3600 * run.config.rollout.questions / total,
        "chip_hours": made["chips"] * total * run.config.steps / 3600,
        "steps": run.config.steps,
    }


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not come between the lines of the answer
    jax.config.update("jax_numpy_dtype_promotion", "strict")

    def tell(text: str) -> None:
        print(json.dumps({"progress": text}), file=answers)

    try:
        print(json.dumps({"plan": plan(json.load(sys.stdin), tell)}), file=answers)
    except RememError as error:
        print(json.dumps({"error": str(error)}), file=answers)


if __name__ == "__main__":
    main()
