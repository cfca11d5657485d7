"""How much memory a run will need, estimated from shapes before anything runs, and what of the rollout fits.

Estimates leave out the compiler's temporaries beyond those named, so they are a guide; `remem plan` asks the compiler.

Axes: `G` rollouts, `L` layers, `K` key heads, `h` head size, `D` hidden, `F` feed-forward, `V` vocabulary.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from remem_jax.agent.loop import Agent
from remem_jax.agent.prompts import LOOPLESS, layout
from remem_jax.errors import RememError
from remem_jax.model.config import count_parameters
from remem_jax.rl import lora
from remem_jax.rl.setup import Run
from remem_jax.rollout.buckets import bucket

SPARE = 0.8  # share of free memory that is counted on


@contextlib.contextmanager
def out_of_memory(place: str, setting: str, value: object) -> Iterator[None]:
    """Turns the device's running out of memory into a RememError that names the setting to lower."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RememError(f"out of memory in the {place}: lower {setting} (now {value})") from None


def turn_tokens(run: Run) -> dict[str, int]:
    """Tokens of the longest memory turn: prefix (shared by a group), suffix and reply of one rollout."""
    agent, blocks = run.agent, Agent(run.model, run.agent).blocks
    parts = {"question": agent.question_tokens, "chunk": agent.chunk_tokens, "memory": agent.memory_tokens}
    parts["recalled"] = agent.memory_tokens
    final = agent.agent in LOOPLESS
    sizes = []
    for names in layout(agent.agent, agent.prompt_order, final):
        segments = [s for name in names for s in (blocks.final_turn if final else blocks.memory_turn)[name]]
        sizes.append(sum(parts[s] if isinstance(s, str) else len(s) for s in segments))
    return {"prefix": sizes[0], "suffix": sizes[1], "reply": agent.max_reply_tokens}


def cache_bytes(run: Run) -> int:
    """Decoding cache of one question with its `G` rollouts, prefix once."""
    tokens, c = turn_tokens(run), run.model.config
    slots = bucket(tokens["prefix"]) + run.config.rollout.group * (bucket(tokens["suffix"]) + bucket(tokens["reply"]))
    return slots * 2 * c.num_layers * c.num_kv_heads * c.head_dim * np.dtype(run.model.dtype).itemsize


def estimate(run: Run) -> dict[str, int]:
    """Bytes by what they are for, all devices together."""
    c, number = run.model.config, count_parameters(run.model.config)
    compute = np.dtype(run.model.dtype).itemsize
    settings = run.config.lora
    trained = lora.count_adapter_parameters(c, settings.rank, settings.targets) if settings.rank else number
    keeps_base = settings.rank or (run.config.algorithm == "grpo" and run.config.loss.beta > 0)
    tokens = run.config.memory.token_budget
    # Remat keeps the input of every layer; of one layer at work, all of it, twice for the backward pass.
    layer = 2 * (4 * c.hidden_size + 3 * c.intermediate_size + 3 * c.num_heads * c.head_dim)
    found = {
        "master weights, moments and gradients": 16 * trained,
        "frozen base or reference": number * compute if keeps_base else 0,
        "a micro-batch": tokens * (c.num_layers * c.hidden_size + layer) * compute + 512 * c.vocab_size * 4,
    }
    if run.config.algorithm == "grpo":
        found["engine weights"] = number * compute
        found["decoding cache a question"] = cache_bytes(run)
    return found


def free_bytes() -> int:
    """Memory of all local devices; of a CPU, half of what the host has to spare."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if all(s and "bytes_limit" in s for s in stats):
        return sum(s["bytes_limit"] for s in stats)  # pyright: ignore[reportOptionalSubscript]
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if Path("/proc/meminfo").is_file():  # what Linux could free counts too
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        pages = int(lines["MemAvailable"].split()[0]) * 1024
    return pages // 2


def questions_in_flight(run: Run) -> int:
    """Questions of a wave: the setting, else the power of two that fits beside weights and optimizer, at least 1."""
    wanted = run.config.rollout.questions
    if run.config.rollout.questions_in_flight is not None:
        return min(run.config.rollout.questions_in_flight, wanted)
    needs = estimate(run)
    one = needs["decoding cache a question"]
    rest = sum(needs.values()) - one - needs["a micro-batch"]
    # Prefill holds a layer's activations and the caches of all rows at once: half of the room is for those.
    room = max(int(SPARE * free_bytes()) - rest, 0) // 2
    fits = max(room // one, 1)
    return min(1 << (fits.bit_length() - 1), wanted)


def describe(run: Run) -> str:
    """Shapes, token budget and memory of a run, for people."""
    config, tokens, needs = run.config, turn_tokens(run), estimate(run)
    group, p = config.rollout.group, tokens["prefix"]
    own = tokens["suffix"] + tokens["reply"]
    lines = [
        f"model: {count_parameters(run.model.config):,} parameters, context {run.model.config.max_positions} tokens",
        f"longest turn: prefix {p} + suffix {tokens['suffix']} + reply {tokens['reply']} = {p + own} tokens",
    ]
    if config.algorithm == "grpo":
        shared, alone = p + group * own, group * (p + own)
        lines += [
            f"rollout batch: {config.rollout.questions} questions x {group} rollouts, "
            f"{questions_in_flight(run)} questions in flight",
            f"a group of {group}: {shared:,} tokens in one row, {alone:,} without a shared prefix "
            f"({alone / shared:.2f} times as many)",
            f"updates: {config.rollout.questions // config.optimizer.mini_batch} steps a rollout batch, "
            f"{config.optimizer.mini_batch} questions each, micro-batches of {config.memory.token_budget:,} tokens",
        ]
    else:
        lines.append(f"updates: {config.optimizer.mini_batch} demonstrations a step")
    lines.append("memory, estimated, all devices together:")
    lines += [f"  {name}: {size / 2**20:,.1f} MiB" for name, size in needs.items() if size]
    lines.append(f"  free: {free_bytes() / 2**20:,.1f} MiB on {len(jax.local_devices())} device(s)")
    return "\n".join(lines)
