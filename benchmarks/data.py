"""Data: seconds and memory of building a set of 128 questions with contexts of up to 6,400 documents.

Each measurement runs in a process of its own, so that its time has the imports in it and its memory nothing else:

    python benchmarks/data.py [--data ../shared/data] --out runs/bench/data.json [--repeats 3] [--quick]
"""

import argparse
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

PARTS = ("build",)
SIZES = (50, 100, 200, 400, 800, 1600, 3200, 6400)
CORPORA = ("hotpotqa", "2wikimultihopqa", "musique")
SECONDS, GIGABYTES = 60, 1.0  # bars


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


def describe(row: dict[str, Any]) -> str:
    """The row as a line of a Markdown table."""
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
    measured = {"build": build}
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
    if sys.argv[1:3] == ["--child", "command"]:
        command_in_child(sys.argv[3:])
    else:
        main()
