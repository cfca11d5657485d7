"""`remem plan`: what the compiler says of a run on TPUs that are not here, and the arithmetic that goes with it.

The plan of Qwen2.5-0.5B compiles for four chips of v5e; it needs libtpu, which the extra `tpu` installs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from remem_jax.errors import RememError
from remem_jax.model.config import count_parameters, to_hf
from remem_jax.plan import child, make_plan
from remem_jax.plan.costs import group_pairs
from remem_jax.plan.hlo import collectives
from remem_jax.plan.known import MODELS, known_model
from remem_jax.plan.programs import _too_large
from remem_jax.plan.report import report
from remem_jax.testing import tiny_config

ROOT = Path(__file__).resolve().parents[1]
RUN = """
model: {model}
run_dir: {model}-run
data: {{train: nowhere}}
mesh: {mesh}
agent: {{chunk_tokens: 256, question_tokens: 64, memory_tokens: 64, max_reply_tokens: 64}}
rollout: {{questions: 16, group: 4}}
optimizer: {{mini_batch: 8}}
memory: {{token_budget: 2048}}
steps: 3
"""
HALF_BILLION = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}


def a_run(folder: Path, sizes: dict, mesh: str) -> Path:
    """A training configuration beside a model's config.json; no weights, no tokenizer, no data."""
    (folder / "config.json").write_text(json.dumps(sizes))
    file = folder / "run.yaml"
    file.write_text(RUN.format(model=folder / "config.json", mesh=mesh))
    return file


def remem(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "remem_jax.cli", *map(str, arguments)]
    path = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | path, timeout=500)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The plan of Qwen2.5-0.5B on v5e:2x2, as the command prints it."""
    config = a_run(tmp_path_factory.mktemp("half_billion"), HALF_BILLION, "[1, 2, 2]")
    done = remem("plan", config, "--topology", "v5e:2x2", "--fast", "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def test_parameters_of_a_plan_are_those_counted_by_hand(planned):
    layer = 896 + 896 * 896 + 896 + 2 * (128 * 896 + 128) + 896 * 896 + 896 + 3 * 896 * 4864
    by_hand = 151936 * 896 + 24 * layer + 896
    assert planned["parameters"] == planned["trained_parameters"] == by_hand
    assert by_hand == 494_032_768  # what the model's authors call 0.49 billion


def test_work_of_a_plan_is_that_counted_by_hand(planned):
    tokens, found = planned["tokens"], {f["name"]: f for f in planned["functions"]}
    prefix, suffix, reply = tokens["prefix"], tokens["suffix"], tokens["reply"]
    matrices = 24 * (2 * 896 * 896 + 2 * 128 * 896 + 3 * 896 * 4864)
    head, a_pair = 151936 * 896, 4 * 24 * 896

    def pairs(own):  # prefix, then four suffixes that see it and themselves
        return prefix * (prefix + 1) / 2 + 4 * (own * prefix + own * (own + 1) / 2)

    read = 2 * (2 * matrices * (prefix + 4 * suffix) + 2 * head * 4 + a_pair * pairs(suffix))
    decode = 2 * 4 * (2 * matrices + 2 * head + a_pair * (prefix + suffix + reply))
    own = suffix + reply
    once = 2 * (2 * matrices * (prefix + 4 * own) + 2 * head * 4 * reply + a_pair * pairs(own))
    for name, by_hand in {"prefill": read, "decode step": decode, "log-probs": once, "update": 3 * once}.items():
        assert found[name]["model_flops"] == pytest.approx(by_hand, rel=0.01), name


def test_products_in_the_compiled_programs_are_those_of_their_padded_tokens(planned):
    found = {f["name"]: f for f in planned["functions"]}
    matrices = 24 * (2 * 896 * 896 + 2 * 128 * 896 + 3 * 896 * 4864)
    head, row = 151936 * 896, planned["tokens"]["row"]
    slots = 640 + 768  # ladder of sizes: the prefix of some 590 tokens, four suffixes of some 160
    prefill = 2 * (2 * matrices * slots + 2 * head * 4)
    assert 4 * found["prefill"]["matmul_flops"] == pytest.approx(prefill, rel=0.01)
    decode = 2 * 4 * (2 * matrices + 2 * head)  # and attention over the cache, which is made of products too
    assert decode < 4 * found["decode step"]["matmul_flops"] < 1.1 * decode
    forward = 2 * (2 * matrices * row + 2 * head * 256)
    assert 4 * found["log-probs"]["matmul_flops"] == pytest.approx(forward, rel=0.01)
    assert 3.6 * forward < 4 * found["update"]["matmul_flops"] <= 1.05 * 4 * forward
    # The compiler itself counts the loop over layers once.
    assert found["log-probs"]["compiler_flops"] < 0.3 * found["log-probs"]["matmul_flops"]


def test_a_plan_names_every_function_its_memory_and_what_fits(planned):
    names = [f["name"] for f in planned["functions"]]
    assert names == ["weight move", "prefill", "decode step", "log-probs", "update", "optimizer step"]
    assert planned["hbm_bytes"] == int(15.75 * 2**30)
    assert planned["chips"] == planned["devices"] == 4
    for f in planned["functions"]:
        assert f["peak_bytes"] == f["live_bytes"] + f["argument_bytes"] + f["output_bytes"] + f["temporary_bytes"]
        assert f["fits"] is True
        assert f["seconds"] > 0
    # Masters and two moments of four bytes and the reference of two lie over all four devices, the engine over tensor.
    held = {"master weights and moments": 12 / 4, "reference or base": 2 / 4, "engine weights": 2 / 2}
    for name, bytes_each in held.items():
        assert planned["live"][name] == pytest.approx(bytes_each * planned["parameters"], rel=0.01)
    assert planned["fits"] is True
    assert planned["slots"] == 4 * planned["questions_in_flight"] > 0
    update = next(f for f in planned["functions"] if f["name"] == "update")
    assert update["collectives"]["all-gather"]["bytes"] > planned["parameters"] / 4 * 2  # weights, once at least


def test_hours_of_a_plan_follow_from_the_seconds_of_a_step(planned):
    assert planned["step_seconds"] == pytest.approx(sum(planned["seconds"].values()))
    assert planned["questions_an_hour"] == pytest.approx(16 * 3600 / planned["step_seconds"])
    assert planned["chip_hours"] == pytest.approx(4 * 3 * planned["step_seconds"] / 3600)
    found = {f["name"]: f for f in planned["functions"]}
    # 16 questions in mini-batches of 8, seven turns each, two rows at a time.
    assert planned["seconds"]["update"] == pytest.approx(2 * 28 * found["update"]["seconds"])
    text = report(planned)
    assert text.splitlines()[-1] == "fits"
    assert f"slots: {planned['slots']} rollouts" in text


def test_on_plain_devices_a_plan_says_which_function_does_not_fit_and_what_to_change(tmp_path):
    config = a_run(tmp_path, to_hf(tiny_config()), "[1, 2, 1]")
    done = remem("plan", config, "--devices", 2, "--memory-gib", 0.001)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "does not fit"
    assert any(
        line.startswith("update does not fit; change: memory.row_tokens and memory.token_budget") for line in lines
    )
    assert any(line.startswith("prefill does not fit; change: rollout.questions_in_flight") for line in lines)


def test_pairs_of_a_row_are_those_of_its_mask():
    prefix, group, own = 5, 3, 4
    index = np.arange(prefix + group * own)
    start = np.where(index < prefix, 0, prefix + (index - prefix) // own * own)
    mask = (index <= index[:, None]) & ((index < prefix) | (index >= start[:, None]))
    assert group_pairs(prefix, group, own) == mask.sum()


def test_collectives_are_counted_by_kind_as_often_as_their_loop_runs():
    program = """HloModule m

%sum (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %r = f32[] add(%p, %q)
}

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %arg = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %one = s32[] constant(1)
  %x = f32[8]{0} get-tuple-element(%arg), index=1
  %y = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%sum
  %next = s32[]{:T(128)} add(%i, %one), control-predecessors={%y, %x}
  ROOT %out = (s32[], f32[8]{0}) tuple(%next, %y)
}

%condition (arg.1: (s32[], f32[8])) -> pred[] {
  %limit = s32[] constant(5)
  %arg.1 = (s32[], f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: bf16[16]) -> bf16[64] {
  %a = bf16[16]{0} parameter(0)
  %begin = (s32[], f32[8]{0}) tuple(%a, %a)
  %loop = (s32[], f32[8]{0}) while(%begin), condition=%condition, body=%body
  %s = (bf16[16]{0}, bf16[64]{0:T(128)(2,1)S(1)}) all-gather-start(%a), dimensions={0}
  ROOT %d = bf16[64]{0} all-gather-done(%s)
}
"""
    assert collectives(program) == {
        "all-reduce": {"count": 5, "bytes": 5 * 8 * 4},
        "all-gather": {"count": 1, "bytes": 64 * 2},
    }
    until = program.replace("direction=LT", "direction=NE")  # no counted loop: one visit
    assert collectives(until)["all-reduce"] == {"count": 1, "bytes": 8 * 4}


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G.",
        "the total memory required for HLO temporaries (20.50G) exceeds available HBM (15.75G).",
    ],
)
def test_what_the_compiler_refuses_is_told_with_its_size(message):
    found = _too_large(message, live=2**30)
    assert found == {"peak_bytes": int(21.5 * 2**30), "problem": "its own arrays take 20.50G of 15.75G"}


@pytest.mark.parametrize(("name", "billions"), [("0.5B", 0.494), ("1.5B", 1.544), ("3B", 3.086), ("7B", 7.616)])
def test_the_known_models_have_the_sizes_of_their_cards(name, billions):
    found = known_model(f"Qwen/Qwen2.5-{name}-Instruct")
    assert found is not None and found is MODELS[f"Qwen2.5-{name}"]
    assert count_parameters(found) == pytest.approx(billions * 1e9, rel=0.001)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "plan: expected --topology such as v5e:8x8, or --devices N, and not both"),
        ({"topology": "v5e:2x2", "devices": 2}, "plan: expected --topology such as v5e:8x8"),
        ({"topology": "v9:2x2"}, "topology: expected a chip of v4, v5e, v5p, v6e, tpu7x"),
        ({"topology": "v5e"}, "topology: expected v5e: and 2 sizes"),
        ({"topology": "v5p:4x4"}, "topology: expected v5p: and 3 sizes"),
        ({"topology": "v5e:2x0"}, "topology: expected v5e: and 2 sizes"),
        ({"devices": 0}, "devices: expected a number of at least 1, found 0"),
        ({"devices": 1, "chunks": 0}, "chunks: expected a number of at least 1, found 0"),
        ({"topology": "v5e:2x2", "memory_gib": 80.0}, "memory-gib: expected a number above 0, with --devices"),
    ],
)
def test_what_cannot_be_planned_is_told_before_anything_is_compiled(arguments, message):
    with pytest.raises(RememError) as caught:
        make_plan("nowhere.yaml", **arguments)
    assert str(caught.value).startswith(message)


def test_without_libtpu_the_extra_is_named(monkeypatch):
    def absent(name):
        raise child.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(child.importlib.metadata, "version", absent)
    with pytest.raises(RememError, match=r"needs libtpu: install the extra tpu, remem_jax\[tpu\]"):
        child.devices_of("v5e:2x2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--topology", "v5e:3x3"], "topology: expected a slice that libtpu knows, found v5e:3x3: "),
        (["--topology", "v5e:4x4"], "mesh: data 1 x fsdp 2 x tensor 2 does not fit 16 devices"),
        (["--devices", "4", "model=nobody/nothing"], "model: expected a folder with config.json, a config.json or one"),
        (["--devices", "4", "agent.agent=retrieval"], "agent.agent: a plan is made for agents that read in turns"),
    ],
)
def test_what_the_child_finds_wrong_is_one_line(tmp_path, change, message):
    done = remem("plan", a_run(tmp_path, HALF_BILLION, "[1, 2, 2]"), *change)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"remem: error: {message}")
