"""The update of Qwen2.5-7B as the TPU compiler sees it, without a TPU: work, attention blocks, arrays, memory.

`rl.step.accumulate` is compiled ahead of time for a topology, rows of `prefix + group * suffix` tokens, one a data
shard, and its text is counted. Wants libtpu (the extra `tpu`); the sizes of the paper take minutes.

    python benchmarks/compiler_view.py --out runs/bench/compiler_view.json
    python benchmarks/compiler_view.py --topology v5e:2x2 --mesh 1 2 2 --layers 2 \
        --prefix 512 --suffix 384 --reply 256 --group 4

Axes: `T` tokens of a row, `M` reply tokens of a row, `V` vocabulary.
"""

import argparse
import json
import os
import time
from itertools import combinations
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

from remem_jax.mesh import make_mesh, parameter_shardings, sharding
from remem_jax.model import logprobs, splash
from remem_jax.model.config import ModelConfig, parameter_specs, parameter_tree
from remem_jax.plan.hlo import array_shapes, matmul_flops
from remem_jax.rl.rows import Group, Reply, TrainRows, pack_rows
from remem_jax.rl.step import Objective, accumulate


def qwen2_7b(layers: int) -> ModelConfig:
    """Qwen2.5-7B, or fewer of its layers."""
    return ModelConfig(
        model_type="qwen2",
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_layers=layers,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        tie_embeddings=False,
        qkv_bias=True,
        o_bias=False,
        qk_norm=False,
        max_positions=32768,
        eos_ids=(),
    )


def groups(rows: int, group: int, prefix: int, suffix: int, reply: int) -> list[Group]:
    """So many equal groups; `suffix` counts the reply."""
    zeros = np.zeros(reply, np.float32)
    one = Reply(np.zeros(suffix - reply, np.int32), np.zeros(reply, np.int32), zeros, 0.0, zeros, None, zeros)
    return [Group(np.zeros(prefix, np.int32), (one,) * group)] * rows


def compiled_update(config: ModelConfig, batch: TrainRows, mesh) -> Any:
    """`accumulate` for the devices of `mesh`, parameters sharded by the table, compute in bfloat16."""
    specs = parameter_tree(config, stacked=True)
    params = jax.tree.map(
        lambda spec, place: jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=place),
        specs,
        parameter_shardings(mesh, specs),
    )
    placed = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding(mesh, ("batch", None))), batch
    )
    static = dict(config=config, objective=Objective(), dtype="bfloat16", backend="splash")
    return accumulate.lower(params, params, placed, **static).compile()


def forward_flops(config: ModelConfig, tokens: int, replies: int) -> int:
    """Of the matrix products that packed tokens need: every layer's matrices, and the head on reply tokens."""
    layer = sum(
        int(np.prod(spec.shape)) for path, spec in parameter_specs(config).items() if len(path) == 2 and
        len(spec.shape) == 2
    )  # fmt: skip
    return 2 * (config.num_layers * layer * tokens + config.vocab_size * config.hidden_size * replies)


def exact_pairs(batch: TrainRows) -> int:
    """Query and key pairs of the first row that the mask shows, counted from starts."""
    rows = batch.rows
    index, valid, start = np.arange(rows.tokens.shape[1]), rows.valid[0], rows.start[0]
    own = index - start + 1
    prefix = np.where(index >= rows.prefix_slot, valid[: rows.prefix_slot].sum(), 0)
    return int((own + prefix)[valid].sum())


def block_pairs(batch: TrainRows, heads: int) -> dict[str, int]:
    """Pairs of one head in the blocks that the kernels of a row visit: forward, and the two backward ones."""
    rows = batch.rows
    tokens = rows.tokens.shape[1]
    infos, kwargs = splash._kernel(tokens, heads, rows.prefix_slot, rows.band, False)
    block = kwargs["block_sizes"].block_q
    found = {}
    for name, info in zip(("forward", "dq", "dkv"), infos, strict=True):
        assert info is not None
        tables = info.block_mask.reshape(info.block_mask.shape[0], -1)
        found[name] = int((tables[0] > 0).sum()) * block**2
    return found


def forbidden(shapes, batch: TrainRows, mesh, config: ModelConfig) -> list[tuple[int, ...]]:
    """Arrays with the tokens of a row in two dimensions, or tokens of a row or its replies beside the vocabulary.

    Whole or one device's part; a chunk of `logprobs.CHUNK` replies beside the vocabulary is what is meant to be.
    """
    n, tokens = batch.rows.tokens.shape
    parts = {1, mesh.shape["tensor"], mesh.size}
    tokens = {whole // part for whole in (tokens, n * tokens) for part in parts}
    replies = {whole // part for whole in (batch.targets.shape[1], batch.targets.size) for part in parts}
    beside_vocabulary = {size for size in tokens | replies if size > logprobs.CHUNK}
    vocabulary = {config.vocab_size // part for part in parts}
    return [
        shape
        for shape in shapes
        if any(
            (a in tokens and b in tokens) or (a in beside_vocabulary and b in vocabulary)
            for pair in combinations(shape, 2)
            for a, b in (pair, pair[::-1])
        )
    ]


def view(args: argparse.Namespace) -> dict:
    """Compile and count; see the printed lines for what the numbers are."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name=args.topology)
    mesh = make_mesh(args.mesh, topology.devices)
    config, rows = qwen2_7b(args.layers), mesh.shape["data"] * mesh.shape["fsdp"]
    batch = pack_rows(groups(rows, args.group, args.prefix, args.suffix, args.reply))
    began = time.perf_counter()
    compiled = compiled_update(config, batch, mesh)
    seconds = time.perf_counter() - began
    text, memory = compiled.as_text(), compiled.memory_analysis()
    if args.text:
        args.text.write_text(text)
    tokens, replies = batch.rows.tokens.size, batch.targets.size
    pairs, exact = block_pairs(batch, config.num_heads // mesh.shape["tensor"]), exact_pairs(batch)
    flops, forward = matmul_flops(text) * mesh.size, forward_flops(config, tokens, replies)
    return {
        "sizes": {name: value for name, value in vars(args).items() if name not in ("out", "text")},
        "row_tokens": tokens // rows,
        "compile_seconds": seconds,
        "matmul_flops": flops,
        "forward_flops": forward,
        "passes": flops / forward,
        "exact_pairs": exact,
        "block_pairs": pairs,
        "pairs_ratio": max(pairs.values()) / exact,
        "forbidden_arrays": forbidden(array_shapes(text), batch, mesh, config),
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
        "temporary_gib": memory.temp_size_in_bytes / 2**30,
        "argument_gib": memory.argument_size_in_bytes / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:8x8")
    parser.add_argument("--mesh", type=int, nargs=3, default=(1, 16, 4), help="data, fsdp, tensor")
    for name, value in {"layers": 28, "group": 16, "prefix": 5120, "suffix": 1536, "reply": 768}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/compiler_view.json"))
    parser.add_argument("--text", type=Path, help="write the compiled program here too")
    args = parser.parse_args()
    found = view(args)
    print(
        f"matrix products {found['matmul_flops'] / 1e12:,.1f} TFLOP = {found['passes']:.3f} forward passes "
        f"(remat: 4; bar 4.2)\n"
        f"attention pairs a head {found['block_pairs']}, exact {found['exact_pairs']:,}: "
        f"{found['pairs_ratio']:.3f} (bar 1.5)\n"
        f"arrays with tokens twice or tokens and vocabulary: {found['forbidden_arrays'] or 'none'}\n"
        f"a device: temporary {found['temporary_gib']:.2f} GiB, arguments {found['argument_gib']:.2f} GiB; "
        f"compiled in {found['compile_seconds']:.0f} s"
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
