"""The mesh `(data, fsdp, tensor)` and the one table that says which of its axes shards which logical axis.

Axes of parameters are named in `model.config.parameter_specs`; those of batches are `batch` (questions), and the rest.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from remem_jax.errors import RememError

MESH_AXES = ("data", "fsdp", "tensor")

# Logical axis -> mesh axes. Parameters are sharded by fsdp and tensor, arrays with questions by data and fsdp.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "vocab": ("tensor",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv": ("tensor",),
    "ff": ("tensor",),
    "head_dim": (),
    "layers": (),
    "rank": (),
    "tokens": (),
}


def make_mesh(shape: Sequence[int] = (1, -1, 1), devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over `devices` (default: all); one size may be -1 and takes what is left.

    Raises RememError when the sizes do not fit the number of devices.
    """
    found = list(jax.devices() if devices is None else devices)
    sizes = list(shape)
    if len(sizes) != len(MESH_AXES) or sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise RememError(f"mesh: expected sizes for {', '.join(MESH_AXES)}, at most one of them -1, found {sizes}")
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and len(found) % known == 0:
        sizes[sizes.index(-1)] = len(found) // known
    if math.prod(sizes) != len(found):
        spelled = " x ".join(f"{axis} {size}" for axis, size in zip(MESH_AXES, shape, strict=True))
        raise RememError(f"mesh: {spelled} does not fit {len(found)} devices; the product must be {len(found)}")
    return Mesh(np.asarray(found).reshape(sizes), MESH_AXES)


def partition_spec(axes: Sequence[str | None]) -> PartitionSpec:
    """Mesh axes of an array whose dimensions have these logical axes (None: not sharded).

    Raises RememError for an unknown name, and when two dimensions would land on one mesh axis.
    """
    places: list[tuple[str, ...] | None] = []
    taken: dict[str, str] = {}
    for axis in axes:
        if axis is not None and axis not in RULES:
            raise RememError(f"logical axis {axis!r} is unknown; the table has {', '.join(RULES)}")
        chosen = RULES[axis] if axis is not None else ()
        for mesh_axis in chosen:
            if mesh_axis in taken:
                raise RememError(f"logical axes {taken[mesh_axis]} and {axis} both land on mesh axis {mesh_axis}")
            taken[mesh_axis] = str(axis)
        places.append(chosen or None)
    return PartitionSpec(*places)


def sharding(mesh: Mesh, axes: Sequence[str | None]) -> NamedSharding:
    """The sharding of an array whose dimensions have these logical axes."""
    return NamedSharding(mesh, partition_spec(axes))


def parameter_shardings(mesh: Mesh, tree) -> dict:
    """Shardings for a tree of parameter `Spec`s; give `partial(parameter_shardings, mesh)` to `load_model`.

    Raises RememError naming the first dimension that its mesh axes do not divide.
    """

    def one(spec) -> NamedSharding:
        for size, axis in zip(spec.shape, spec.axes, strict=True):
            parts = math.prod(mesh.shape[name] for name in RULES[axis])
            if size % parts:
                on = " x ".join(RULES[axis])
                raise RememError(
                    f"mesh: {spec.hf_name} has {size} on its axis {axis}, which {on} = {parts} does not divide; "
                    f"the nearest that does is {_nearest_divisor(size, parts)}"
                )
        return sharding(mesh, spec.axes)

    return jax.tree.map(one, tree)


def _nearest_divisor(size: int, parts: int) -> int:
    return next(n for n in range(parts, 0, -1) if size % n == 0)
