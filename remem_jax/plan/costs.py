"""From what the compiler says of each function to a step: work by formula, a roofline, questions that fit, hours.

Axes: `N` questions, `G` rollouts, `P` prefix, `S` suffix, `R` reply tokens.
"""

import math
from typing import Any

import jax

from remem_jax.model.config import ModelConfig, parameter_specs
from remem_jax.plan.known import Chip
from remem_jax.plan.run import batch_shards, pieces, training_rows
from remem_jax.rl.memory import turn_tokens
from remem_jax.rl.setup import Run

EFFICIENCY = 0.5  # share of a chip's published FLOP/s, memory and link bandwidth that a function is taken to reach


def forward_flops(config: ModelConfig, tokens: int, replies: int, pairs: int = 0) -> int:
    """Multiplications and additions of a forward pass: matrices of all layers, the head on some, attention on pairs."""
    layer = sum(
        math.prod(spec.shape)
        for path, spec in parameter_specs(config).items()
        if len(path) == 2 and len(spec.shape) == 2
    )
    head = config.vocab_size * config.hidden_size
    return 2 * (config.num_layers * layer * tokens + head * replies) + attention_flops(config, pairs)


def attention_flops(config: ModelConfig, pairs: int) -> int:
    """Scores and weighted sums of all heads and layers over pairs of a query and a key."""
    return 4 * config.num_layers * config.num_heads * config.head_dim * pairs


def group_pairs(prefix: int, group: int, own: int) -> int:
    """Pairs that attention shows in a row: a prefix, and `group` suffixes of `own` tokens."""
    return prefix * (prefix + 1) // 2 + group * (own * prefix + own * (own + 1) // 2)


def model_work(run: Run, questions: int) -> dict[str, tuple[int, int]]:
    """Function -> FLOPs that its real tokens need on all devices together, and those of attention kernels among them.

    A backward pass is twice a forward one; what is computed again to save memory counts in the kernels alone.
    """
    c, tokens, group = run.model.config, turn_tokens(run), run.config.rollout.group
    prefix, suffix, reply = tokens["prefix"], tokens["suffix"], tokens["reply"]
    read = questions * group_pairs(prefix, group, suffix)
    shown = questions * group * (prefix + suffix + reply)  # at the last token of a reply
    rows, inside = training_rows(run).rows.tokens.shape[0], len(pieces(run)[0].replies)
    trained = rows * group_pairs(prefix, inside, suffix + reply)
    row_tokens, replies = rows * (prefix + inside * (suffix + reply)), rows * inside * reply
    once = forward_flops(c, row_tokens, replies, trained)
    return {
        "prefill": (
            forward_flops(c, questions * (prefix + group * suffix), questions * group, read),
            attention_flops(c, read),
        ),
        "decode step": (forward_flops(c, questions * group, questions * group, shown), 0),
        "log-probs": (once, attention_flops(c, trained)),
        # The kernels make two products forward, the same again for rematerialisation, and seven backward.
        "update": (3 * once, attention_flops(c, trained) * 11 // 2),
    }


def add_work(found: dict[str, Any], run: Run, questions: int, chip: Chip | None) -> None:
    """Puts FLOPs by formula and, for a known chip, the roofline's seconds into an entry of `functions`."""
    whole, kernels = model_work(run, questions).get(found["name"], (0, 0))
    found["model_flops"] = whole
    if chip is None or found.get("temporary_bytes") is None:
        return
    sent = sum(kind["bytes"] for kind in found["collectives"].values())
    flops = found["matmul_flops"] + kernels / run.mesh.size
    seconds = {
        "compute": flops / (chip.flops / chip.devices),
        "memory": (found["argument_bytes"] + found["output_bytes"]) / (chip.hbm_bandwidth / chip.devices),
        "links": sent / (chip.link_bandwidth / chip.devices),
    }
    found["bound"] = max(seconds, key=seconds.__getitem__)
    found["roofline_seconds"] = {name: value / EFFICIENCY for name, value in seconds.items()}
    found["seconds"] = seconds[found["bound"]] / EFFICIENCY


def slots(run: Run, functions: list[dict[str, Any]], questions: int, hbm_bytes: int, engine_bytes: int) -> int:
    """Questions, each with its `G` rollouts, that fit at a time; 0 where not even one for each part of the batch does.

    What a question adds is taken from the two functions of the rollout, compiled for `questions`.
    """
    parts = batch_shards(run.mesh)
    fitting = []
    for found in functions:
        if found["name"] not in ("prefill", "decode step"):
            continue
        if found.get("temporary_bytes") is None:
            return 0
        grows = found["argument_bytes"] - engine_bytes + found["output_bytes"] + found["temporary_bytes"]
        one = max(grows, 1) / (questions / parts)
        fitting.append(int((hbm_bytes - (found["peak_bytes"] - grows)) // one))
    most = max(min(fitting), 0) * parts
    fits = 1 << (most.bit_length() - 1) if most >= parts else 0
    return min(fits, max(run.config.rollout.questions, parts))


def step_seconds(
    run: Run, functions: list[dict[str, Any]], compiled: int, in_flight: int, chunks: int
) -> dict[str, float] | None:
    """Seconds of each part of a rollout batch with every turn at its longest; None where a function has no estimate."""
    by_name = {found["name"]: found for found in functions}
    if any("seconds" not in found for found in functions):
        return None
    config, tokens = run.config, turn_tokens(run)
    more = in_flight / compiled  # questions that a device has, over those that were compiled for
    turns = -(-config.rollout.questions // in_flight) * (chunks + 1)
    decode = by_name["decode step"]["roofline_seconds"]
    weights = by_name["decode step"]["weights_share"]
    a_token = max(
        decode["compute"] * more,
        decode["memory"] * (weights + (1 - weights) * more),
        decode["links"] * more,
    )
    rows = training_rows(run).rows.tokens.shape[0]
    mini = config.optimizer.mini_batch
    micro_steps = config.rollout.questions // mini * math.ceil(mini * (chunks + 1) * len(pieces(run)) / rows)
    passes = (config.loss.beta > 0) + (config.rollout.old_logprobs == "recomputed")
    return {
        "weight move": by_name["weight move"]["seconds"],
        "prefill": turns * by_name["prefill"]["seconds"] * more,
        "decode": turns * tokens["reply"] * a_token,
        "log-probs": passes * micro_steps * by_name["log-probs"]["seconds"] if passes else 0.0,
        "update": micro_steps * by_name["update"]["seconds"],
        "optimizer": config.rollout.questions / mini * by_name["optimizer step"]["seconds"],
    }


def trained_parameters(tree: Any) -> int:
    """Numbers in a tree of shapes."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
