"""Placement in two real processes with two devices each: rows go out and come back, and all learn what each one has."""

from tests.several_processes import run_processes

PROGRAM = """
import numpy as np
from remem_jax.mesh import Placement, make_mesh

for shape, own in (((2, 2, 1), [[0, 1], [2, 3]]), ((1, 2, 2), [[0], [1]])):
    placement = Placement(make_mesh(shape))
    assert (placement.processes, placement.process, placement.own_shards) == (2, process, own[process])
    whole = np.arange(24).reshape(8, 3)
    mine = whole[4 * process : 4 * process + 4]
    put = placement.put({"rows": mine})["rows"]
    assert put.shape == (8, 3) and (placement.take(put) == mine).all()
    for shard in put.addressable_shards:
        assert (np.asarray(shard.data) == whole[shard.index]).all()
    keys = jax.random.split(jax.random.key(process), 4)
    out = placement.put(keys)
    data = jax.jit(jax.random.key_data)(out)
    assert out.shape == (8,) and (placement.take(data) == np.asarray(jax.random.key_data(keys))).all()
    assert (placement.rows(mine) == whole).all()

assert placement.agree(np.array([process, 5 - process])).tolist() == [1, 5]
assert placement.total(np.array([process + 0.1, 2.0**60])).tolist() == [0.1 + 1.1, 2.0**61]
assert placement.each(np.array([True, process == 0])).tolist() == [[True, True], [True, False]]
assert placement.each(np.zeros((0, 3))).shape == (2, 0, 3)
shared = placement.share({"process": process, "text": "\\u00e9" * (1 + 100 * process)})
assert shared == [{"process": p, "text": "\\u00e9" * (1 + 100 * p)} for p in (0, 1)]
print("agreed")
"""


def test_rows_go_to_their_shards_and_back_and_every_process_learns_the_same():
    assert run_processes(PROGRAM) == ["agreed\n", "agreed\n"]
