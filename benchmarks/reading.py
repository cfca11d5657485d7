"""What reading costs besides the model: look-up time over 60 turns, and peak memory against the document's length.

Look-up runs with SmolLM2 (agent rule_callback, which asks at every turn); memory with a tiny random model, each length
in a process of its own, so that one peak does not hide another.

    python benchmarks/reading.py --out runs/bench/reading.json [--turns 60]
"""

import argparse
import dataclasses
import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from remem_jax.agent.loop import QUERY_WORDS, Agent
from remem_jax.agent.protocol import Tags
from remem_jax.agent.reading import Reading, chunk_ids, encode_documents
from remem_jax.agent.state import initial_state, look_up
from remem_jax.config import AgentConfig, Sampling
from remem_jax.data.documents import read_documents
from remem_jax.model import load_model
from remem_jax.model.hub import find_smollm2
from remem_jax.rollout.buckets import power_of_two
from remem_jax.testing import tiny_model

CHUNK = 192
LENGTHS = (10_000, 50_000, 100_000)


def reading(tokens: int, vocabulary: int, chunk: int) -> Reading:
    """A random document of a length, and a question."""
    ids = np.random.default_rng(0).integers(3, min(vocabulary, 250), tokens).astype(np.int32)
    chunks = tuple(ids[i : i + chunk] for i in range(0, tokens, chunk))
    return Reading("q", "Who wrote the letter about the bridge?", tuple(range(40, 60)), chunks, tokens)


def settings(memory: int, reply: int, chunk: int) -> AgentConfig:
    """An agent that is always valid and always asks, greedy."""
    return AgentConfig(
        agent="rule_callback",
        tags=Tags(memory=None),
        chunk_tokens=chunk,
        memory_tokens=memory,
        max_reply_tokens=reply,
        sampling=Sampling(temperature=0.0),
    )


def look_up_share(turns: int) -> dict:
    """Seconds of look-up (interning, device call and waiting) and of the whole run, with SmolLM2 on the dossier.

    What is compiled once a size class is compiled before.
    """
    agent = Agent(load_model(find_smollm2()), settings(memory=64, reply=32, chunk=CHUNK))
    tokenizer, question = (
        agent.model.tokenizer,
        "Who built the lighthouse on Carrow Point, and in which town was he born?",
    )
    assert tokenizer is not None
    dossier = encode_documents(tokenizer, read_documents([Path(__file__).parents[1] / "examples" / "dossier"]))
    ids = np.resize(dossier, turns * CHUNK)
    document = Reading("q", question, tuple(tokenizer.encode(question)), chunk_ids(ids, CHUNK), len(ids))
    agent.run([dataclasses.replace(document, chunks=document.chunks[:2])])
    slots = power_of_two(turns)
    state = initial_state(1, 1, turns=slots, memory_tokens=64, memory_words=64, query_words=QUERY_WORDS)
    look_up(state, candidates=agent.config.candidates)

    def show(progress):
        print(f"turn {progress.turn} of {progress.turns}, {progress.seconds:.0f} s", file=sys.stderr, flush=True)

    episode = agent.run([document], on_turn=show)[0][0]
    seconds = sum(turn.seconds for turn in episode.turns)
    lookup = sum(turn.lookup_seconds for turn in episode.turns)
    asked = sum(turn.recalled_step >= 0 for turn in episode.turns)
    return {"turns": turns, "seconds": seconds, "lookup_seconds": lookup, "share": lookup / seconds, "recalled": asked}


def peak_memory(tokens: int) -> dict:
    """Peak resident bytes of a process that reads a document of `tokens` with a tiny model, and its history's bytes."""
    agent = Agent(tiny_model(max_positions=4096), settings(memory=64, reply=16, chunk=1000))
    document = reading(tokens, 250, 1000)
    agent.run([document])
    turns = 1 << (len(document.chunks) - 1).bit_length()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"tokens": tokens, "peak_bytes": peak, "history_bytes": turns * 2 * 64 * 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/reading.json"))
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak_of:
        print(json.dumps(peak_memory(args.peak_of)))
        return
    memory = []
    for tokens in LENGTHS:
        command = [sys.executable, __file__, "--peak-of", str(tokens)]
        memory.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        row = memory[-1]
        grown = (row["peak_bytes"] - memory[0]["peak_bytes"]) / 2**20
        print(f"| {tokens:,} tokens | peak {row['peak_bytes'] / 2**20:.0f} MiB | {grown:+.0f} MiB |", flush=True)
    share = look_up_share(args.turns)
    print(
        f"look-up: {share['lookup_seconds']:.3f} s of {share['seconds']:.0f} s in {share['turns']} turns = "
        f"{share['share']:.4%}; {share['recalled']} turns showed a recalled memory"
    )
    versions = {"python": platform.python_version(), "jax": jax.__version__, "cores": os.cpu_count()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"versions": versions, "memory": memory, "look_up": share}, indent=1) + "\n")
    print(f"versions {versions}; written to {args.out}")


if __name__ == "__main__":
    main()
