"""What a run measured, as JSON lines, TensorBoard scalars and, where asked for, Weights & Biases.

A line goes out in one unbuffered write, so a kill loses nothing that was told; a resumed run drops what it will do
again, so that its file is that of a run never interrupted.
"""

import json
import math
import os
import secrets
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from remem_jax.errors import RememError

METRICS_FILE = "metrics.jsonl"
FLUSH_SECONDS = 5  # of TensorBoard's writer, a thread of its own
WANDB_FILE = "wandb_id"  # holds the run's id there, so that a resumed run goes on in it


class MetricWriter:
    """Writes the metrics of every step below a run's directory, which must exist."""

    def __init__(
        self,
        run_dir: str | Path,
        *,
        first_step: int | None = None,
        tensorboard: bool = True,
        wandb_project: str | None = None,
    ):
        """Opens `RUN/metrics.jsonl` at its end.

        Args:
            first_step: the step that this process begins with; lines of it and later ones are dropped first, and
                TensorBoard hides them. None keeps all there is.
            tensorboard: also write `RUN/tensorboard`.
            wandb_project: also write to this project of Weights & Biases, in one run over all resumes.
        """
        run_dir = Path(run_dir)
        self._wandb = _open_wandb(run_dir, wandb_project) if wandb_project else None
        path = run_dir / METRICS_FILE
        if first_step is not None:
            truncate_lines(path, first_step)
        self._file = open_lines(path)
        self._tensorboard = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            self._tensorboard = SummaryWriter(
                str(run_dir / "tensorboard"),
                purge_step=first_step,
                flush_secs=FLUSH_SECONDS,
                # Its own names differ by the second only: a run resumed at once would overwrite the file.
                filename_suffix=f".{secrets.token_hex(4)}",
            )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line `{"step": step, name: value, ...}`; a value that is nan or infinite is null, and no scalar."""
        values = {name: float(value) for name, value in metrics.items()}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        append_line(self._file, {"step": step} | {name: finite.get(name) for name in values})
        if self._tensorboard is not None:
            for name, value in finite.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            # Not as W&B's own step, which may not go back: a resumed run repeats some.
            self._wandb.log({"step": step} | finite)

    def close(self) -> None:
        """Close all files."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _open_wandb(run_dir: Path, project: str) -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise RememError(
            f"wandb_project {project}: expected the package wandb, found none: pip install wandb, or leave it out"
        ) from None
    file = run_dir / WANDB_FILE
    if not file.exists():
        file.write_text(secrets.token_hex(8), encoding="utf-8")
    try:
        run = wandb.init(project=project, id=file.read_text(encoding="utf-8"), resume="allow", dir=str(run_dir))
    except wandb.Error as error:
        raise RememError(f"wandb_project {project}: {' '.join(str(error).split())}; log in, or leave it out") from None
    run.define_metric("*", step_metric="step")
    return run


def open_lines(path: str | Path) -> FileIO:
    """A file of JSON lines, unbuffered, at its end; made where there is none.

    A line that a kill or a full disk cut short is completed by nothing: it is taken away first.
    """
    path = Path(path)
    try:
        _drop_torn_line(path)
        return open(path, "ab", buffering=0)
    except OSError as error:
        raise RememError(f"{path} cannot be written: {error.strerror}; give another run directory") from None


def append_line(file: FileIO, record: Mapping[str, Any]) -> None:
    """One JSON line in one write; values must be finite."""
    rest = memoryview((json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n").encode())
    try:
        while rest:  # a second write only where the first was cut short, as on a full disk
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise RememError(f"{file.name} cannot be written: {error.strerror}; make room and resume the run") from None


def truncate_lines(path: str | Path, step: int) -> None:
    """Drop the lines of a JSONL file whose `step` is `step` or later, and a last line cut short, in one replacement.

    No file is no error.
    """
    path = Path(path)
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for number, line in enumerate(lines, 1) if _is_before(line, step, f"{path} line {number}")]
    if len(kept) == len(lines):
        return
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise RememError(f"{path} cannot be rewritten: {error.strerror}; make room and resume again") from None


def read_metrics(path: str | Path) -> list[dict[str, float | None]]:
    """The lines of a metrics file (or of the run directory that holds it), null as None; a torn last line is left out.

    Raises RememError where there is no such file or a line is no JSON object.
    """
    path = Path(path)
    path = path / METRICS_FILE if path.is_dir() else path
    if not path.is_file():
        raise RememError(f"{path}: expected a metrics file, found none: give a run directory or its {METRICS_FILE}")
    lines = path.read_bytes().splitlines(keepends=True)
    return [_parsed(line, f"{path} line {n}") for n, line in enumerate(lines, 1) if line.endswith(b"\n")]


def _is_before(line: bytes, step: int, where: str) -> bool:
    if not line.endswith(b"\n"):
        return False
    found = _parsed(line, where).get("step")
    if not isinstance(found, int):
        raise RememError(f"{where}: expected a whole number as step, found {found!r}: mend or remove the line")
    return found < step


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RememError(f"{where}: expected a JSON object, found none: mend or remove the line")
    return value


def _drop_torn_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
