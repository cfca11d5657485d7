"""Checkpoints as they lie on disk: found, checked against what is expected, and read straight to shardings.

A run's folder `checkpoints` holds one folder a step: `state/` with the arrays (Orbax's format) and `files/` with
`checkpoint.json` and the small files that make a model of the arrays: config.json, tokenizer files, remem.json.
"""

import contextlib
import functools
import json
import logging
import os
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from remem_jax.errors import RememError
from remem_jax.paths import expanded, open_url, url_of

FOLDER, STATE, FILES = "checkpoints", "state", "files"
INFO_FILE, COMMIT_FILE = "checkpoint.json", "commit_success.txt"


def restore(path: str | Path, like: Any) -> tuple[Any, dict]:
    """State and info of one checkpoint.

    Args:
        path: the folder of one step.
        like: a tree of arrays or `ShapeDtypeStruct`s. Each array comes back with the sharding of its place here
            (default device without one), bit for bit; NumPy arrays come back as NumPy arrays.

    Raises:
        RememError: the folder is no checkpoint or is damaged, or its tree, shapes or dtypes are others than `like`'s.
    """
    path, info = absolute(path), read_info(path)
    named, stored = named_leaves(like), stored_arrays(path)
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
    hush()
    try:
        return ocp.PyTreeCheckpointHandler().restore(_arrays_of(path), args=request)
    except (ValueError, OSError, KeyError) as error:
        raise _damaged(path, error) from None


def stored_arrays(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Names, shapes and dtypes of a checkpoint's arrays; nothing else is read."""
    hush()
    try:
        tree: Any = ocp.PyTreeCheckpointHandler().metadata(_arrays_of(path))
    except (ValueError, OSError, KeyError) as error:
        raise _damaged(path, error) from None
    return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in tree.items()}


def _arrays_of(path: str | Path) -> Any:
    return absolute(path) / STATE


def read_info(path: str | Path) -> dict:
    """The `info` that was saved with a checkpoint, the folder of one step."""
    try:
        return _record(absolute(path))["info"]
    except OSError:
        raise RememError(f"{path} is not a complete checkpoint: expected {FILES}/{INFO_FILE} in it") from None


def find_checkpoint(path: str | Path, *, best: bool = False) -> Path:
    """The folder of one step, from a run's directory, its folder of checkpoints or a step's own folder.

    Args:
        best: the one with the highest score instead of the newest.
    """
    path = absolute(path)
    if (path / FILES / INFO_FILE).is_file() and committed(path):
        if best:
            raise RememError(f"the best is one of several: expected a run's directory, found the checkpoint {path}")
        return path
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    found = complete_steps(folder) if folder.is_dir() else {}
    if not found:
        what = "no complete checkpoint in it" if path.is_dir() else "no such directory"
        raise RememError(f"{path}: expected a run's directory or one of its checkpoints, found {what}")
    step = best_step(found) if best else max(found)
    if step is None:
        raise RememError(f"{folder}: expected a checkpoint with a validation score, found {len(found)} without")
    return folder / str(step)


def absolute(path: str | Path) -> Path:
    """Equal places are equal paths, without `..`; one in a bucket is an `epath.Path`, which has the same methods.

    Raises:
        RememError: a kind of bucket that checkpoints cannot be in, or the package that opens it is missing.
    """
    url = url_of(path)
    if url is None:
        return Path(os.path.abspath(expanded(str(path))))
    if not url.startswith("gs://"):
        raise RememError(f"{url}: expected a path of this machine or gs://: Orbax keeps no checkpoints elsewhere")
    open_url(url)
    return typing.cast(Path, epath.Path(url))


def in_bucket(path: Path) -> bool:
    return url_of(path) is not None


def entries(folder: Path) -> list[Path]:
    """What is in a folder; a bucket has no empty ones, so where there is none nothing is in it."""
    return [] if in_bucket(folder) and not folder.is_dir() else list(folder.iterdir())


def committed(path: Path) -> bool:
    """Is a step's folder whole? Here it gets its name by then; in a bucket Orbax writes a file at the end."""
    return not in_bucket(path) or (path / COMMIT_FILE).exists()


def complete_steps(folder: Path) -> dict[int, float | None]:
    """Step -> score of the complete checkpoints. Orbax renames a step's folder to its number when all is written."""
    found = {}
    for path in entries(folder):
        with contextlib.suppress(FileNotFoundError):  # another process may be removing it
            if path.name.isdecimal() and committed(path):
                found[int(path.name)] = _record(path)["score"]
    return found


def best_step(scores: Mapping[int, float | None]) -> int | None:
    measured = {step: score for step, score in sorted(scores.items()) if score is not None}
    return max(measured, key=measured.__getitem__, default=None)


def _record(path: Path) -> dict:
    try:
        return json.loads((path / FILES / INFO_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from None


def named_leaves(tree: Any) -> dict[str, Any]:
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


def _damaged(path: str | Path, error: Exception) -> RememError:
    what = " ".join(str(error).split())
    return RememError(f"checkpoint {path} can't be read: {what[:200]}; take another one")


@functools.cache
def hush() -> None:
    """Keeps Orbax's log off the screen: what it logs as an error it raises too.

    After a failed write TensorStore also reports to an event loop that Orbax has closed by then.
    """
    logging.getLogger("absl").addFilter(lambda record: f"{os.sep}orbax{os.sep}" not in record.pathname)
    before = sys.unraisablehook

    def hook(report: Any) -> None:
        if not (isinstance(report.exc_value, RuntimeError) and str(report.exc_value) == "Event loop is closed"):
            before(report)

    sys.unraisablehook = hook
