"""Generation against transformers + torch on this machine: float32, CPU, the same weights and prompts.

Both sides run in one process, turn about; the table shows medians and their ratio (above 1: ours is faster).

    python benchmarks/generate.py --out runs/bench/generate.json [--repeats 5]

Axes: `N` questions, `G` rollouts of one.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from transformers.generation.streamers import BaseStreamer

from remem_jax.config import Sampling
from remem_jax.model import load_model
from remem_jax.model.config import parameter_tree, to_hf
from remem_jax.model.hub import find_smollm2
from remem_jax.rollout import generate, row_keys

NEW = 64
GREEDY = Sampling(temperature=0.0)


def torch_twin(model):
    """The same weights in transformers."""
    config = transformers.AutoConfig.for_model(**to_hf(model.config))
    with torch.device("meta"):
        twin = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    names = jax.tree.map(lambda spec: spec.hf_name, parameter_tree(model.config))
    state = dict(
        zip(jax.tree.leaves(names), map(torch.from_numpy, map(np.array, jax.tree.leaves(model.params))), strict=True)
    )
    twin.to_empty(device="cpu")
    if model.config.tie_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    twin.load_state_dict(state)
    twin.tie_weights()
    return with_rotary(twin.eval(), config)


def with_rotary(twin, config):
    """Rotary frequencies are no parameters: `to_empty` has left them undefined."""
    twin.model.rotary_emb = type(twin.model.rotary_emb)(config=config)
    return twin


def ours(model, prefixes, suffixes, new: int):
    """Seconds of prefill and of decoding `new` tokens, and the ids."""
    n, g = len(suffixes), len(suffixes[0])
    keys = row_keys(0, 0, jnp.arange(n, dtype=jnp.uint32), jnp.arange(g, dtype=jnp.uint32), jnp.zeros(n, jnp.int32))
    out = generate(model, prefixes, suffixes, GREEDY, max_new_tokens=new, keys=keys, eos_ids=())
    return out.prefill_seconds, out.decode_seconds, out.ids.reshape(n * g, -1)


class FirstToken(BaseStreamer):
    """Notes when `generate` has its first token: the prompt is put first, then every token."""

    def __init__(self):
        self.puts, self.at = 0, 0.0

    def put(self, value):
        self.puts += 1
        if self.puts == 2:
            self.at = time.perf_counter()

    def end(self):
        pass


@torch.inference_mode()
def theirs(twin, prompts, new: int):
    """The same of transformers; prefill is the time until `generate` has its first token."""
    ids, streamer = torch.tensor(prompts), FirstToken()
    began = time.perf_counter()
    out = twin.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        streamer=streamer,
    )
    ended = time.perf_counter()
    return streamer.at - began, ended - streamer.at, out[:, ids.shape[1] :].numpy()


def measure(model, twin, name: str, prefixes, suffixes, new: int, repeats: int) -> dict:
    """One row of the table; our first run compiles and is not counted."""
    prompts = [list(p) + list(s) for p, group in zip(prefixes, suffixes, strict=True) for s in group]
    ours(model, prefixes, suffixes, new)
    pairs = [(ours(model, prefixes, suffixes, new), theirs(twin, prompts, new)) for _ in range(repeats)]
    mine, other = pairs[-1][0][2], pairs[-1][1][2]
    seconds = [(a[:2], b[:2]) for a, b in pairs]
    agree = float((mine == other).mean())
    row = {"name": name, "new_tokens": new, "same_ids": agree}
    for part, at in (("prefill", 0), ("decode", 1)):
        ms, ts = ([pair[side][at] for pair in seconds] for side in (0, 1))
        row[part] = {"ours": statistics.median(ms), "transformers": statistics.median(ts), "runs": [ms, ts]}
    row["all"] = {
        "ours": statistics.median(sum(a) for a, _ in seconds),
        "transformers": statistics.median(sum(b) for _, b in seconds),
    }
    for part in ("prefill", "decode", "all"):
        if row[part]["ours"] > 0 and (part == "prefill" or new > 1):
            row[part]["ratio"] = row[part]["transformers"] / row[part]["ours"]
    print(describe(row), flush=True)
    return row


def describe(row: dict) -> str:
    """The row as a line of a Markdown table."""
    cells = []
    for part in ("prefill", "decode", "all"):
        values = row[part]
        if "ratio" in values:
            cells.append(f"{values['ours']:.2f} / {values['transformers']:.2f} s = **{values['ratio']:.2f}**")
        else:
            cells.append("")
    return f"| {row['name']} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/generate.json"))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    model = load_model(find_smollm2())
    twin = torch_twin(model)
    rng = np.random.default_rng(0)

    def prompt(size: int) -> list[int]:
        return rng.integers(3, model.config.vocab_size, size).tolist()

    print("| SmolLM2-135M, ours / transformers = ratio | prefill | decode | all |\n|---|---|---|---|", flush=True)
    rows = [measure(model, twin, "prompt of 2,048", [[]], [[prompt(2048)]], 1, args.repeats)]
    for batch in (1, 8, 16):
        suffixes = [[prompt(512)] for _ in range(batch)]
        name = f"batch {batch}, prompts of 512, {NEW} new"
        rows.append(measure(model, twin, name, [[]] * batch, suffixes, NEW, args.repeats))
    group = [[prompt(192) for _ in range(16)]]
    name = f"group of 16, prefix 640 + suffix 192, {NEW} new"
    rows.append(measure(model, twin, name, [prompt(640)], group, NEW, args.repeats))
    means = {
        part: math.exp(statistics.mean(math.log(row[part]["ratio"]) for row in rows[1:4]))
        for part in ("prefill", "decode", "all")
    }
    print(f"geometric mean over batch 1, 8, 16: prefill {means['prefill']:.2f}, decode {means['decode']:.2f}")
    versions = {"python": platform.python_version(), "jax": jax.__version__, "torch": torch.__version__}
    versions |= {"transformers": transformers.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"versions": versions, "geometric_means": means, "rows": rows}, indent=1) + "\n")
    print(f"versions {versions}; written to {args.out}")


if __name__ == "__main__":
    main()
