"""Runs every notebook in order, each in a fresh kernel of this Python, and says how long each took.

    python tools/run_notebooks.py [NAME ...]

Notebooks are started at the root of the repository, executed copies go to runs/notebooks. The first failure ends it
with one line.
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
OUT = ROOT / "runs" / "notebooks"
CELL_SECONDS = 600


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the notebooks on the CPU.")
    parser.add_argument("names", nargs="*", help="such as 01_tour; all by default")
    given = parser.parse_args()
    every = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    for name in given.names:
        if name not in every:
            print(f"remem: error: no notebook {name}: expected one of {', '.join(every)}", file=sys.stderr)
            return 2
    os.environ["JAX_PLATFORMS"] = "cpu"
    OUT.mkdir(parents=True, exist_ok=True)
    chosen = given.names or list(every)
    began = time.monotonic()
    for at, name in enumerate(chosen):
        failure = run(every[name], f"notebook {at + 1} of {len(chosen)}, {name}")
        if failure:
            print(f"remem: error: {name}: {failure}; as far as it came: {OUT / name}.ipynb", file=sys.stderr)
            return 1
    print(f"{len(chosen)} notebooks ran in {(time.monotonic() - began) / 60:.1f} minutes; executed copies: {OUT}")
    return 0


def run(path: Path, told: str) -> str:
    """Run one notebook and keep the executed copy; one line of what went wrong, or nothing."""
    notebook = nbformat.read(path, as_version=4)
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        extra_arguments=["--log-level=40"],  # no warning that the kernel talks over local TCP
        resources={"metadata": {"path": str(ROOT)}},
        on_cell_start=lambda cell, cell_index: _tell(told, notebook, cell_index, cells),
    )
    began, failure = time.monotonic(), ""
    try:
        client.execute()
    except CellTimeoutError:
        failure = f"a cell took more than {CELL_SECONDS} s"
    except CellExecutionError as error:
        failure = _said_last(notebook) or f"{error.ename}: {_one_line(error.evalue)}"
    except DeadKernelError:
        failure = "the kernel died"
    nbformat.write(notebook, OUT / path.name)
    if not failure:
        print(f"{told}: done in {time.monotonic() - began:.0f} s", flush=True)
    return failure


def _tell(told: str, notebook, index: int, cells: int) -> None:
    if notebook.cells[index].cell_type == "code":
        number = sum(cell.cell_type == "code" for cell in notebook.cells[: index + 1])
        print(f"{told}: cell {number} of {cells}", flush=True)


def _said_last(notebook) -> str:
    """The last line that a failed shell command wrote to standard error; nothing where it was no shell command."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        if any(output.output_type == "error" and output.ename == "CalledProcessError" for output in outputs):
            return _one_line("".join(output.text for output in outputs if output.get("name") == "stderr"))
    return ""


def _one_line(text: str) -> str:
    """The last line of a text, without colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return lines[-1] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
