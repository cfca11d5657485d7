"""A checkpoint of a run becomes a Hugging Face directory that transformers, servers and `load_agent` open.

Master weights are read one stacked array at a time and rounded as they are written; LoRA adapters are merged first.

Axes: L layers.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from remem_jax.errors import RememError
from remem_jax.model import load_model, save_model
from remem_jax.model.config import ModelConfig, from_hf, parameter_tree
from remem_jax.paths import expanded, only_here
from remem_jax.stored import FILES, INFO_FILE, find_checkpoint, named_leaves, read_arrays, read_info, stored_arrays

DTYPES = ("bfloat16", "float32")
_CONFIG = "config.json"
_ELSEWHERE = (_CONFIG, INFO_FILE, "checkpoint.part", "commit_success.txt")


def convert(
    source: str | Path, out: str | Path, *, dtype: Literal["bfloat16", "float32"] | str = "bfloat16", best: bool = False
) -> Path:
    """Writes the model of a checkpoint with its tokenizer and agent settings; returns `out`.

    Args:
        source: a run's directory, its folder of checkpoints or one checkpoint.
        out: a directory that does not exist yet, or is empty. It appears whole or not at all.
        dtype: of the written weights; the checkpoint's own are float32.
        best: the best checkpoint by validation instead of the newest.

    Of several processes all call it and the first writes; the others need not wait for it.

    Raises:
        RememError: `out` holds something, there is no such checkpoint, or it is not one of a model.
    """
    only_here(out, "out")
    out = Path(expanded(str(out)))
    if dtype not in DTYPES:
        raise RememError(f"dtype must be one of {', '.join(DTYPES)}, found {dtype}")
    first = jax.process_index() == 0
    if first and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RememError(f"will not write a model over {out}: expected a new or empty directory; choose another name")
    path = find_checkpoint(source, best=best)
    files = {file.name: file for file in (path / FILES).iterdir() if file.name not in _ELSEWHERE}
    config, info = _model_config(path), read_info(path)
    params = _merged(path, info) if "lora" in info else _stored(path, config)
    if first:
        save_model(out, config, params, dtype=dtype, extra_files=files)
    return out


def _model_config(path: Path) -> ModelConfig:
    file = path / FILES / _CONFIG
    if not file.is_file():
        raise RememError(f"checkpoint {path} is not one of a model: expected {FILES}/{_CONFIG} in it, found none")
    return from_hf(json.loads(file.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class _OnDisk:
    """An array of a checkpoint that is in memory only while it is written."""

    name: str
    dtype: np.dtype
    read: Callable[[str], np.ndarray]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.read(self.name)

    def __getitem__(self, layer: int) -> np.ndarray:
        return self.read(self.name)[layer]


def _stored(path: Path, config: ModelConfig) -> dict:
    """The stacked parameters of a checkpoint, not read yet."""
    stored, tree = stored_arrays(path), {"params": parameter_tree(config, stacked=True)}
    for name, spec in named_leaves(tree).items():
        found = list(stored[name].shape) if name in stored else "none"
        if found != list(spec.shape):
            raise RememError(
                f"checkpoint {path}: expected {name} of shape {list(spec.shape)}, found {found}; is the {_CONFIG} in "
                f"its {FILES} that of this run?"
            )

    @functools.lru_cache(maxsize=1)  # layers of one array are written one after another
    def read(name: str) -> np.ndarray:
        return read_arrays(path, {name: np.empty(stored[name].shape, stored[name].dtype)})[name]

    structure = jax.tree.structure(tree)
    leaves = [_OnDisk(name, np.dtype(stored[name].dtype), read) for name in named_leaves(tree)]
    return jax.tree.unflatten(structure, leaves)["params"]


def _merged(path: Path, info: dict) -> dict:
    """The base model's parameters with the checkpoint's adapters in them."""
    from remem_jax.rl import lora

    settings, base = info["lora"], info["base"]
    try:
        model = load_model(base, "float32", stacked=True)
    except RememError as error:
        raise RememError(
            f"checkpoint {path} holds adapters of the model {base}, which can't be read: {error}"
        ) from None
    specs = {"params": lora.adapter_specs(model.config, settings["rank"], settings["targets"])}
    shapes = {name: np.empty(spec.shape, np.float32) for name, spec in named_leaves(specs).items()}
    arrays = read_arrays(path, shapes)
    adapters = jax.tree.unflatten(jax.tree.structure(specs), [arrays[name] for name in shapes])["params"]
    return lora.merge(model.params, adapters, settings["alpha"] / settings["rank"])
