"""LoRA (arXiv 2106.09685): small trained adapters beside frozen weights, and the merge that makes plain weights again.

Adapters are a tree like the stacked parameters: `{"layers": {"q_lora_a": [L, r, I], "q_lora_b": [L, O, r], ...}}`. A
layer then computes `w x + scale * b (a x)`, `scale = alpha / rank`; the product `b a` exists in a merge only.

Axes: `L` layers, `r` rank, `I` inputs and `O` outputs of a weight.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from remem_jax.errors import RememError
from remem_jax.model.config import ModelConfig, Spec, parameter_specs
from remem_jax.model.transformer import Params
from remem_jax.settings import nearest

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


def adapter_specs(config: ModelConfig, rank: int, targets: Sequence[str] = TARGETS) -> Params:
    """The adapters' tree with a `Spec` at each leaf, as `parameter_tree` has for the model: shapes, axes, names.

    Adapters are sharded like the sides of the weight they stand beside; names are those of PEFT.

    Raises:
        RememError: the rank is not from 1 to the narrowest side of a target, or a target is unknown or given twice.
    """
    check_targets(targets)
    layers: dict[str, Spec] = {}
    for name in targets:
        spec = parameter_specs(config)["layers", name]
        (outputs, inputs), (out_axis, in_axis) = spec.shape, spec.axes
        if not 1 <= rank <= min(outputs, inputs):
            raise RememError(
                f"lora.rank: expected 1 to {min(outputs, inputs)} for {name} ({outputs} x {inputs}), found {rank}"
            )
        stem, count = spec.hf_name.removesuffix(".weight"), config.num_layers
        layers[f"{name}_lora_a"] = Spec(
            (count, rank, inputs), ("layers", "rank", in_axis), f"{stem}.lora_A.weight", "normal"
        )
        layers[f"{name}_lora_b"] = Spec(
            (count, outputs, rank), ("layers", out_axis, "rank"), f"{stem}.lora_B.weight", "zeros"
        )
    return {"layers": layers}


def check_targets(targets: Sequence[str]) -> None:
    """Raises RememError unless `targets` names weights of a layer, each once."""
    if not targets:
        raise RememError(f"lora.targets: expected at least one of {', '.join(TARGETS)}, found none")
    for i, name in enumerate(targets):
        if name not in TARGETS:
            raise RememError(f"lora.targets: {name} is not a weight that takes an adapter; {nearest(name, TARGETS)}")
        if name in targets[:i]:
            raise RememError(f"lora.targets: expected every name once, found {name} twice")


def init(config: ModelConfig, seed: int | Key[Array, ""], rank: int, targets: Sequence[str] = TARGETS) -> Params:
    """Float32 adapters that change nothing yet: `a` normal with deviation `1 / sqrt(I)`, `b` zero.

    Each target draws from a key of its own, so others do not change its numbers. For a mesh, call it under jit with
    `out_shardings=parameter_shardings(mesh, adapter_specs(...))`.
    """
    key = jax.random.key(seed) if isinstance(seed, int) else seed

    def one(path, spec: Spec) -> jax.Array:
        if spec.init == "zeros":
            return jnp.zeros(spec.shape, jnp.float32)
        own = jax.random.fold_in(key, TARGETS.index(path[-1].key.removesuffix("_lora_a")))
        return jax.random.normal(own, spec.shape, jnp.float32) * jnp.float32(spec.shape[-1] ** -0.5)

    return jax.tree_util.tree_map_with_path(one, adapter_specs(config, rank, targets))


def count_adapter_parameters(config: ModelConfig, rank: int, targets: Sequence[str] = TARGETS) -> int:
    """How many numbers are trained: `rank * (I + O)` for each target of each layer."""
    return sum(math.prod(spec.shape) for spec in jax.tree.leaves(adapter_specs(config, rank, targets)))


def attach(base: Params, adapters: Params, scale: float) -> Params:
    """Stacked parameters with the adapters in their layers, `scale` folded into `b`; what the layer runs on."""
    scaled = {
        name: value * jnp.asarray(scale, value.dtype) if name.endswith("_lora_b") else value
        for name, value in adapters["layers"].items()
    }
    return base | {"layers": base["layers"] | scaled}


def merge(base: Params, adapters: Params, scale: float) -> Params:
    """Parameters with `w + scale * b a` in place of each adapted `w`, in `w`'s dtype, added in float32.

    For the engine and for export; `base`, layers stacked or a tuple of them, stays as it is.
    """
    changes = adapters["layers"]
    names = [name.removesuffix("_lora_a") for name in changes if name.endswith("_lora_a")]

    def merged(w: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        change = jnp.matmul(b, a, precision=jax.lax.Precision.HIGHEST)
        return (w.astype(jnp.float32) + jnp.float32(scale) * change).astype(w.dtype)

    def layer(weights: Params, at) -> Params:
        return weights | {
            name: merged(weights[name], changes[f"{name}_lora_a"][at], changes[f"{name}_lora_b"][at]) for name in names
        }

    if isinstance(base["layers"], dict):
        return base | {"layers": layer(base["layers"], slice(None))}
    return base | {"layers": tuple(layer(weights, i) for i, weights in enumerate(base["layers"]))}
