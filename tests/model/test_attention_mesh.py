"""The update on a mesh with the attention kernel, split by rows and heads, against one device and the dense mask.

Runs on four fake devices in a process of its own.
"""

import os
import subprocess
import sys

PROGRAM = """
import jax, numpy as np
from remem_jax.mesh import make_mesh, parameter_shardings
from remem_jax.model.config import parameter_tree
from remem_jax.rl.rows import Group, Reply, pack_rows
from remem_jax.rl.step import Objective, accumulate, zeros_like
from remem_jax.testing import tiny_model

jax.config.update("jax_numpy_dtype_promotion", "strict")
model = tiny_model(seed=3, stacked=True)
rng = np.random.default_rng(0)

def reply(suffix, length):
    ids, values = rng.integers(0, 250, suffix + length), rng.normal(-5, 0.1, (2, length)).astype(np.float32)
    return Reply(ids[:suffix], ids[suffix:], np.abs(values[0]), float(rng.normal()), values[1])

groups = [Group(rng.integers(0, 250, p), tuple(reply(*s) for s in [(30, 20), (9, 31), (5, 7)])) for p in (60, 33)]

def gradients(params, rows, backend):
    static = dict(config=model.config, objective=Objective(beta=0.0), backend=backend)
    return jax.device_get(accumulate(zeros_like(params), params, rows, **static)[:2])

for shape, count in (((1, 2, 2), 2), ((1, 4, 1), 2), ((1, 1, 4), 1)):  # the last two do not divide rows or heads
    rows = pack_rows(groups[:count])
    alone, loss = gradients(model.params, rows, "dense")
    places = parameter_shardings(make_mesh(shape), parameter_tree(model.config, stacked=True))
    meshed, loss_meshed = gradients(jax.device_put(model.params, places), rows, "splash_interpret")
    worst = max(
        np.abs(a - b).max() / np.abs(a).max()
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(meshed), strict=True)
    )
    assert worst < 1e-5 and abs(loss[0] - loss_meshed[0]) < 1e-5 * abs(loss[0]), (shape, worst, loss, loss_meshed)
    print(shape, rows.rows.tokens.shape)
"""


def test_the_update_on_a_mesh_has_the_gradient_of_one_device():
    flags = "--xla_force_host_platform_device_count=4 --xla_cpu_collective_call_terminate_timeout_seconds=600"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["(1, 2, 2) (2, 256)", "(1, 4, 1) (2, 256)", "(1, 1, 4) (1, 256)"]
