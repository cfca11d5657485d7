"""The update on meshes against one device: loss, every gradient, and the parameters after a step. Eight fake devices.

The replayed groups are fewer than the shards of most meshes, so rows are padded; two key heads on four tensor devices
are replicated.
"""

import os
import subprocess
import sys

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from remem_jax.mesh import make_mesh, parameter_shardings, placement_of
from remem_jax.model.config import parameter_tree
from remem_jax.rl.rows import Group, Reply, pack_rows
from remem_jax.rl.step import Objective, Optimizer, accumulate, apply, init_state
from remem_jax.rl.update import _zeros
from remem_jax.testing import tiny_model

jax.config.update("jax_numpy_dtype_promotion", "strict")
model = tiny_model(seed=3, family="qwen2", stacked=True)
specs, optimizer = parameter_tree(model.config, stacked=True), Optimizer()
rng = np.random.default_rng(0)

def reply(suffix, length):
    ids, values = rng.integers(0, 250, suffix + length), rng.normal(-5, 0.1, (4, length)).astype(np.float32)
    return Reply(ids[:suffix], ids[suffix:], np.abs(values[0]), float(rng.normal()), *values[1:])

groups = [Group(rng.integers(0, 250, p), tuple(reply(*s) for s in [(9, 5), (1, 8), (5, 3)])) for p in (20, 13, 7)]
static = dict(config=model.config, objective=Objective(temperature=0.7, beta=0.1))
total, rate = jnp.float32(7), jnp.float32(1e-3)

def one_step(params):
    state = init_state(params, optimizer)
    placement = placement_of(state.params)
    rows = placement.put(pack_rows(groups, shards=placement.shards))
    zeros = _zeros(state.params)
    place = jax.tree.map(lambda x: x.sharding, zeros)
    compiled = accumulate.lower(zeros, state.params, rows, **static).compile()
    aliased = compiled.memory_analysis().alias_size_in_bytes
    own = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(zeros))
    assert aliased >= own, (aliased, own)
    gradients, loss, _ = compiled(zeros, state.params, rows)
    for wanted, x in zip(jax.tree.leaves(place), jax.tree.leaves(gradients), strict=True):
        assert x.sharding.is_equivalent_to(wanted, x.ndim), (x.sharding, wanted)
    host = jax.device_get((gradients, loss))
    update = apply.lower(state, gradients, total, rate, optimizer=optimizer).compile()
    own = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert update.memory_analysis().alias_size_in_bytes >= own
    after, _ = update(state, gradients, total, rate)
    return *host, jax.device_get(after.params)

def worst(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(np.abs(x - y).max() / np.abs(x).max() for x, y in pairs)

alone, loss, after = one_step(model.params)
for shape in ((8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4)):
    places = parameter_shardings(make_mesh(shape), specs, head_dim=model.config.head_dim)
    meshed, loss_meshed, after_meshed = one_step(jax.device_put(model.params, places))
    assert abs(loss[0] - loss_meshed[0]) <= 1e-5 * abs(loss[0]), (shape, loss, loss_meshed)
    assert worst(alone, meshed) < 1e-5, (shape, worst(alone, meshed))
    # A step of Adam is the sign of a gradient at first: near 0 it would magnify rounding, so most, not the worst.
    moved = np.concatenate([np.abs(a - b).ravel() for a, b in zip(*map(jax.tree.leaves, (after, after_meshed)))])
    assert np.quantile(moved, 0.99) < 1e-6, (shape, np.quantile(moved, 0.99))
    print(shape, "loss and gradients")
"""


def test_loss_and_gradients_on_every_mesh_are_those_of_one_device():
    flags = "--xla_force_host_platform_device_count=8 --xla_cpu_collective_call_terminate_timeout_seconds=600"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    meshes = ["(8, 1, 1)", "(1, 8, 1)", "(2, 2, 2)", "(1, 2, 4)"]
    assert run.stdout.splitlines() == [f"{mesh} loss and gradients" for mesh in meshes]
