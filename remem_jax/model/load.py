"""Parameters from a checkpoint, tensor by tensor straight to where they belong, or from a random key.

A checkpoint is checked whole, by names and shapes, before anything is read.

Axes: L layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.errors import RememError
from remem_jax.model.config import ModelConfig, Spec, from_hf, parameter_tree
from remem_jax.model.gguf import read_gguf
from remem_jax.model.hub import resolve_model
from remem_jax.model.safetensors import INDEX, SINGLE, float_dtype, open_safetensors
from remem_jax.tokenizer import Tokenizer, load_tokenizer

_HARMLESS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")


class Source(Protocol):
    """What safetensors directories and GGUF files have in common; tensor names are Hugging Face's."""

    def config(self) -> dict: ...
    def names(self) -> Any: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def tensor(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray: ...


@dataclass(frozen=True)
class Model:
    """A decoder ready to run."""

    config: ModelConfig
    params: dict
    """Nested dictionary; `layers` is a tuple of L dictionaries, or one dictionary of stacked arrays."""
    tokenizer: Tokenizer | None
    """None where the checkpoint has no tokenizer files."""
    dtype: Any
    """Of the parameters and of the computation."""
    path: Path
    """The directory or .gguf file it came from."""


def load_model(
    path: str | Path,
    dtype: Any = "float32",
    *,
    stacked: bool = False,
    shardings: Callable[[dict], dict] | None = None,
    weights: bool = True,
) -> Model:
    """A model and its tokenizer.

    Args:
        path: a Hugging Face directory with safetensors weights, a .gguf file, a directory with one, or a hub id.
        dtype: float32, bfloat16 or float16, whatever the checkpoint's own.
        stacked: layers in `[L, ...]` arrays, the form for training.
        shardings: makes, of the tree of `Spec`s (`parameter_tree`), the tree of shardings to load to; None: everything
            goes to the default device.
        weights: False leaves `params` empty: configuration and tokenizer alone, for a look at prompts.

    Raises:
        RememError: there are no weights, the architecture is not supported, or a tensor is missing, extra or misshapen.
    """
    dtype = float_dtype(dtype)
    root = resolve_model(path)
    file = _weights(root)
    source: Source = open_safetensors(file) if file.is_dir() else read_gguf(file)
    config = from_hf(source.config())
    if not weights:
        return Model(config, {}, _tokenizer(root, file), dtype, root)
    places = None if shardings is None else shardings(parameter_tree(config, stacked=stacked))
    params = load_params(source, config, dtype, stacked=stacked, shardings=places)
    return Model(config, params, _tokenizer(root, file), dtype, root)


def _weights(root: Path) -> Path:
    """The directory of safetensors or the .gguf file that holds the weights of a model."""
    if not root.is_dir() or (root / SINGLE).is_file() or (root / INDEX).is_file():
        return root
    found = sorted(p for p in root.iterdir() if p.suffix.lower() == ".gguf")
    if len(found) > 1:
        raise RememError(f"expected one .gguf file in {root}, found {len(found)}: name one of them, as {found[0]}")
    return found[0] if found else root


def _tokenizer(root: Path, file: Path) -> Tokenizer | None:
    """The directory's own tokenizer if there is one, else that of a GGUF file."""
    if root.is_dir() and ((root / "tokenizer.json").is_file() or any(root.glob("*.model"))):
        return load_tokenizer(root)
    return load_tokenizer(file) if file.is_file() else None


def load_params(
    source: Source, config: ModelConfig, dtype: Any, *, stacked: bool = False, shardings: dict | None = None
) -> dict:
    """The parameters of a checkpoint, read one at a time.

    Args:
        shardings: a tree like the parameters'; each device's part is then read by itself, and a stacked array layer by
            layer, so that no more than this process's part of one array is in host memory.

    Raises:
        RememError: a tensor is missing, extra or misshapen. What is harmless is ignored: stored rotary frequencies, and
            the head of a model whose configuration says that it is tied (as transformers does).
    """
    _check(source, config)
    dtype = jnp.dtype(dtype)
    tree = parameter_tree(config, stacked=stacked)
    if shardings is None:
        return jax.tree.map(lambda spec: jnp.asarray(_read(source, spec, dtype, _everything(spec))), tree)

    def place(spec: Spec, sharding: jax.sharding.Sharding) -> jax.Array:
        parts: dict[Any, np.ndarray] = {}  # replicas of a part share one reading

        def part(index: Any) -> np.ndarray:
            key = tuple(s.indices(n) for s, n in zip(index, spec.shape, strict=True))
            if key not in parts:
                parts[key] = _read(source, spec, dtype, index)
            return parts[key]

        return jax.make_array_from_callback(spec.shape, sharding, part)

    return jax.tree.map(place, tree, shardings)


def _everything(spec: Spec) -> tuple[slice, ...]:
    return (slice(None),) * len(spec.shape)


def _read(source: Source, spec: Spec, dtype: Any, index: tuple[slice, ...]) -> np.ndarray:
    """A part of a parameter; of a stacked one, layer by layer."""
    if spec.axes[0] != "layers":
        return source.tensor(spec.hf_name, index).astype(dtype, copy=False)
    layers, rest = range(spec.shape[0])[index[0]], index[1:]
    shape = [len(range(n)[s]) for n, s in zip(spec.shape[1:], rest, strict=True)]
    out = np.empty((len(layers), *shape), dtype)
    for at, layer in enumerate(layers):
        out[at] = source.tensor(spec.hf_name.format(layer=layer), rest)
    return out


def _check(source: Source, config: ModelConfig) -> None:
    """Names what is missing, misshapen or extra; the first of each kind in full, the rest counted."""
    expected = {spec.hf_name: spec.shape for spec in jax.tree.leaves(parameter_tree(config))}
    names = set(source.names())
    missing = [name for name in expected if name not in names]
    if missing:
        what = f"missing tensor {missing[0]}: expected shape {list(expected[missing[0]])}, found none"
        raise RememError(what + _more(missing) + "; is the checkpoint complete, and does config.json belong to it?")
    shapes = {name: tuple(source.shape(name)) for name in expected}
    wrong = [name for name in expected if shapes[name] != expected[name]]
    if wrong:
        name = wrong[0]
        what = f"misshapen tensor {name}: expected shape {list(expected[name])}, found {list(shapes[name])}"
        raise RememError(what + _more(wrong) + "; does config.json belong to these weights?")
    extra = sorted(n for n in names - set(expected) if not n.endswith(_HARMLESS) and n != "lm_head.weight")
    if extra:
        what = f"extra tensor {extra[0]}: expected none of this name, found shape {list(source.shape(extra[0]))}"
        raise RememError(what + _more(extra) + f"; config.json describes a {config.model_type} model without it")


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def init_params(config: ModelConfig, key: jax.Array, dtype: Any = "float32", *, stacked: bool = False) -> dict:
    """Random parameters: normal(0.02), norms one, biases zero. The same numbers stacked or not.

    A pure function of `key`: `jax.eval_shape` gives the shapes, `jax.jit(..., out_shardings=...)` makes each device's
    part where it belongs.
    """
    specs, structure = jax.tree.flatten(parameter_tree(config, stacked=True))

    def one(spec: Spec, key: jax.Array) -> jax.Array:
        if spec.init == "normal":
            return (0.02 * jax.random.normal(key, spec.shape, jnp.float32)).astype(dtype)
        return jnp.full(spec.shape, {"ones": 1, "zeros": 0}[spec.init], dtype)

    keys = jax.random.split(key, len(specs))
    params = jax.tree.unflatten(structure, [one(spec, own) for spec, own in zip(specs, keys, strict=True)])
    return params if stacked else unstack_layers(params)


def stack_layers(params: Mapping[str, Any]) -> dict:
    """Layers as one dictionary of `[L, ...]` arrays; parameters that are stacked already stay."""
    if isinstance(params["layers"], Mapping):
        return dict(params)
    return dict(params) | {"layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])}


def unstack_layers(params: Mapping[str, Any]) -> dict:
    """Layers as a tuple of L dictionaries; parameters that are unstacked already stay."""
    if not isinstance(params["layers"], Mapping):
        return dict(params)
    number = jax.tree.leaves(params["layers"])[0].shape[0]
    return dict(params) | {"layers": tuple(jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(number))}
