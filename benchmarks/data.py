"""Data: building a set of 128 questions and up to 6,400 documents, reading it as tokens, answering from it.

Each measurement runs in a process of its own, so that its time has the imports in it and its memory nothing else.
Reading needs SmolLM2's tokenizer (`make install`); answering runs a tiny random model over it:

    python benchmarks/data.py [--only read] [--data ../shared/data] --out runs/bench/data.json [--repeats 3] [--quick]
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PARTS = ("build", "read", "answer")
SIZES = (50, 100, 200, 400, 800, 1600, 3200, 6400)
CORPORA = ("hotpotqa", "2wikimultihopqa", "musique")
SECONDS, GIGABYTES, READING = 60, 1.0, 1_000_000  # bars


def build(data: Path, quick: bool, repeats: int) -> list[dict[str, Any]]:
    """A row for one worker, and one for two."""
    return [build_with(workers, data, quick, repeats) for workers in (1, 2)]


def build_with(workers: int, data: Path, quick: bool, repeats: int) -> dict[str, Any]:
    """Medians of seconds and the most memory of `remem data build`, its workers' included, and the set's size."""
    questions, largest = (4, 400) if quick else (128, 6400)
    runs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            command = ["data", "build", str(data / "hotpotqa_dev_sample.jsonl"), "--corpus"]
            command += [str(data / f"corpus_{name}.jsonl.gz") for name in CORPORA]
            command += ["--documents", ",".join(str(size) for size in SIZES if size <= largest), "--split", "dev"]
            command += ["--questions", str(questions), "--workers", str(workers), "--out", f"{folder}/set", "--quiet"]
            began = time.perf_counter()
            memory = json.loads(child("command", *command)[-1])
            seconds = time.perf_counter() - began
            size = sum(path.stat().st_size for path in Path(folder, "set").rglob("*") if path.is_file())
        # Workers are alike: as many times the most that one had is no less than what all had.
        gigabytes = (memory["own"] + (workers if workers > 1 else 0) * memory["largest_child"]) / 1e9
        runs.append({"seconds": seconds, "gigabytes": gigabytes, "stored_megabytes": size / 1e6})
    return {
        "name": f"build {questions} questions, {largest:,} documents, {workers} worker{'s' * (workers > 1)}",
        "seconds": statistics.median(run["seconds"] for run in runs),
        "gigabytes": max(run["gigabytes"] for run in runs),
        "stored_megabytes": runs[0]["stored_megabytes"],
        "bar": f"under {SECONDS} s and {GIGABYTES:g} GB",
        "runs": runs,
    }


def small_set(data: Path, folder: str, questions: int, largest: int) -> Path:
    """A built set to read from."""
    out = Path(folder, "set")
    command = ["data", "build", str(data / "hotpotqa_dev_sample.jsonl"), "--corpus"]
    command += [str(data / f"corpus_{name}.jsonl.gz") for name in CORPORA]
    command += ["--documents", f"200,{largest}", "--split", "dev", "--questions", str(questions)]
    child("command", *command, "--out", str(out), "--quiet")
    return out


def read(data: Path, quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Tokens a second of the first epoch, which tokenises, and of the second, which reads ids."""
    questions, largest = (4, 400) if quick else (12, 6400)
    with tempfile.TemporaryDirectory() as folder:
        out = small_set(data, folder, questions, largest)
        found = json.loads(child("read", str(out), str(largest), folder, str(questions))[-1])
    name = f"read {questions} questions of {largest:,} documents, {found['tokens'] / 1e6:.1f} M tokens, one thread"
    return [{"name": name, "bar": f"second epoch at least {READING:,} tokens a second", **found}]


def read_in_child(folder: str, documents: str, cache: str, questions: str) -> None:
    """Two epochs through the pipeline; seconds of both, and the CPU's."""
    import numpy as np

    from remem_jax.data.pipeline import Batches, make_example, open_records

    tokenizer, agent = small_agent()
    fixed = (tokenizer, agent.config, agent.blocks, agent.model.config.max_positions, token_cache(cache))
    records, found = open_records(folder, int(documents)), {}
    for epoch in ("first", "second"):
        batches = Batches(records, int(questions), 0, lambda record: make_example(record, *fixed))
        wall, cpu = time.perf_counter(), time.process_time()
        chunks = [np.array(chunk) for example in batches[0] for chunk in example.reading.chunks]  # copied: all is read
        tokens = sum(map(len, chunks))
        found[epoch] = {
            "a_second": tokens / (time.perf_counter() - wall),
            "a_cpu_second": tokens / (time.process_time() - cpu),
        }
    print(json.dumps(found | {"tokens": tokens}))


def answer(data: Path, quick: bool, repeats: int) -> list[dict[str, Any]]:
    """One question of 200 documents and the same of 6,400: seconds a document, memory, the history's bytes."""
    largest = 400 if quick else 6400
    with tempfile.TemporaryDirectory() as folder:
        out = small_set(data, folder, 1, largest)
        found = []
        for documents in (200, largest):
            child("answer", str(out), str(documents), folder, "1")  # its ids are in the cache from here on
            found.append(json.loads(child("answer", str(out), str(documents), folder, "0")[-1]))
    few, many = found
    return [
        {
            "name": f"answer one question of {many['documents']:,} documents, {many['tokens']:,} tokens, "
            f"{many['turns']} turns, against {few['documents']}",
            "seconds_a_document": [few["seconds_a_document"], many["seconds_a_document"]],
            "process_megabytes": [(one["process_bytes"] - one["history_bytes"]) / 1e6 for one in found],
            "device_megabytes": [(one["device_bytes"] - one["history_bytes"]) / 1e6 for one in found],
            "history_megabytes": many["history_bytes"] / 1e6,
            "bar": "seconds a document 1.2 x, memory without history 1.1 x, history 2.2 MB",
        }
    ]


def answer_in_child(folder: str, documents: str, cache: str, only_tokenise: str) -> None:
    """Reads and answers with a tiny model, 1,024-token memories, a look-up at every turn."""
    import jax

    from remem_jax.data.pipeline import make_example, open_records
    from remem_jax.rollout.buckets import compilations

    tokenizer, agent = small_agent()
    record = open_records(folder, int(documents))[0]
    context = agent.model.config.max_positions
    example = make_example(record, tokenizer, agent.config, agent.blocks, context, token_cache(cache))
    if int(only_tokenise):
        return
    reading, compiled, seconds, device = example.reading, compilations(), [], 0

    def on_turn(progress) -> None:
        nonlocal compiled, device
        if compilations() == compiled and progress.turn < progress.turns:
            seconds.append(progress.episodes[0][0].turns[-1].seconds)
        compiled = compilations()
        device = max(device, sum(array.nbytes for array in jax.live_arrays()))

    for _ in range(1 + (int(documents) <= 200)):  # the short one twice: most of its turns compile
        episode = agent.run([reading], on_turn=on_turn)[0][0]
    slots = 1 << (len(reading.chunks) - 1).bit_length()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    found = {
        "documents": int(documents),
        "tokens": reading.document_tokens,
        "turns": len(episode.turns),
        "seconds_a_document": statistics.mean(seconds) * len(reading.chunks) / int(documents),
        "turn_seconds": seconds,
        "lookup_seconds": sum(turn.lookup_seconds for turn in episode.turns),
        "process_bytes": peak,
        "device_bytes": device,
        "history_bytes": slots * 2 * agent.config.memory_tokens * 4,
    }
    print(json.dumps(found))


def small_agent():
    """SmolLM2's tokenizer and an agent of a tiny random model over its vocabulary; greedy, every reply a memory."""
    from remem_jax.agent.loop import Agent
    from remem_jax.agent.protocol import Tags
    from remem_jax.config import AgentConfig, Sampling
    from remem_jax.model.hub import find_smollm2
    from remem_jax.testing import tiny_model
    from remem_jax.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(find_smollm2())
    model = dataclasses.replace(
        tiny_model(vocab_size=tokenizer.vocab_size, max_positions=16384, eos_ids=()), tokenizer=tokenizer
    )
    settings = AgentConfig(
        agent="rule_callback",
        tags=Tags(memory=None),
        memory_tokens=1024,
        max_reply_tokens=32,
        sampling=Sampling(temperature=0.0),
    )
    return tokenizer, Agent(model, settings)


def token_cache(folder: str):
    from remem_jax.data.token_cache import TokenCache

    return TokenCache(Path(folder, "tokens"))


def describe(row: dict[str, Any]) -> str:
    """The row as a line of a Markdown table."""
    if "second" in row:
        first, second = (row[epoch] for epoch in ("first", "second"))
        measured = f"first epoch {first['a_cpu_second']:,.0f}, second **{second['a_cpu_second']:,.0f}** a CPU second"
        return f"| {row['name']} | {measured} | {row['bar']} |"
    if "history_megabytes" in row:
        pairs = (
            ("s a document", "seconds_a_document", ".4f"),
            ("MB of the process", "process_megabytes", ".0f"),
            ("MB of arrays", "device_megabytes", ".1f"),
        )
        measured = "; ".join(
            f"{row[key][1]:{form}} / {row[key][0]:{form}} {name} = **{row[key][1] / row[key][0]:.2f}**"
            for name, key, form in pairs
        )
        return f"| {row['name']} | {measured}; history **{row['history_megabytes']:.2f} MB** | {row['bar']} |"
    measured = f"**{row['seconds']:.1f} s, {row['gigabytes']:.2f} GB**, {row['stored_megabytes']:.0f} MB stored"
    return f"| {row['name']} | {measured} | {row['bar']} |"


def child(*arguments: str) -> list[str]:
    """Lines that this program prints when run with the arguments."""
    ran = subprocess.run([sys.executable, __file__, "--child", *arguments], capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return ran.stdout.splitlines()


def command_in_child(arguments: list[str]) -> None:
    """A `remem` command in this process, then the most memory that it and its largest child had, in bytes."""
    from remem_jax.cli import main as remem

    try:
        remem(arguments)
    except SystemExit as ended:
        if ended.code:
            raise
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"own": own * unit, "largest_child": children * unit}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("REMEM_DATA") or "../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/bench/data.json"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    versions: dict[str, Any] = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in ("tensorflow-datasets", "array_record", "numpy")}
    versions |= {"cores": os.cpu_count(), "machine": platform.machine()}
    measured = {"build": build, "read": read, "answer": answer}
    rows: list[dict[str, Any]] = []
    print("| what | median, most memory | bar |\n|---|---|---|", flush=True)
    for part in args.only:
        found = measured[part](args.data, args.quick, args.repeats)
        print("\n".join(map(describe, found)), flush=True)
        rows += found
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    print(f"\nversions {versions}; written to {args.out}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        kinds = {"read": read_in_child, "answer": answer_in_child, "command": lambda *words: command_in_child([*words])}
        kinds[sys.argv[2]](*sys.argv[3:])
    else:
        main()
