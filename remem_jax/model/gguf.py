"""Reads a GGUF file (llama.cpp's format) as a Hugging Face model: configuration, tensor names, float32 tensors.

The header is parsed here, because the reader of the package `gguf` takes seconds for a real vocabulary and lets a
truncated file pass as garbage; that package's `dequantize` turns blocks into numbers, one tensor at a time.

Axes: tensors are (out, in), as in Hugging Face checkpoints; H heads, h head size, D hidden size, V vocabulary.
Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

import mmap
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remem_jax.errors import RememError
from remem_jax.model.gguf_config import ARCHITECTURES, config_of, hf_tensor_name, required

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True)
class _Stored:
    """Where a tensor lies in the file: its GGUF name, shape (out, in), GGML type number, first byte and byte count."""

    gguf_name: str
    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


@dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file; `metadata` holds plain Python values, tensors are named as Hugging Face names them."""

    path: Path
    metadata: dict[str, Any]
    stored: dict[str, _Stored]
    data: np.ndarray  # the file's bytes, memory-mapped

    def config(self) -> dict[str, Any]:
        """The model as a Hugging Face config.json dictionary (rope_theta and rope_scaling at the top level)."""
        factors = self._raw("rope_freqs.weight") if "rope_freqs.weight" in self.stored else None
        shapes = {name: entry.shape for name, entry in self.stored.items()}
        return config_of(self.path, self.metadata, shapes, factors)

    def names(self) -> list[str]:
        """Hugging Face names of all weights; a tensor that has none there keeps its GGUF name, so a loader names it."""
        return [name for name in self.stored if name != "rope_freqs.weight"]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape (out, in) of a tensor by its Hugging Face name."""
        return self._entry(name).shape

    def tensor(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """float32 tensor by its Hugging Face name, or the part `index` of it; only rows in `index` are dequantised.

        Architecture `llama` stores q and k with the two halves of each head's rows interleaved (row 2j + s of a head is
        row s * h/2 + j of Hugging Face's, s in 0, 1); here they are back in Hugging Face's order.
        """
        entry = self._entry(name)
        index = index or ()
        rows = _row_order(self.path, name, entry.shape[0], self.metadata)
        if rows is not None or index:
            all_rows = np.arange(entry.shape[0]) if rows is None else rows
            rows = all_rows[index[0]] if index else all_rows
        values = self._raw(name, rows)
        return np.ascontiguousarray(values[(slice(None), *index[1:])]) if index[1:] else values

    def _entry(self, name: str) -> _Stored:
        if name not in self.stored:
            raise RememError(f"{self.path} holds no tensor {name}: the file is incomplete or of another architecture")
        return self.stored[name]

    def _raw(self, name: str, rows: np.ndarray | None = None) -> np.ndarray:
        """float32 values of a tensor in the file's own row order, or of the rows named."""
        import gguf

        entry = self.stored[name]
        blocks = self.data[entry.start : entry.start + entry.size].reshape(entry.shape[0], -1)
        if rows is not None:
            blocks = blocks[rows]
        kind = gguf.GGMLQuantizationType(entry.kind)
        try:
            with np.errstate(all="ignore"):
                values = gguf.quants.dequantize(np.ascontiguousarray(blocks), kind)
        except NotImplementedError:
            advice = "use a file with Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0, F16, BF16 or F32"
            raise RememError(f"{self.path}: tensor {entry.gguf_name} has the type {kind.name}: {advice}") from None
        return np.asarray(values, np.float32).reshape(blocks.shape[0], *entry.shape[1:])


def read_metadata(path: str | Path) -> dict[str, Any]:
    """The metadata of a GGUF file as plain Python values; tensors are neither needed nor checked."""
    return _Header(Path(path)).metadata


def read_gguf(path: str | Path) -> GgufFile:
    """Opens a GGUF model of a supported architecture; its header is read and every tensor's place checked.

    Raises RememError for a file that isn't GGUF, is cut short or damaged, is one part of several, or holds another
    architecture.
    """
    path = Path(path)
    header = _Header(path)
    metadata = header.metadata
    architecture = required(path, metadata, "general.architecture")
    if architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise RememError(f"{path} holds the architecture {architecture}: supported in GGUF are {supported}")
    if metadata.get("split.count", 1) > 1:
        raise RememError(f"{path} is one of {metadata['split.count']} parts: join them with llama-gguf-split --merge")
    return GgufFile(path, metadata, header.tensors(), np.memmap(path, np.uint8, mode="r"))


def _row_order(path: Path, name: str, rows: int, metadata: dict[str, Any]) -> np.ndarray | None:
    """For each row in Hugging Face's order the row of the file, or None where the two orders are the same."""
    kind = re.search(r"self_attn\.([qk])_proj\.", name)
    if metadata["general.architecture"] != "llama" or kind is None:
        return None
    heads = required(path, metadata, "llama.attention.head_count")
    if kind[1] == "k":
        heads = metadata.get("llama.attention.head_count_kv", heads)
    if not isinstance(heads, int) or heads < 1 or rows % (2 * heads):
        raise RememError(f"{path}: tensor {name} has {rows} rows: expected a multiple of twice its {heads} heads")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


class _Header:
    """A cursor over a GGUF header that knows where the file ends."""

    def __init__(self, path: Path):
        self.path = path
        self.at = 0
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        except OSError as error:
            raise RememError(f"can't read {path}: {error.strerror}") from None
        found = self.bytes[:4]
        if found != _MAGIC:
            raise RememError(f"{path} is not a GGUF file: expected it to start with {_MAGIC!r}, found {found!r}")
        self.at = 4
        version = self._number("<I")
        if version not in _VERSIONS:
            raise RememError(f"{path} is GGUF version {version}: expected version 2 or 3, little-endian")
        self.tensor_count, count = self._number("<Q"), self._number("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            self.metadata[key] = self._value(self._number("<I"))

    def tensors(self) -> dict[str, _Stored]:
        """The tensor table, which follows the metadata: Hugging Face name -> place."""
        import gguf

        table = []
        for _ in range(self.tensor_count):
            name = self._string()
            shape = tuple(self._number("<Q") for _ in range(self._number("<I")))[::-1]
            table.append((name, shape, self._number("<I"), self._number("<Q")))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise RememError(f"{self.path} is damaged: its tensors are aligned to {alignment}; fetch the file again")
        base = -(-self.at // alignment) * alignment
        stored = {}
        for name, shape, kind, offset in table:
            try:
                per_block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
            except (ValueError, KeyError):
                raise RememError(
                    f"{self.path}: tensor {name} has the unknown GGML type {kind}: file damaged?"
                ) from None
            size = int(np.prod(shape, dtype=object)) * block_bytes // per_block
            if not shape or 0 in shape or shape[-1] % per_block:
                raise RememError(f"{self.path} is damaged: tensor {name} has the shape {shape}; fetch the file again")
            if base + offset + size > self.size:
                self._short(f"tensor {name} of shape {shape}", base + offset + size)
            stored[hf_tensor_name(name)] = _Stored(name, shape, kind, base + offset, size)
        return stored

    def _short(self, what: str, end: int):
        found = f"the file has {self.size} bytes, {what} needs {end}"
        raise RememError(f"{self.path} is cut short or damaged: {found}; fetch the file again")

    def _take(self, size: int, what: str) -> bytes:
        start, self.at = self.at, self.at + size
        if self.at > self.size:
            self._short(f"{what} at byte {start}", self.at)
        return self.bytes[start : self.at]

    def _number(self, form: str) -> int:
        return struct.unpack(form, self._take(struct.calcsize(form), "a number"))[0]

    def _string(self) -> str:
        start = self.at
        raw = self._take(self._number("<Q"), "a text")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise RememError(f"{self.path} is damaged: the text at byte {start} is not UTF-8; fetch it again") from None

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._number("<I"), self._number("<Q")
            if item in (_STRING, _ARRAY):
                return [self._value(item) for _ in range(count)]
            return self._numbers(item, count)
        return self._numbers(kind, 1)[0]

    def _numbers(self, kind: int, count: int) -> Sequence[Any]:
        if kind not in _SCALARS:
            raise RememError(f"{self.path} is damaged: unknown value type {kind} at byte {self.at}; fetch it again")
        dtype = np.dtype(_SCALARS[kind])
        values = np.frombuffer(self._take(count * dtype.itemsize, f"{count} numbers"), dtype)
        if kind == _BOOL:
            return (values != 0).tolist()
        if dtype.kind == "f" and dtype.itemsize == 4:
            return [float(str(value)) for value in values]  # 1e-05 was meant, not 9.999999747378752e-06
        return values.tolist()
