"""Training: what sharing a prefix saves, what the callback agent costs, and whole GRPO steps against two peers.

Both sides of a comparison run turn about; the tables show medians and their ratio. float32, CPU, random weights and
prompts. google-tunix, which pins other versions of much, runs in a process of its own that waits while we run:

    python -m venv VENV && VENV/bin/pip install google-tunix==0.1.7 jax==0.10.2
    python benchmarks/train.py --tunix VENV/bin/python --out runs/bench/train.json [--repeats 5] [--quick]

Axes: `G` rollouts of one question, `T` tokens of a row, `M` reply tokens of a row.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from train_peers import TorchTrainer, TunixTrainer
from train_step import Prompts, Trainer, batch_of, decoder, engine_weights, random_ids

from remem_jax.config import Sampling
from remem_jax.model.load import Model
from remem_jax.model.packing import plain_rows
from remem_jax.rl.rows import TrainRows, pack_rows
from remem_jax.rollout import generate, row_keys


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Lengths in tokens, and decoders: SmolLM2-135M's layers with fewer of them, and the peers' small Qwen2."""

    group: int = 16
    prefix: int = 640
    suffix: int = 96
    reply: int = 96
    fixed: int = 80  # of the prefix: rules and question, which stand before the chunk in every order
    memory: int = 40
    peer_suffix: int = 192
    peer_reply: int = 64
    layers: int = 6
    peer_layers: int = 4

    @property
    def smollm2(self):
        """Vocabulary and layers both a fifth, so that the head keeps its share of the work."""
        sizes = dict(hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3, head_dim=64)
        return decoder(**sizes, num_layers=self.layers, vocab_size=9830)

    @property
    def small_qwen2(self):
        sizes = dict(hidden_size=256, intermediate_size=768, num_heads=4, num_kv_heads=2, head_dim=64)
        return decoder(**sizes, num_layers=self.peer_layers, vocab_size=8192)


GREEDY = Sampling(temperature=0.0)
PARTS = ("update", "prefill", "callback", "peers")
QUICK = Sizes(4, 64, 16, 8, 16, 8, 16, 8, 1, 1)
Times = dict[str, list[float]]


def paired(sides: dict[str, Callable[[int], dict[str, float]]], repeats: int) -> dict[str, Times]:
    """Seconds by phase of each side, turn about; a first round that compiles is not counted."""
    found: dict[str, Times] = {name: {} for name in sides}
    for i in range(repeats + 1):
        for name, run in sides.items():
            for phase, seconds in run(i).items():
                if i:
                    found[name].setdefault(phase, []).append(seconds)
    return found


def waited(run: Callable[[], Any]) -> dict[str, float]:
    began = time.perf_counter()
    jax.block_until_ready(run())
    return {"all": time.perf_counter() - began}


def row(name: str, slow: str, fast: str, times: dict[str, Times], bar: str, phases=("all",)) -> dict:
    """A row of the table: `slow / fast = ratio` of the medians, by phase, and the spread of the pairs' ratios."""
    found: dict[str, Any] = {"name": name, "bar": bar, "runs": times}
    for phase in phases:
        a, b = times[slow][phase], times[fast][phase]
        medians = statistics.median(a), statistics.median(b)
        ratios = [x / y for x, y in zip(a, b, strict=True)]
        spread = [min(ratios), max(ratios)]
        found[phase] = {slow: medians[0], fast: medians[1], "ratio": medians[0] / medians[1], "pairs": spread}
    return found


def describe(one: dict, phase: str = "all") -> str:
    """The row as a line of a Markdown table."""
    value = one[phase]
    (slow, a), (fast, b) = list(value.items())[:2]
    low, high = value["pairs"]
    return (
        f"| {one['name']} | {slow} {a:.2f} s / {fast} {b:.2f} s = **{value['ratio']:.2f}** [{low:.2f}-{high:.2f}] "
        f"| {one['bar']} |"
    )


def group_prompts(rng, config, prefix: int, suffix: int, group: int) -> Prompts:
    """One question's prefix and a suffix of its own for every rollout."""
    return [random_ids(rng, prefix, config)], [[random_ids(rng, suffix, config) for _ in range(group)]]


def update_sharing(sizes: Sizes, rng, repeats: int) -> dict:
    """Forward, backward and AdamW on one group: one packed row, or every rollout a row with a prefix of its own.

    The rows of the second kind are as long as their tokens, without the padding that size classes would add.
    """
    trainer = Trainer.fresh(sizes.smollm2, beta=0.0)
    prompts = group_prompts(rng, trainer.config, sizes.prefix, sizes.suffix, sizes.group)
    replies = rng.integers(1, trainer.config.vocab_size, (1, sizes.group, sizes.reply)).astype(np.int32)
    batch = batch_of(prompts, replies, np.full(replies.shape, -9.2, np.float32))
    shared, alone = pack_rows(batch.groups), alone_rows(prompts, replies, batch)

    def update(rows: TrainRows) -> dict[str, float]:
        return waited(lambda: trainer.update_on([rows], batch.total))

    times = paired({"unshared": lambda _: update(alone), "shared": lambda _: update(shared)}, repeats)
    name = f"update, prefix {sizes.prefix}, suffix {sizes.suffix} + reply {sizes.reply}, G {sizes.group}"
    tokens = {"unshared": alone.rows.tokens.size, "shared": shared.rows.tokens.size}
    return row(name, "unshared", "shared", times, "at least 3.0") | {"tokens": tokens}


def alone_rows(prompts: Prompts, replies: np.ndarray, batch) -> TrainRows:
    """Every rollout of one question as an ordinary row: prompt and reply, no shared prefix."""
    (prefix,), (suffixes,) = prompts
    tokens = np.stack([[*prefix, *suffix, *ids] for suffix, ids in zip(suffixes, replies[0], strict=True)])
    tokens = tokens.astype(np.int32)
    length, new = tokens.shape[1], replies.shape[2]
    rows = plain_rows(jnp.asarray(tokens), jnp.full(len(tokens), length, jnp.int32))
    index = jnp.tile(jnp.arange(length - new - 1, length - 1, dtype=jnp.int32), (len(tokens), 1))
    advantages = jnp.array([[reply.advantage] * new for reply in batch.groups[0].replies], jnp.float32)
    old = jnp.stack([reply.logp_old for reply in batch.groups[0].replies])
    ones = jnp.ones(index.shape, jnp.float32)
    return TrainRows(rows, index, jnp.asarray(replies[0]), ones, advantages, old, None, None)


def prefill_sharing(sizes: Sizes, rng, repeats: int) -> dict:
    """The engine's prefill of a group: the prefix once, or a prefix of its own for every rollout."""
    trainer = Trainer.fresh(sizes.smollm2, beta=0.0)
    config = trainer.config
    model = Model(config, engine_weights(trainer.state.params), None, jnp.dtype("float32"), Path())
    shared = group_prompts(rng, config, sizes.prefix, sizes.suffix, sizes.group)
    # Cut where the engine's size classes pad least, in favour of this side.
    head = 1 << ((sizes.prefix + sizes.suffix).bit_length() - 1)
    whole = [[*shared[0][0], *suffix] for suffix in shared[1][0]]
    alone = [ids[:head] for ids in whole], [[ids[head:]] for ids in whole]

    def prefill(prompts: Prompts) -> dict[str, float]:
        n, g = len(prompts[1]), len(prompts[1][0])
        keys = row_keys(0, 0, jnp.arange(n, dtype=jnp.uint32), jnp.arange(g, dtype=jnp.uint32), jnp.zeros(n, jnp.int32))
        return {"all": generate(model, *prompts, GREEDY, max_new_tokens=1, keys=keys, eos_ids=()).prefill_seconds}

    times = paired({"unshared": lambda _: prefill(alone), "shared": lambda _: prefill(shared)}, repeats)
    name = f"prefill, prefix {sizes.prefix}, suffix {sizes.suffix}, G {sizes.group}"
    return row(name, "unshared", "shared", times, "at least 4")


def callback_cost(sizes: Sizes, rng, repeats: int, order: str) -> dict:
    """A whole step of the callback agent over MemAgent's: its prompts hold one memory more, filled at every turn."""
    trainer = Trainer.fresh(sizes.smollm2, beta=0.001)
    chunk = sizes.prefix - sizes.fixed

    def prompts(recalled: int) -> Prompts:
        own = sizes.suffix - sizes.memory + recalled  # memory and cue, and what is recalled
        prefix, suffix = (sizes.prefix, own) if order == "section_first" else (sizes.fixed, own + chunk)
        return group_prompts(rng, trainer.config, prefix, suffix, sizes.group)

    sides = {"callback": prompts(sizes.memory), "MemAgent": prompts(0)}

    def stepper(side: Prompts) -> Callable[[int], dict[str, float]]:
        return lambda i: trainer.step(side, sizes.reply, i)

    times = paired({name: stepper(side) for name, side in sides.items()}, repeats)
    name = f"step of the callback agent, {order}, chunk {chunk}, memory and recalled {sizes.memory} each"
    return row(name, "callback", "MemAgent", times, "at most 1.10", ("all", "rollout", "reference", "update"))


def peers(sizes: Sizes, rng, repeats: int, tunix: Path | None) -> list[dict]:
    """Whole steps on the small Qwen2: rollout, reference, update.

    A prompt is one of all rollouts, as the peers' learners have it, or shares its prefix only, as an agent's turn does;
    to the peers both are the same work.
    """
    beta, new, length = 0.04, sizes.peer_reply, sizes.prefix + sizes.peer_suffix
    config = sizes.small_qwen2
    ours = Trainer.fresh(config, beta=beta)
    torch = TorchTrainer(Model(config, engine_weights(ours.state.params), None, jnp.float32, Path()), beta=beta)
    ids = random_ids(rng, length, config)
    one_prompt = [ids[:-1]], [[ids[-1:]] * sizes.group]
    own_suffixes = group_prompts(rng, config, sizes.prefix, sizes.peer_suffix, sizes.group)
    whole = [[*own_suffixes[0][0], *suffix] for suffix in own_suffixes[1][0]]
    sides: dict[str, Callable[[int], dict[str, float]]] = {
        "one prompt": lambda i: ours.step(one_prompt, new, i),
        "own suffixes": lambda i: ours.step(own_suffixes, new, i),
        "transformers + torch": lambda _: torch.step(whole, new),
    }
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    if tunix is None:
        times = paired(sides, repeats)
    else:
        with contextlib.closing(
            TunixTrainer(tunix, config, group=sizes.group, prompt=length, new=new, beta=beta)
        ) as it:
            versions |= {f"peer's {name}": version for name, version in it.versions.items()}
            sides["google-tunix"] = lambda _: it.step()
            times = paired(sides, repeats)
    texts = {
        "one prompt": f"GRPO step, one prompt of {length} for all {sizes.group}, reply {new}",
        "own suffixes": f"GRPO step, prefix {sizes.prefix} + suffix {sizes.peer_suffix}, reply {new}, G {sizes.group}",
    }
    phases = ("all", "rollout", "reference", "update")
    return [
        row(text, peer, own, {name: times[name] for name in (peer, own)}, "at least 2, aim 3", phases)
        | {"versions": versions}
        for peer in list(sides)[2:]
        for own, text in texts.items()
    ]


def measure(part: str, sizes: Sizes, rng, repeats: int, tunix: Path | None) -> list[dict]:
    """The rows of one part of the benchmark."""
    if part == "update":
        return [update_sharing(sizes, rng, repeats)]
    if part == "prefill":
        return [prefill_sharing(sizes, rng, repeats)]
    if part == "callback":
        return [callback_cost(sizes, rng, repeats, order) for order in ("section_last", "section_first")]
    return peers(sizes, rng, repeats, tunix)


def print_phases(rows: list[dict]) -> None:
    """Medians by phase of the rows that have phases."""
    phases = ("rollout", "reference", "update", "all")
    print("\n| seconds | " + " | ".join(phases) + " |\n|---|---|---|---|---|")
    for one in rows:
        if "rollout" in one:
            for side in list(one["all"])[:2]:
                cells = " | ".join(f"{one[phase][side]:.2f}" for phase in phases)
                print(f"| {one['name']}: {side} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/train.json"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tunix", type=Path, help="a Python that has google-tunix; without it that row is left out")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    sizes, rng = (QUICK if args.quick else Sizes()), np.random.default_rng(0)
    versions: dict[str, Any] = {"python": platform.python_version(), "jax": jax.__version__}
    versions |= {"cores": os.cpu_count(), "machine": platform.machine()}
    rows: list[dict] = []
    print("| what | a / b = ratio of medians [of the pairs] | bar |\n|---|---|---|", flush=True)
    for part in args.only:
        found = measure(part, sizes, rng, args.repeats, args.tunix)
        print("\n".join(map(describe, found)), flush=True)
        rows += found
    print_phases(rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    sizes_used = dataclasses.asdict(sizes)
    args.out.write_text(json.dumps({"versions": versions, "sizes": sizes_used, "rows": rows}, indent=1) + "\n")
    print(f"\nversions {versions}; written to {args.out}")


if __name__ == "__main__":
    main()
