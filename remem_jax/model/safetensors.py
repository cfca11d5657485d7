"""Hugging Face checkpoint directories: read one tensor, or a part of one, at a time; written whole or not at all.

Both directions hold one tensor in host memory. bfloat16 is read and written as it is.
"""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from remem_jax.errors import RememError
from remem_jax.model.config import ModelConfig, Spec, eos_ids, parameter_specs, to_hf

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class SafetensorsDir:
    """An opened checkpoint: nothing is read but the headers. Made by `open_safetensors`."""

    path: Path
    """The directory."""
    files: Mapping[str, Any]
    """Tensor name -> the open file that holds it (files are mapped into memory, shared by their tensors)."""

    def config(self) -> dict:
        """config.json, with the end-of-text ids of generation_config.json added to its own."""
        config = _read_json(self.path / "config.json")
        generation = self.path / "generation_config.json"
        more = _read_json(generation).get("eos_token_id") if generation.is_file() else None
        return config | {"eos_token_id": list(eos_ids(config.get("eos_token_id"), more))}

    def names(self) -> tuple[str, ...]:
        """All tensor names."""
        return tuple(self.files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the header."""
        return tuple(self.files[name].get_slice(name).get_shape())

    def tensor(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """A tensor in its stored dtype; with `index`, one slice a dimension, only that part of it is read."""
        file = self.files[name]
        return file.get_tensor(name) if index is None else file.get_slice(name)[index]


def open_safetensors(path: Path) -> SafetensorsDir:
    """Opens the directory's model.safetensors, or else the shards that its index names.

    Raises:
        RememError: there are no weights, a shard is missing or corrupt, or the index and a shard disagree.
    """
    if (path / SINGLE).is_file():
        file = _open(path / SINGLE)
        return SafetensorsDir(path, dict.fromkeys(file.keys(), file))
    if not (path / INDEX).is_file():
        others = sorted(p.name for pattern in ("*.bin", "*.safetensors", "*.pt", "*.pth") for p in path.glob(pattern))
        found = ", ".join(others[:3]) or "none of these"
        raise RememError(f"no weights in {path}: expected {SINGLE}, {INDEX} or one .gguf file, found {found}")
    where = _read_json(path / INDEX).get("weight_map")
    if not isinstance(where, dict):
        raise RememError(f"{path / INDEX} is not an index of shards: expected an object with a weight_map")
    shards = {name: _open(path / name) for name in sorted(set(where.values()))}
    held = {shard: set(file.keys()) for shard, file in shards.items()}
    for name, shard in where.items():
        if name not in held[shard]:
            raise RememError(f"{path / INDEX} places tensor {name} in {shard}, which does not hold it")
    return SafetensorsDir(path, {name: shards[shard] for name, shard in where.items()})


def float_dtype(dtype: Any) -> np.dtype:
    """The dtype of a name or a dtype, if it is one that parameters can have."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in _DTYPES:
        raise RememError(f"unsupported dtype {found or dtype}: expected {', '.join(_DTYPES)}")
    return found


def _open(file: Path) -> Any:
    if not file.is_file():
        raise RememError(f"weights file {file} is missing: its index names it; copy the whole checkpoint")
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise RememError(f"corrupt weights file {file}: {error}; copy or download it again") from None


def _read_json(file: Path) -> dict:
    if not file.is_file():
        raise RememError(f"{file} is missing: a model directory needs its config.json beside the weights")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RememError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RememError(f"{file} must hold a JSON object, found {type(value).__name__}")
    return value


def save_model(
    path: str | Path,
    config: ModelConfig,
    params: dict,
    *,
    dtype: Any = None,
    extra_files: Mapping[str, bytes | Path] | None = None,
    max_shard_bytes: float = 5e9,
) -> None:
    """Writes a directory that `load_model`, transformers and servers read.

    Everything is written into a temporary directory beside `path`, which is renamed at the end: a kill leaves nothing
    half-written under the name.

    Args:
        path: a directory that does not exist yet, or is empty.
        params: with layers as a tuple of dictionaries or stacked. A tied head is not written.
        dtype: float32, bfloat16 or float16; None keeps each array's own.
        extra_files: file name -> its bytes, or a file to copy (tokenizer files, remem.json). A generation_config.json
            here replaces the one made from the configuration.
        max_shard_bytes: above this the weights are split into shards with an index.

    Raises:
        RememError: `path` holds something already, or the dtype is none of the three.
    """
    path, extra_files = Path(path), extra_files or {}
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RememError(f"will not write a model over {path}: expected a new or empty directory; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        for name, content in extra_files.items():
            (partial / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        dtypes = _write_weights(partial, config, params, dtype, max_shard_bytes)
        (partial / "config.json").write_bytes(
            _json(to_hf(config) | {"torch_dtype": max(dtypes, key=dtypes.__getitem__)})
        )
        if "generation_config.json" not in extra_files:
            (partial / "generation_config.json").write_bytes(_json({"eos_token_id": list(config.eos_ids) or None}))
        partial.chmod(0o755)
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_weights(path: Path, config: ModelConfig, params: dict, dtype: Any, max_shard_bytes: float) -> dict[str, int]:
    """Writes the shards and, where there are several, their index. Returns how many bytes there are of each dtype."""
    shards: list[dict[str, Any]] = []
    room, total, dtypes = 0.0, 0, {}
    for name, spec, array, layer in _named_tensors(config, params):
        kind = float_dtype(dtype or array.dtype).name
        size = int(np.prod(spec.shape)) * np.dtype(kind).itemsize
        if size > room:
            shards.append({})
            room = max(max_shard_bytes, size)
        shards[-1][name] = (spec.shape, kind, size, array, layer)
        room, total, dtypes[kind] = room - size, total + size, dtypes.get(kind, 0) + size
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    files = [SINGLE] if len(shards) == 1 else files
    for file, shard in zip(files, shards, strict=True):
        with open(path / file, "wb") as out:
            _write_shard(out, shard)
    if len(shards) > 1:
        where = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        (path / INDEX).write_bytes(_json({"metadata": {"total_size": total}, "weight_map": where}))
    return dtypes


def _named_tensors(config: ModelConfig, params: dict) -> Iterator[tuple[str, Spec, Any, int | None]]:
    """Every tensor of a checkpoint: name, spec of one layer's, the array with it and, if that is a stack, the layer."""
    layers = params["layers"]
    for path, spec in parameter_specs(config).items():
        if len(path) == 1:
            yield spec.hf_name, spec, params[path[0]], None
            continue
        for i in range(config.num_layers):
            name = spec.hf_name.format(layer=i)
            if isinstance(layers, dict):
                yield name, spec, layers[path[1]], i
            else:
                yield name, spec, layers[i][path[1]], None


def _write_shard(out: IO[bytes], shard: dict[str, Any]) -> None:
    """The safetensors format: length of the header, header, bytes of one tensor after another.

    Written here rather than by the package, whose writer wants all tensors of a file in memory at once.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, (shape, kind, size, _, _) in shard.items():
        header[name] = {"dtype": _DTYPES[kind], "shape": list(shape), "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)
    for name, (shape, kind, _, array, layer) in shard.items():
        value = np.asarray(jax.device_get(array if layer is None else array[layer]))
        if value.shape != shape:
            raise ValueError(f"{name} must have the shape {list(shape)}, found {list(value.shape)}")
        out.write(np.ascontiguousarray(value.astype(np.dtype(kind), copy=False)).tobytes())
    out.flush()
    os.fsync(out.fileno())


def _json(value: dict) -> bytes:
    return (json.dumps({k: v for k, v in value.items() if v is not None}, indent=2) + "\n").encode()
