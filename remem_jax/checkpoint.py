"""Checkpoints on Orbax: written in the background, complete or not there at all, restored straight to shardings.

A run's folder `checkpoints` holds one folder a step: `state/` with the arrays (Orbax's format) and `files/` with
`checkpoint.json` and the small files that make a model of the arrays: config.json, tokenizer files, remem.json.
"""

import contextlib
import errno
import functools
import json
import logging
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from remem_jax.errors import RememError

FOLDER, STATE, FILES = "checkpoints", "state", "files"
INFO_FILE = "checkpoint.json"
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

    Every process of a run makes one and calls it at the same steps; on several hosts the folder must be shared. A save
    copies the state and goes on writing in the background. What a kill leaves behind is never taken for a checkpoint,
    and is removed when the next run opens the folder.
    """

    def __init__(self, directory: str | Path, *, keep: int = 2):
        """Makes `directory`; raises RememError where nothing can be written."""
        if keep < 1:
            raise RememError(f"keep must be at least 1 checkpoint, found {keep}")
        self.directory = _writable(directory)
        self._keep = keep
        self._pending: int | None = None
        self._known: set[int] = set()  # saved or restored here, so that saving one again means the same state
        _hush()
        self._remove_unfinished()
        # Uncompressed: weights hardly shrink, and compression would take the cores that the training runs on.
        arrays = ocp.PyTreeCheckpointHandler(use_compression=False)
        self._writer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(**{STATE: arrays, FILES: _FilesHandler()}))

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return sorted(_complete(self.directory))

    def latest(self) -> int | None:
        """The newest step, None without any."""
        return max(_complete(self.directory), default=None)

    def best(self) -> int | None:
        """The step with the highest score, the first of equals; None where no score was given."""
        return _best(_complete(self.directory))

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

        A step that was saved or restored here before is left as it is.

        Raises:
            RememError: this or the save before failed, as on a full disk; or the step is there from another run.
        """
        self.wait()
        self._remove_unfinished()  # writes that a failed save had begun may have come after its end
        if step in _complete(self.directory):
            if step in self._known:
                return
            raise RememError(
                f"{self.directory} holds a checkpoint of step {step} from another run: resume from it, or give this "
                "run a directory of its own"
            )
        score = None if score is None or math.isnan(score) else float(score)
        record = {"step": step, "score": score, "info": dict(info)}
        contents = {name: _content(value) for name, value in files.items()}
        contents[INFO_FILE] = (json.dumps(record, indent=2) + "\n").encode()
        named = _named(state)
        jax.block_until_ready(named)  # a failed computation shows up here, not as a failed save
        arguments = {STATE: ocp.args.PyTreeSave(named), FILES: _SaveFiles(contents)}
        self._pending = step
        try:
            self._writer.save(self.directory / str(step), args=ocp.args.Composite(**arguments))
        except Exception as error:
            self._failed(error)

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
        found = _complete(self.directory)
        stay = {*sorted(found)[-self._keep :], _best(found)}
        self._remove(self.directory / str(step) for step in found if step not in stay)

    def close(self) -> None:
        """Waits and ends the writer."""
        try:
            self.wait()
        finally:
            self._writer.close()
            self._remove_unfinished()

    def _failed(self, error: Exception) -> NoReturn:
        """Makes room again; raises what the user can mend in one line, else `error`."""
        step, self._pending = self._pending, None
        self._remove_unfinished()
        reason = _system_reason(error)
        if reason is None:
            raise error
        have = self.latest()
        rest = "there is no earlier one" if have is None else f"the last complete one is step {have}"
        raise RememError(
            f"checkpoint of step {step} could not be written to {self.directory}: {reason}; {rest}; make room or mend "
            "the path, then resume"
        ) from None

    def _remove_unfinished(self) -> None:
        self._remove(p for p in self.directory.iterdir() if any(mark in p.name for mark in _UNFINISHED))

    def _remove(self, paths: Iterable[Path]) -> None:
        """Renames first: a kill while files are being removed must not leave half a checkpoint under its name."""
        for path in list(paths) if jax.process_index() == 0 else ():
            if not path.name.startswith(_DELETED):
                path = path.rename(path.with_name(_DELETED + path.name))
            shutil.rmtree(path, ignore_errors=True)


def restore(path: str | Path, like: Any) -> tuple[Any, dict]:
    """State and info of one checkpoint.

    Args:
        path: the folder of one step.
        like: a tree of arrays or `ShapeDtypeStruct`s. Each array comes back with the sharding of its place here
            (default device without one), bit for bit; NumPy arrays come back as NumPy arrays.

    Raises:
        RememError: the folder is no checkpoint or is damaged, or its tree, shapes or dtypes are others than `like`'s.
    """
    path, info = Path(path), read_info(path)
    named, stored = _named(like), stored_arrays(path)
    for kind, names in (("lacks", named.keys() - stored.keys()), ("also holds", stored.keys() - named.keys())):
        if names:
            first = min(names)
            found = (named | stored)[first]
            raise RememError(
                f"checkpoint {path} {kind} {first} {_shape(found)}{_more(names)}: it belongs to another model or "
                "optimizer; resume with the settings it was made with"
            )
    wrong = [name for name in named if _shape(named[name]) != _shape(stored[name])]
    if wrong:
        raise RememError(
            f"checkpoint {path}: expected {wrong[0]} {_shape(named[wrong[0]])}, found {_shape(stored[wrong[0]])}"
            f"{_more(wrong)}; resume with the settings it was made with"
        )
    arrays = read_arrays(path, named)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in named]), info


def read_arrays(path: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """Some arrays of a checkpoint by name, each as `restore` gives it."""

    def arguments(leaf: Any) -> ocp.RestoreArgs:
        if isinstance(leaf, np.ndarray):
            return ocp.RestoreArgs(restore_type=np.ndarray)
        sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)

    shapes = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in like.items()}
    restore_args = {name: arguments(leaf) for name, leaf in like.items()}
    request = ocp.args.PyTreeRestore(item=shapes, restore_args=restore_args, partial_restore=True)
    _hush()
    try:
        return ocp.PyTreeCheckpointHandler().restore(Path(path) / STATE, args=request)
    except (ValueError, OSError, KeyError) as error:
        raise _damaged(path, error) from None


def stored_arrays(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Names, shapes and dtypes of a checkpoint's arrays; nothing else is read."""
    _hush()
    try:
        tree: Any = ocp.PyTreeCheckpointHandler().metadata(Path(path) / STATE)
    except (ValueError, OSError, KeyError) as error:
        raise _damaged(path, error) from None
    return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in tree.items()}


def read_info(path: str | Path) -> dict:
    """The `info` that was saved with a checkpoint, the folder of one step."""
    try:
        return _record(Path(path))["info"]
    except OSError:
        raise RememError(f"{path} is not a complete checkpoint: expected {FILES}/{INFO_FILE} in it") from None


def find_checkpoint(path: str | Path, *, best: bool = False) -> Path:
    """The folder of one step, from a run's directory, its folder of checkpoints or a step's own folder.

    Args:
        best: the one with the highest score instead of the newest.
    """
    path = Path(path)
    if (path / FILES / INFO_FILE).is_file():
        if best:
            raise RememError(f"the best is one of several: expected a run's directory, found the checkpoint {path}")
        return path
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    found = _complete(folder) if folder.is_dir() else {}
    if not found:
        what = "no complete checkpoint in it" if path.is_dir() else "no such directory"
        raise RememError(f"{path}: expected a run's directory or one of its checkpoints, found {what}")
    step = _best(found) if best else max(found)
    if step is None:
        raise RememError(f"{folder}: expected a checkpoint with a validation score, found {len(found)} without")
    return folder / str(step)


def state_bytes(state: Any) -> int:
    """Bytes of a checkpoint of `state`, arrays or `ShapeDtypeStruct`s."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(state))


def check_space(directory: str | Path, bytes_each: int, *, keep: int = 2) -> str | None:
    """Is there room for the checkpoints of a run: `keep`, the best and the one being written?

    Returns a warning where it is tight.

    Raises:
        RememError: there clearly is not.
    """
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


def _writable(directory: str | Path) -> Path:
    """The directory, made and tried out."""
    if re.match(r"\w+://", str(directory)):
        raise RememError(f"checkpoints: expected a path of a mounted file system, found {directory}; mount the bucket")
    path = Path(directory).absolute()
    probe = path / f".writable-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"1")
        probe.unlink()
    except OSError as error:
        raise RememError(
            f"checkpoints cannot be written to {path}: {error.strerror or error}; name another directory"
        ) from None
    return path


def _complete(folder: Path) -> dict[int, float | None]:
    """Step -> score of the complete checkpoints. Orbax renames a step's folder to its number when all is written."""
    found = {}
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may be removing it
            if path.name.isdecimal():
                found[int(path.name)] = _record(path)["score"]
    return found


def _best(scores: Mapping[int, float | None]) -> int | None:
    measured = {step: score for step, score in sorted(scores.items()) if score is not None}
    return max(measured, key=measured.__getitem__, default=None)


def _record(path: Path) -> dict:
    try:
        return json.loads((path / FILES / INFO_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from None


def _content(value: Path | str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else value.read_bytes()


def _named(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their path, as `params.layers.q`: what is stored does not depend on Python classes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError("two leaves of the state have the same path")
    return named


def _shape(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _more(names: Any) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


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


def _damaged(path: str | Path, error: Exception) -> RememError:
    what = " ".join(str(error).split())
    return RememError(f"checkpoint {path} can't be read: {what[:200]}; take another one")


@functools.cache
def _hush() -> None:
    """Keeps Orbax's log off the screen: what it logs as an error it raises too.

    After a failed write TensorStore also reports to an event loop that Orbax has closed by then.
    """
    logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)
    before = sys.unraisablehook

    def hook(report: Any) -> None:
        if not (isinstance(report.exc_value, RuntimeError) and str(report.exc_value) == "Event loop is closed"):
            before(report)

    sys.unraisablehook = hook
