"""Checkpoints on Orbax, written in the background: complete or not there at all, the newest and the best kept.

How they lie on disk and are read is in `remem_jax.stored`, whose functions are named here too.
"""

import errno
import json
import math
import os
import re
import secrets
import shutil
import time
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from remem_jax.errors import RememError
from remem_jax.locks import lock_folder
from remem_jax.mesh import Placement
from remem_jax.paths import url_of
from remem_jax.settings import one_line
from remem_jax.stored import (
    COMMIT_FILE,
    FILES,
    INFO_FILE,
    STATE,
    absolute,
    best_step,
    committed,
    complete_steps,
    entries,
    find_checkpoint,
    hush,
    in_bucket,
    named_leaves,
    read_info,
    restore,
)

__all__ = ["Checkpoints", "check_space", "check_writable", "find_checkpoint", "read_info", "restore", "state_bytes"]

_DELETED = ".deleted-"
_UNFINISHED = (".orbax-checkpoint-tmp", _DELETED)


@dataclass
class _SaveFiles(ocp.args.CheckpointArgs):
    files: Mapping[str, bytes]


class _FilesHandler(ocp.CheckpointHandler):
    """Puts files into a checkpoint as they are, so that one rename shows them together with the arrays."""

    def save(self, directory: Any, args: _SaveFiles) -> None:
        if jax.process_index() == 0:
            for name, content in args.files.items():
                (directory / name).write_bytes(content)

    def restore(self, directory: Any, args: _SaveFiles | None = None) -> None:
        """Nothing: the files are read where they lie."""


ocp.args.register_with_handler(_FilesHandler, for_save=True, for_restore=True)(_SaveFiles)


class Checkpoints:
    """The checkpoints of a run, of which the newest `keep` and the one with the highest score stay.

    Every process of a run makes one and calls it at the same steps; on several hosts the folder must be shared, or in a
    bucket, where nothing keeps another run from opening it too. A save
    copies the state and goes on writing in the background. What a kill leaves behind is never taken for a checkpoint,
    and is removed when the next run opens the folder. Until it is closed no other run can open the folder.
    """

    def __init__(self, directory: str | Path, *, keep: int = 2, placement: Placement | None = None):
        """Makes `directory`; raises RememError where nothing can be written or another run is at work.

        With the placement of several processes, all of them go by what process 0 sees in the folder.
        """
        self._placement = placement or Placement(None)
        if keep < 1:
            raise RememError(f"keep must be at least 1 checkpoint, found {keep}")
        self.directory = _writable(directory)
        busy = f"another run is writing to {self.directory}: wait for it, or name another directory"
        here = jax.process_index() == 0 and not in_bucket(self.directory)  # where folders can be locked
        self._lock = lock_folder(self.directory, busy) if here else None
        self._keep = keep
        self._pending: int | None = None
        self._known: set[int] = set()  # saved or restored here, so that saving one again means the same state
        hush()
        self._remove_unfinished()
        # Uncompressed: weights hardly shrink, and compression would take the cores that the training runs on.
        arrays = ocp.PyTreeCheckpointHandler(use_compression=False)
        self._writer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(**{STATE: arrays, FILES: _FilesHandler()}))

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return sorted(self._complete())

    def latest(self) -> int | None:
        """The newest step, None without any."""
        return max(self._complete(), default=None)

    def best(self) -> int | None:
        """The step with the highest score, the first of equals; None where no score was given."""
        return best_step(self._complete())

    def _complete(self) -> dict[int, float | None]:
        found = self._placement.share(list(complete_steps(self.directory).items()))[0]
        return dict(found)

    def save(
        self,
        step: int,
        state: Any,
        info: Mapping[str, Any],
        *,
        files: Mapping[str, Path | str | bytes],
        score: float | None = None,
    ) -> None:
        """Starts a save; waits first for the one before, if it is still being written.

        Args:
            state: a tree of arrays, sharded or not. It may be donated as soon as this returns.
            info: JSON values: data position, seed, configuration.
            files: name -> a file to copy (Path) or content (text or bytes).
            score: of the validation at this step, the higher the better; None or NaN where there was none.

        Of a step that was saved or restored here before, `info` and `score` are renewed; the arrays are the same.

        Raises:
            RememError: this or the save before failed, as on a full disk; or the step is there from another run.
        """
        self.wait()
        self._remove_unfinished()  # writes that a failed save had begun may have come after its end
        score = None if score is None or math.isnan(score) else float(score)
        record = _json({"step": step, "score": score, "info": dict(info)})
        if step in self._complete():
            self._renew(step, record)
            return
        contents = {name: _content(value) for name, value in files.items()} | {INFO_FILE: record}
        named = named_leaves(state)
        jax.block_until_ready(named)  # a failed computation shows up here, not as a failed save
        arguments = {STATE: ocp.args.PyTreeSave(named), FILES: _SaveFiles(contents)}
        self._pending = step
        try:
            self._writer.save(self.directory / str(step), args=ocp.args.Composite(**arguments))
        except Exception as error:
            self._failed(error)

    def _renew(self, step: int, record: bytes) -> None:
        if step not in self._known:
            raise RememError(
                f"{self.directory} holds a checkpoint of step {step} from another run: resume from it, or give this "
                "run a directory of its own"
            )
        if jax.process_index() == 0:
            file = self.directory / str(step) / FILES / INFO_FILE
            part = file if in_bucket(file) else file.with_suffix(".part")  # a bucket's files appear whole
            part.write_bytes(record)
            if part != file:
                os.replace(part, file)

    def restore(self, step: int, like: Any) -> tuple[Any, dict]:
        """State and info of a step; see `restore`."""
        self.wait()
        restored = restore(self.directory / str(step), like)
        self._known.add(step)
        return restored

    def discard_after(self, step: int) -> None:
        """Removes the checkpoints of later steps, which a run that goes on from `step` will come to anew."""
        self.wait()
        self._remove(self.directory / str(s) for s in self.steps() if s > step)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"checkpoints after step {step} discarded")

    def wait(self) -> None:
        """Until the last save is on disk; then those that need not stay are removed.

        Raises:
            RememError: the save failed. The earlier checkpoints are as they were.
        """
        try:
            self._writer.wait_until_finished()
        except Exception as error:
            self._failed(error)
        if self._pending is None:
            return
        self._known.add(self._pending)
        self._pending = None
        found = self._complete()
        stay = {*sorted(found)[-self._keep :], best_step(found)}
        self._remove(self.directory / str(step) for step in found if step not in stay)

    def close(self) -> None:
        """Waits and ends the writer."""
        try:
            self.wait()
        finally:
            self._writer.close()
            self._remove_unfinished()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _failed(self, error: Exception) -> NoReturn:
        """Makes room again; raises what the user can mend in one line, else `error`."""
        step, self._pending = self._pending, None
        self._remove_unfinished()
        reason = _system_reason(error)
        if reason is None:
            raise error
        have = max(complete_steps(self.directory), default=None)
        rest = "there is no earlier one" if have is None else f"the last complete one is step {have}"
        raise RememError(
            f"checkpoint of step {step} could not be written to {self.directory}: {reason}; {rest}; make room or mend "
            "the path, then resume"
        ) from None

    def _remove_unfinished(self) -> None:
        found = entries(self.directory)
        self._remove(p for p in found if p.name.isdecimal() and not committed(p))
        self._remove(p for p in found if any(mark in p.name for mark in _UNFINISHED))

    def _remove(self, paths: Iterable[Path]) -> None:
        """Renames first: a kill while files are being removed must not leave half a checkpoint under its name."""
        for path in list(paths) if jax.process_index() == 0 else ():
            if in_bucket(path):
                (path / COMMIT_FILE).unlink(missing_ok=True)
                typing.cast(epath.Path, path).rmtree(missing_ok=True)
                continue
            if not path.name.startswith(_DELETED):
                path = path.rename(path.with_name(f"{_DELETED}{path.name}-{time.time_ns()}"))
            shutil.rmtree(path, ignore_errors=True)


def state_bytes(state: Any) -> int:
    """Bytes of a checkpoint of `state`, arrays or `ShapeDtypeStruct`s."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(state))


def check_space(directory: str | Path, bytes_each: int, *, keep: int = 2) -> str | None:
    """Is there room for the checkpoints of a run: `keep`, the best and the one being written?

    Returns a warning where it is tight.

    Raises:
        RememError: there clearly is not.
    """
    if url_of(directory) is not None:
        return None
    place = Path(directory).absolute()
    there = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) if place.is_dir() else 0
    while not place.exists():
        place = place.parent
    needed, free = (keep + 2) * bytes_each, shutil.disk_usage(place).free + there
    if free >= 1.2 * needed:
        return None
    text = f"{keep + 2} checkpoints of {_size(bytes_each)} need {_size(needed)}, {_size(free)} free at {directory}"
    if free < needed:
        raise RememError(f"too little room on the disk: {text}; make room, keep fewer or name another directory")
    return f"little room on the disk: {text}"


def check_writable(directory: str | Path) -> None:
    """Raises RememError where `directory` clearly could not be made or written; makes nothing, and asks no bucket."""
    path = absolute(directory)
    if in_bucket(path):
        return
    while not path.exists():
        path = path.parent
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        reason = os.strerror(errno.EACCES if path.is_dir() else errno.ENOTDIR)
        raise RememError(f"checkpoints cannot be written to {directory}: {reason}; name another directory")


def _writable(directory: str | Path) -> Path:
    """The directory, made and tried out."""
    check_writable(directory)
    path = absolute(directory)
    probe = path / f".writable-{secrets.token_hex(4)}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"1")
        probe.unlink()
    except OSError as error:
        raise RememError(
            f"checkpoints cannot be written to {path}: {error.strerror or error}; name another directory"
        ) from None
    except Exception as error:
        if not in_bucket(path):
            raise
        raise RememError(f"checkpoints cannot be written to {path}: {type(error).__name__} {one_line(error)}") from None
    return path


def _json(value: dict) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _content(value: Path | str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else value.read_bytes()


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _system_reason(error: Exception) -> str | None:
    """What the operating system said, of an OSError or of TensorStore's message; None if it was not that."""
    code = error.errno if isinstance(error, OSError) else None
    found = re.search(r"os_error_code='(\d+)'", str(error))
    code = int(found[1]) if found else code
    if code is None:
        return None
    return "the disk is full" if code == errno.ENOSPC else os.strerror(code)
