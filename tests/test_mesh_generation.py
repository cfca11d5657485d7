"""Generation on meshes against one device, and what the compiler made of the decode step. Eight fake devices.

Six questions are padded on every mesh; replies of many lengths make the batch smaller on the way. Two key heads on four
tensor devices are replicated.
"""

import os
import subprocess
import sys

PROGRAM = """
import dataclasses, importlib, re
import jax, jax.numpy as jnp, numpy as np
from remem_jax.config import Sampling
from remem_jax.mesh import make_mesh, parameter_shardings, placement_of
from remem_jax.model.config import parameter_tree
from remem_jax.testing import tiny_model
module = importlib.import_module("remem_jax.rollout.generate")

jax.config.update("jax_numpy_dtype_promotion", "strict")
model = tiny_model(seed=0)
wide = tiny_model(seed=0, num_layers=4, head_dim=128)
rng = np.random.default_rng(1)
prefixes = [rng.integers(0, 250, n).tolist() for n in (9, 0, 17, 5, 3, 12)]
suffixes = [[rng.integers(0, 250, n).tolist() for n in row] for row in rng.integers(0, 9, (6, 4))]
keys = jax.random.split(jax.random.key(7), 24).reshape(6, 4)
sampling, eos = Sampling(temperature=0.9, top_p=0.9, top_k=60), tuple(range(0, 260, 17))
compact, compacted = module._compact, []

def counted(state, *args):
    compacted.append(args[1].shape)
    return compact(state, *args)

module._compact = counted

def on_mesh(model, shape, decoding=True):
    tree, size = parameter_tree(model.config), model.config.head_dim
    return jax.device_put(model.params, parameter_shardings(make_mesh(shape), tree, head_dim=size, decoding=decoding))

def play(params):
    meshed = dataclasses.replace(model, params=params)
    return module.generate(meshed, prefixes, suffixes, sampling, max_new_tokens=24, keys=keys, eos_ids=eos)

def decode_step(params, shape):
    # A cache of 512 slots a row and heads of 128: a copy of it would be seen against everything else.
    placement = placement_of(params)
    room = module._Plan(rows=8, prefix=64, suffix=32, parts=2, row_tokens=128, own_slots=512, reply=64)
    lists = [module.ragged([[1] * 60] * 8, 64), module.ragged([[[1] * 30] * 4] * 8, 32)]
    keys = jax.random.split(jax.random.key(0), 32).reshape(8, 4)
    statics = dict(config=wide.config, sampling=sampling, eos=eos)
    state = module._prefill(params, *placement.put((*lists, keys)), plan=room, backend=None, **statics)
    compiled = module._decode.lower(params, state, jnp.int32(20), interval=1, **statics).compile()
    leaves = jax.tree.leaves(state.cache.own)
    for x in leaves:
        heads = x.shape[2] // shape[2] if x.shape[2] % shape[2] == 0 else x.shape[2]
        assert x.addressable_shards[0].data.shape == (8 // placement.shards, 4, heads, 512, 128), x.sharding
    cache = sum(x.addressable_shards[0].data.nbytes for x in leaves)
    memory = compiled.memory_analysis()
    weights = {tuple(x.shape) for x in jax.tree.leaves(params) if x.ndim == 2}
    gathered = re.findall(r"= \\(?\\w+\\[([\\d,]*)\\][^=]*? all-gather(?:-start)?\\(", compiled.as_text())
    whole = [s for s in gathered if tuple(map(int, filter(None, s.split(",")))) in weights]
    assert memory.alias_size_in_bytes >= cache, (shape, memory.alias_size_in_bytes, cache)
    return memory.temp_size_in_bytes / cache, whole

alone = play(model.params)
assert compacted, "no batch was made smaller"
smaller = 0
for shape in ((8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 4)):
    compacted.clear()
    meshed = play(on_mesh(model, shape))
    assert (meshed.ids == alone.ids).all() and (meshed.lengths == alone.lengths).all(), shape
    assert (meshed.ended == alone.ended).all(), shape
    for name in ("logprobs", "sampled_logprobs"):
        assert np.abs(getattr(meshed, name) - getattr(alone, name)).max() < 1e-5, (shape, name)
    assert all(size[0] % (shape[0] * shape[1]) == 0 for size in compacted), compacted
    smaller += len(compacted)
    temporary, whole = decode_step(on_mesh(wide, shape), shape)
    assert not whole, (shape, whole)
    assert temporary < 0.01, (shape, temporary)
    print(shape, "tokens, cache and weights")
assert smaller, "no batch was made smaller on a mesh"
module.LONGEST_ROW = 60  # groups are read in parts
lengths = np.asarray([[len(suffix) for suffix in group] for group in suffixes])
assert module._prefill_parts(lengths, module.bucket(17)) > 1
in_parts = play(on_mesh(model, (2, 2, 2)))
assert (in_parts.ids == alone.ids).all() and np.abs(in_parts.logprobs - alone.logprobs).max() < 1e-5
module.LONGEST_ROW = 65_408

# The agent's whole loop, its wave of three questions of unlike lengths: every turn of every rollout.
from remem_jax.agent.loop import Agent
from tests.agent.test_loop_model import CONFIG, READINGS, assert_equal

one_layer = tiny_model(num_layers=1)
whole_runs = [
    Agent(dataclasses.replace(one_layer, params=params), CONFIG).run(READINGS, rollouts=2, seed=5, keep_prompts=True)
    for params in (one_layer.params, on_mesh(one_layer, (2, 2, 2)))
]
assert [len(episode.turns) for episode, _ in whole_runs[0]] == [1, 2, 4]
for of_question, others in zip(*whole_runs, strict=True):
    for episode, other in zip(of_question, others, strict=True):
        assert_equal(episode, other)
print("loop")

# The look-out for gathered weights sees them where they are: split by fsdp, as for training.
assert decode_step(on_mesh(wide, (1, 8, 1), decoding=False), (1, 8, 1))[1]
"""


def test_tokens_on_every_mesh_are_those_of_one_device_and_decoding_moves_and_copies_no_more_than_it_must():
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
    assert run.stdout.splitlines() == [f"{mesh} tokens, cache and weights" for mesh in meshes] + ["loop"]
