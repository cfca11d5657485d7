"""What the TPU compiler makes of the update at Qwen2.5-7B's sizes: work, attention blocks, arrays; and the counting.

Compiled ahead of time, without a TPU; needs libtpu, which the extra `tpu` installs.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from remem_jax.model.splash import _kernel
from remem_jax.plan.hlo import array_shapes, matmul_flops

ROOT = Path(__file__).resolve().parents[2]

# A loop that counts 0, 2, 4 with a product in its body, and one product after it, in the words of the TPU compiler.
PROGRAM = """HloModule jit_f

%fused.1 (p0: bf16[8,16], p1: bf16[4,16]) -> bf16[8,4] {
  %p0 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[4,16]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.1 = bf16[8,4]{1,0:T(8,128)(2,1)} convolution(%p0, %p1), dim_labels=bf_oi->bf, metadata={op_name="a
}{"}
}

%body (arg: (s32[], bf16[8,16], bf16[4,16])) -> (s32[], bf16[8,16], bf16[4,16]) {
  %arg = (s32[]{:T(128)}, bf16[8,16]{1,0}, bf16[4,16]{1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %one = s32[]{:T(128)} constant(1)
  %x = bf16[8,16]{1,0} get-tuple-element(%arg), index=1
  %w = bf16[4,16]{1,0} get-tuple-element(%arg), index=2
  %y = bf16[8,4]{1,0} fusion(%x, %w), kind=kOutput, calls=%fused.1
  %next = s32[]{:T(128)} add(%i, %one), metadata={op_name="add"}
  %after = s32[]{:T(128)} add(%one, %next)
  ROOT %out = (s32[]{:T(128)}, bf16[8,16]{1,0}, bf16[4,16]{1,0}) tuple(%after, %x, %w)
}

%condition (arg.1: (s32[], bf16[8,16], bf16[4,16])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  %arg.1 = (s32[]{:T(128)}, bf16[8,16]{1,0}, bf16[4,16]{1,0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: bf16[8,16], b: bf16[4,16], c: f32[8,32]) -> f32[4,2,16] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[4,16]{1,0} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, bf16[8,16]{1,0}, bf16[4,16]{1,0}) tuple(%zero, %a, %b)
  %while.1 = (s32[]{:T(128)}, bf16[8,16]{1,0}, bf16[4,16]{1,0}) while(%start), condition=%condition, body=%body
  %t = f32[8,4,1]{1,0,2} parameter(2)
  %u = f32[8,2,16]{2,1,0} parameter(3)
  ROOT %convolution.2 = f32[4,2,16]{2,1,0} convolution(%t, %u), window={WINDOW}, dim_labels=fb0_i0o->b0f
}
"""


@pytest.mark.parametrize(
    ("window", "terms"),
    [
        ("size=2 pad=1_1 rhs_reversal=1", 2),  # two outputs, each with one place of the window inside
        ("size=1 pad=0_1", 1),  # the second output is all padding
    ],
)
def test_products_are_counted_as_often_as_their_loop_runs_and_without_what_falls_on_padding(window, terms):
    in_the_loop = 3 * 2 * 8 * 4 * 16
    after = 2 * 8 * 4 * 16 * terms
    assert matmul_flops(PROGRAM.replace("WINDOW", window)) == in_the_loop + after


def test_the_shapes_of_a_program_are_those_it_names():
    assert array_shapes(PROGRAM) == {(8, 16), (4, 16), (8, 4), (8, 32), (4, 2, 16), (8, 4, 1), (8, 2, 16)}


def test_the_kernels_visit_at_most_half_again_the_pairs_that_the_mask_of_a_full_row_shows():
    prefix, suffix, group = 5120, 1536, 16
    exact = prefix * (prefix + 1) // 2 + group * (suffix * prefix + suffix * (suffix + 1) // 2)
    infos, _ = _kernel(prefix + group * suffix, 28, prefix, suffix, False)
    for info in infos:  # forward, and backward by queries and by keys
        assert info is not None
        visited = int(np.count_nonzero(info.block_mask[0])) * 512**2
        assert exact < visited <= 1.5 * exact


@pytest.mark.slow  # the compiler takes minutes whatever the sizes are
def test_the_update_compiled_for_a_mesh_of_tpus_does_no_work_twice_and_holds_no_scores_or_logits(tmp_path):
    """Two layers of Qwen2.5-7B, rows of 512 + 4 * 384 tokens on two data and two tensor shards."""
    sizes = {"layers": 2, "prefix": 512, "suffix": 384, "reply": 256, "group": 4}
    command = [sys.executable, ROOT / "benchmarks" / "compiler_view.py", "--topology", "v5e:2x2", "--mesh", 1, 2, 2]
    command += [word for name, value in sizes.items() for word in (f"--{name}", value)]
    out = tmp_path / "view.json"
    run = subprocess.run([*map(str, command), "--out", str(out)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    view = json.loads(out.read_text())
    layer = 2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944
    forward = 2 * (2 * layer * 2 * 2048 + 152064 * 3584 * 2 * 1024)
    assert view["forward_flops"] == forward
    # Forward, backward twice that, and remat once more, less the last product of a layer, which remat does not need.
    assert 3.6 * forward < view["matmul_flops"] <= 1.05 * 4 * forward
    assert view["kernels"] == 4  # attention forward, again in remat, and two backward
    assert view["forbidden_arrays"] == []
