"""Logical axes to mesh axes: the table, its collisions, and what does not divide. Runs on eight fake devices."""

import os
import subprocess
import sys

import pytest
from jax.sharding import PartitionSpec

from remem_jax.errors import RememError
from remem_jax.mesh import make_mesh, partition_spec
from remem_jax.model.config import parameter_specs
from remem_jax.testing import tiny_config

ON_EIGHT_DEVICES = """
from functools import partial
import jax, numpy as np
from remem_jax.errors import RememError
from remem_jax.mesh import check_mesh, make_mesh, parameter_shardings, placement_of
from remem_jax.model.config import Spec
from remem_jax.model import load_model, save_model, token_logprobs
from remem_jax.testing import tiny_config, tiny_model
import sys

mesh = make_mesh((1, -1, 2))
assert dict(mesh.shape) == {"data": 1, "fsdp": 4, "tensor": 2}, mesh
model = tiny_model(seed=1)
save_model(sys.argv[1], model.config, model.params)
sharded = load_model(sys.argv[1], shardings=partial(parameter_shardings, mesh))
q = sharded.params["layers"][0]["q"]
assert q.addressable_shards[0].data.shape == (q.shape[0] // 2, q.shape[1] // 4), q.sharding
tokens = np.arange(12, dtype=np.int32).reshape(2, 6) + 5
lengths = np.array([6, 4], np.int32)
alone = np.asarray(token_logprobs(model, tokens, lengths))
meshed = np.asarray(token_logprobs(sharded, tokens, lengths))
# float32 sums in another order on a mesh: 1e-5 is some hundred roundings of values near 5.
assert np.abs(alone - meshed).max() < 1e-5, np.abs(alone - meshed).max()
try:
    make_mesh((3, -1, 1))
except RememError as error:
    print(error)
wide = make_mesh((1, 1, 8))
try:
    parameter_shardings(wide, {"q": Spec((4, 8), ("heads", "embed"), "q_proj", "normal")})
except RememError as error:
    print(error)

# Qwen2.5-3B, 16 and 2 heads of 128: on tensor 8 queries are split and keys replicated, no head is cut.
shapes = {"q": ((2048, 2048), "heads"), "k": ((256, 2048), "kv")}
specs = {name: Spec(shape, (axis, "embed"), name, "normal") for name, (shape, axis) in shapes.items()}
places = parameter_shardings(wide, specs, head_dim=128)
assert places["q"].shard_shape((2048, 2048)) == (256, 2048) and places["k"].is_fully_replicated
places = parameter_shardings(mesh, specs, head_dim=128)
assert places["k"].shard_shape((256, 2048)) == (128, 512)
places = parameter_shardings(mesh, specs, head_dim=128, decoding=True)
assert places["k"].shard_shape((256, 2048)) == (128, 2048)

qwen_7b = tiny_config("qwen2", hidden_size=3584, num_heads=28, num_kv_heads=4, head_dim=128, intermediate_size=18944,
                      vocab_size=152064)
check_mesh(make_mesh((1, 2, 4)), qwen_7b, questions=128)
for shape, config, questions in ((wide, qwen_7b, None), (make_mesh((2, 4, 1)), tiny_config(hidden_size=30), 12)):
    try:
        check_mesh(shape, config, questions=questions)
    except RememError as error:
        print(error)

# A row of every shard comes back where it was.
placement = placement_of(sharded.params)
rows = np.arange(16).reshape(8, 2)
put = placement.put({"rows": rows})["rows"]
assert (placement.shards, placement.own_shards) == (4, [0, 1, 2, 3])
assert put.addressable_shards[0].data.shape == (2, 2) and (placement.take(put) == rows).all()
assert placement_of(model.params).mesh is None and placement_of(model.params).put(rows) is rows
"""


def test_parameters_load_straight_to_a_mesh_and_compute_the_same(tmp_path):
    flags = "--xla_force_host_platform_device_count=8 --xla_cpu_collective_call_terminate_timeout_seconds=600"
    run = subprocess.run(
        [sys.executable, "-c", ON_EIGHT_DEVICES, str(tmp_path / "model")],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "mesh: data 3 x fsdp -1 x tensor 1 does not fit 8 devices; the product must be 8",
        "mesh: q_proj has 4 on its axis heads, which tensor = 8 does not divide; the nearest that does is 4",
        "mesh: tensor 8 does not divide 28 query heads: take 4",
        "mesh: fsdp 4 does not divide 30 hidden: take 3; data x fsdp 8 does not divide 12 questions: take 16 questions",
    ]


def test_every_parameter_has_a_partition():
    for family in ("llama", "qwen2", "qwen3"):
        for spec in parameter_specs(tiny_config(family)).values():
            assert len(partition_spec(spec.axes)) == len(spec.shape)


def test_the_table_shards_questions_over_data_and_fsdp_and_weights_over_fsdp_and_tensor():
    assert partition_spec(("batch", None, "tokens")) == PartitionSpec(("data", "fsdp"), None, None)
    assert partition_spec(("ff", "embed")) == PartitionSpec(("tensor",), ("fsdp",))


def test_two_dimensions_on_one_mesh_axis_are_refused():
    with pytest.raises(RememError, match="logical axes heads and ff both land on mesh axis tensor"):
        partition_spec(("heads", "ff"))


def test_an_unknown_logical_axis_is_named():
    with pytest.raises(RememError, match="logical axis 'head' is unknown"):
        partition_spec(("head",))


@pytest.mark.parametrize("shape", [(1, 1), (-1, -1, 1), (0, 1, 1)])
def test_sizes_that_are_no_mesh_are_refused(shape):
    with pytest.raises(RememError, match="expected sizes for data, fsdp, tensor"):
        make_mesh(shape)
