"""The mesh `(data, fsdp, tensor)`, the one table that says which of its axes shards which logical axis, and placement.

Axes of parameters are named in `model.config.parameter_specs`; those of batches are `batch` (questions), and the rest.
A shard is one place along data and fsdp: it holds its own questions, split over the tensor axis by heads.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
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

    Devices of one process stand together, processes in order, so that a process owns shards that follow each other.

    Raises RememError when the sizes do not fit the number of devices.
    """
    found = sorted(jax.devices() if devices is None else devices, key=lambda device: device.process_index)
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


def parameter_shardings(mesh: Mesh, tree, *, head_dim: int = 1, decoding: bool = False) -> dict:
    """Shardings for a tree of parameter `Spec`s; give `partial(parameter_shardings, mesh)` to `load_model`.

    Args:
        head_dim: numbers of one head, which is never split. Key heads that tensor does not divide are replicated.
        decoding: split by tensor only, so that no decode step has to gather weights over fsdp.

    Raises RememError naming the first dimension that its mesh axes do not divide.
    """

    def one(spec) -> NamedSharding:
        axes = [None if decoding and axis == "embed" else axis for axis in spec.axes]
        for i, (size, axis) in enumerate(zip(spec.shape, axes, strict=True)):
            parts = _parts(mesh, axis)
            units = size // head_dim if axis in ("heads", "kv") else size
            if units % parts and axis == "kv":
                axes[i] = None
            elif units % parts:
                on = " x ".join(RULES[str(axis)])
                raise RememError(
                    f"mesh: {spec.hf_name} has {units} on its axis {axis}, which {on} = {parts} does not divide; "
                    f"the nearest that does is {_nearest_divisor(units, parts)}"
                )
        return sharding(mesh, axes)

    return jax.tree.map(one, tree)


def check_mesh(mesh: Mesh, config, *, questions: int | None = None) -> None:
    """Raises RememError naming every size of a model, and of a batch of `questions`, that does not divide.

    Key heads may be fewer than the tensor axis: they are replicated then.
    """
    tensor, fsdp, shards = mesh.shape["tensor"], mesh.shape["fsdp"], _parts(mesh, "batch")
    by_tensor = {
        "query heads": config.num_heads,
        "feed-forward": config.intermediate_size,
        "vocabulary": config.vocab_size,
    }
    wrong = []
    if bad := [f"{size} {name}" for name, size in by_tensor.items() if size % tensor]:
        common = math.gcd(*by_tensor.values())
        wrong.append(f"tensor {tensor} does not divide {', '.join(bad)}: take {_nearest_divisor(common, tensor)}")
    if config.hidden_size % fsdp:
        nearest = _nearest_divisor(config.hidden_size, fsdp)
        wrong.append(f"fsdp {fsdp} does not divide {config.hidden_size} hidden: take {nearest}")
    if questions is not None and questions % shards:
        nearest = max(round(questions / shards), 1) * shards
        wrong.append(f"data x fsdp {shards} does not divide {questions} questions: take {nearest} questions")
    if wrong:
        raise RememError(f"mesh: {'; '.join(wrong)}")


def _parts(mesh, axis: str | None) -> int:
    return math.prod(mesh.shape[name] for name in RULES[axis]) if axis is not None else 1


def _nearest_divisor(size: int, parts: int) -> int:
    """The divisor of `size` nearest to `parts`, of two as near the smaller one."""
    return min((n for n in range(1, size + 1) if size % n == 0), key=lambda n: (abs(n - parts), n))


def mesh_of(params) -> Any:
    """The mesh that the parameters lie on, while tracing too; its size is below 2 on one device."""
    return jax.typeof(jax.tree.leaves(params)[0]).sharding.mesh


def batch_shards(mesh: Any, rows: int) -> int:
    """Shards that `rows` divide over; 1 on one device, and where they do not."""
    parts = _parts(mesh, "batch") if set(MESH_AXES) <= set(mesh.axis_names) else 1
    return parts if rows % parts == 0 else 1


def constrain(x: jax.Array, *axes: str | None, mesh: Any = None) -> jax.Array:
    """`x` sharded by its logical axes, replicated along those that the mesh does not divide; as it is on one device.

    Args:
        mesh: default the mesh that `x` is known to lie on, which new constants do not have.
    """
    mesh = jax.typeof(x).sharding.mesh if mesh is None else mesh
    if mesh.size < 2 or set(mesh.axis_names) != set(MESH_AXES):
        return x
    fitting = [axis if size % _parts(mesh, axis) == 0 else None for size, axis in zip(x.shape, axes, strict=True)]
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition_spec(fitting)))


def per_shard(function: Callable, in_axes: Sequence[Sequence], out_axes: Sequence[Sequence]) -> Callable:
    """`function` run by every device on its own part, where the compiler would gather; itself on one device.

    The mesh is that of the first argument. What does not divide is computed whole by each device.

    Args:
        in_axes: logical axes of each argument; equal names have equal sizes.
        out_axes: logical axes of each result, a tuple.
    """

    def run(*args):
        mesh = jax.typeof(args[0]).sharding.mesh
        if mesh.size < 2 or set(mesh.axis_names) != set(MESH_AXES):
            return function(*args)
        sizes = {axis: size for x, axes in zip(args, in_axes) for size, axis in zip(x.shape, axes, strict=True)}

        def places(all_axes):
            fitting = [
                [a if a is not None and sizes[a] % _parts(mesh, a) == 0 else None for a in axes] for axes in all_axes
            ]
            return tuple(map(partition_spec, fitting))

        shard = jax.shard_map(
            function, mesh=mesh, in_specs=places(in_axes), out_specs=places(out_axes), check_vma=False
        )
        return shard(*args)

    return run


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where arrays with questions go: from this process's rows to the mesh and back. All processes call in one order.

    Without a mesh, everything stays where it is; with one process, what is told to all is told to oneself.
    """

    mesh: Mesh | None

    @property
    def shards(self) -> int:
        """Of the batch, in all processes."""
        return _parts(self.mesh, "batch") if self.mesh is not None else 1

    @property
    def own_shards(self) -> list[int]:
        """Those that lie on this process's devices, ascending."""
        if self.mesh is None:
            return [0]
        rows = self.mesh.devices.reshape(self.shards, -1)
        return [i for i, row in enumerate(rows) if row[0].process_index == jax.process_index()]

    @property
    def processes(self) -> int:
        """How many share the mesh."""
        return len(_first_devices(self.mesh)) if self.mesh is not None else 1

    @property
    def process(self) -> int:
        """This process's place among them."""
        return jax.process_index() if self.processes > 1 else 0

    def put(self, tree):
        """Host arrays `[rows of this process, ...]` as global ones, sharded by row; rows divide over the shards."""
        if self.mesh is None:
            return tree
        mesh, times = self.mesh, self.shards // len(self.own_shards)

        def one(x):
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(one(jax.random.key_data(x)), impl=jax.random.key_impl(x))
            x = np.asarray(x)
            place = sharding(mesh, ("batch", *[None] * (x.ndim - 1)))
            return jax.make_array_from_process_local_data(place, x, (times * x.shape[0], *x.shape[1:]))

        return jax.tree.map(one, tree)

    def take(self, x: jax.Array) -> np.ndarray:
        """This process's rows of a global array that is sharded by row."""
        if self.processes == 1:
            return np.asarray(x)
        parts = {shard.index[0].start or 0: shard.data for shard in x.addressable_shards}
        return np.concatenate([np.asarray(parts[first]) for first in sorted(parts)])

    def each(self, values: np.ndarray) -> np.ndarray:
        """`[processes, ...]`: the values of every process, all of one shape and type, bit by bit."""
        if self.processes == 1 or not values.size:
            return np.broadcast_to(values, (self.processes, *values.shape))
        assert self.mesh is not None
        raw = values.tobytes()
        size = max(64, 1 << (len(raw) - 1).bit_length())  # few sizes, few programs; bytes, as JAX would cut 64 bits
        own, everywhere = np.frombuffer(raw.ljust(size, b"\0"), np.uint8), _exchange(_first_devices(self.mesh))
        found = everywhere(own)[:, : len(raw)]
        return np.frombuffer(found.tobytes(), values.dtype).reshape(self.processes, *values.shape)

    def agree(self, values: np.ndarray) -> np.ndarray:
        """The largest of each value over processes."""
        return values if self.processes == 1 else self.each(values).max(axis=0)

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum of each value over processes."""
        return values if self.processes == 1 else self.each(values).sum(axis=0)

    def rows(self, values: np.ndarray) -> np.ndarray:
        """The rows of all processes, in their order; every process has equally many."""
        return values if self.processes == 1 else self.each(values).reshape(-1, *values.shape[1:])

    def share(self, value: Any) -> list[Any]:
        """The value of every process, whatever JSON can hold, in their order."""
        if self.processes == 1:
            return [value]
        raw = json.dumps(value).encode()
        size = int(self.agree(np.array([len(raw)]))[0])
        return [json.loads(part.tobytes()) for part in self.each(np.frombuffer(raw.ljust(size), np.uint8))]


def _first_devices(mesh: Mesh) -> tuple:
    """One device of every process, in their order."""
    first: dict[int, Any] = {}
    for device in mesh.devices.flat:
        first.setdefault(device.process_index, device)
    return tuple(first[process] for process in sorted(first))


@functools.cache
def _exchange(devices: tuple) -> Callable[[np.ndarray], np.ndarray]:
    """Bytes `[B]` of every process to `[processes, B]` on all, over one device each."""
    mesh = Mesh(np.asarray(devices), ("process",))
    whole = NamedSharding(mesh, PartitionSpec())
    gather = jax.jit(lambda x: x, out_shardings=whole)

    def run(own: np.ndarray) -> np.ndarray:
        place, shape = NamedSharding(mesh, PartitionSpec("process")), (len(devices), len(own))
        return np.asarray(gather(jax.make_array_from_process_local_data(place, own[None], shape)).addressable_data(0))

    return run


def placement_of(params) -> Placement:
    """The placement on the mesh that the parameters lie on; the one without a mesh where that is a single device."""
    mesh = getattr(getattr(jax.tree.leaves(params)[0], "sharding", None), "mesh", None)
    return placement_on(mesh)


def placement_on(mesh: Any) -> Placement:
    """The placement on a mesh of this project with more than one device, else the one without a mesh."""
    on_mesh = isinstance(mesh, Mesh) and mesh.size > 1 and mesh.axis_names == MESH_AXES
    return Placement(mesh if on_mesh else None)
