"""Attention: the mask by hand, every back end against the dense mask, forward and backward, and what is never made.

Axes: `N` rows, `T` tokens, `H` query heads, `K` key heads, `h` head size, `G` suffixes, `P` prefix slot, `S` own slots.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false
# NumPy arrays are handed to functions of jax arrays throughout: making them costs no compilation.

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.errors import RememError
from remem_jax.model import attention
from remem_jax.model.attention import decode_attention, not_here, packed_attention, visible, why_not
from remem_jax.model.packing import pack_groups, ragged
from remem_jax.rollout.buckets import compilations


def layout(tokens, slot, prefix_lengths, suffix_lengths, longest):
    """The packed rows, on the host, of ids that do not matter."""
    prefixes = ragged([[1] * k for k in prefix_lengths], size=slot)
    suffixes = ragged([[[1] * k for k in group] for group in suffix_lengths], size=longest)
    pack = jax.jit(pack_groups, static_argnames="row_tokens")  # one program instead of one an operation
    return jax.tree.map(np.asarray, pack(prefixes, suffixes, row_tokens=tokens))


def random_array(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_qkv(rows, *, heads=4, kv_heads=2, size=8, seed=0):
    return [random_array((seed, i), *rows.tokens.shape, c, size) for i, c in enumerate((heads, kv_heads, kv_heads))]


def value_and_gradients(rows, qkv, backend):
    """Outputs of the valid tokens, and the gradients of a weighted sum of them by q, k and v."""
    weights = random_array(9, *qkv[0].shape) * rows.valid[..., None, None]

    @jax.jit
    def run(q, k, v):
        def loss(q, k, v):
            slots = dict(prefix_slot=rows.prefix_slot, band=rows.band, backend=backend)
            out = packed_attention(q, k, v, rows.start, rows.valid, **slots)
            return jnp.sum(out * weights), out

        (_, out), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return jnp.where(rows.valid[..., None, None], out, 0.0), *gradients

    return run(*qkv)


def assert_equals_dense(rows, backend):
    qkv = random_qkv(rows)
    expected, found = (jax.device_get(value_and_gradients(rows, qkv, name)) for name in ("dense", backend))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, atol=5e-6)


def test_the_mask_of_a_prefix_of_two_in_a_slot_of_three_and_suffixes_a_a_b_b_is_as_drawn():
    rows = layout(8, 3, [2], [[2, 2]], 2)
    index = jnp.arange(8, dtype=jnp.int32)
    mask = visible(rows.start, rows.valid, rows.valid, index, index, rows.prefix_slot)[0]
    drawn = [
        "p.......",
        "pp......",
        "........",
        "pp.a....",
        "pp.aa...",
        "pp...b..",
        "pp...bb.",
        "........",
    ]
    for i in np.flatnonzero(rows.valid[0]):
        assert mask[i].tolist() == [mark != "." for mark in drawn[i]]
    assert not mask[~rows.valid[0]][:, rows.valid[0]].any()


def test_dense_attention_is_the_softmax_average_computed_by_hand():
    rows = layout(3, 1, [1], [[1, 1]], 1)
    q = np.outer([0.0, math.log(3.0) * 2**0.5, 2.0], [1.0, 0.0]).reshape(1, 3, 1, 2).astype(np.float32)
    k = np.outer([0.0, 1.0, 5.0], [1.0, 1.0]).reshape(1, 3, 1, 2).astype(np.float32)
    v = np.outer([4.0, 8.0, 16.0], [1.0, -1.0]).reshape(1, 3, 1, 2).astype(np.float32)
    attend = jax.jit(packed_attention, static_argnames=("prefix_slot", "band", "backend"))
    out = attend(q, k, v, rows.start, rows.valid, prefix_slot=1, band=1, backend="dense")
    weight = 1 / (1 + math.exp(-10 / 2**0.5))  # the second suffix: scores 0 and 2 * 5 / sqrt(2)
    np.testing.assert_allclose(out[0, :, 0, 0], [4.0, (4 + 3 * 8) / 4, 4 + 12 * weight], rtol=1e-6)
    np.testing.assert_allclose(out[0, :, 0, 1], -out[0, :, 0, 0], rtol=1e-6)


BLOCKED = {
    "one block": (100, 20, [20, 7], [[30, 0, 41], [10, 5, 2]], 41),
    "several growing blocks, the last one short": (700, 100, [100, 64], [[600], [13]], 600),
    "growing blocks and a window loop, not a multiple of the block": (
        2117,
        200,
        [200, 0],
        [[300, 299, 1, 0, 300, 260, 300, 300], [300, 17, 300, 300, 300, 300, 300, 100]],
        300,
    ),
    "a window loop without a prefix": (2050, 0, [0], [[150] * 13 + [100]], 150),
    "a window loop shorter than its block": (330, 30, [29], [[100, 90, 80]], 270),
}


@pytest.mark.parametrize("case", BLOCKED)
def test_blocked_attention_equals_the_dense_mask_forward_and_backward(case):
    assert_equals_dense(layout(*BLOCKED[case]), "blocked")


@pytest.mark.parametrize(
    "case",
    [
        (640, 130, [130, 77], [[150, 149, 20, 0, 150], [3, 150, 150, 150, 1]], 150),
        (640, 0, [0], [[100, 128, 7, 128, 128, 90]], 128),
        (1152, 384, [380], [[400, 300]], 400),
    ],
    ids=["prefix, band of 150", "no prefix", "blocks of 384"],
)
def test_splash_in_its_interpreter_equals_the_dense_mask_forward_and_backward(case):
    assert_equals_dense(layout(*case), "splash_interpret")


def test_splash_serves_other_starts_with_the_same_compiled_program():
    """Starts are data: only then may suffixes lie back to back without a new program a batch."""
    first = layout(256, 64, [64], [[90, 30, 72]], 96)
    second = layout(256, 64, [10], [[1, 96, 60]], 96)
    slots = dict(prefix_slot=64, band=96)
    run, dense = (
        jax.jit(functools.partial(packed_attention, **slots, backend=name)) for name in ("splash_interpret", "dense")
    )
    counts = []
    for seed, rows in enumerate((first, second)):
        qkv = random_qkv(rows, seed=seed)
        expected, found = (np.asarray(f(*qkv, rows.start, rows.valid)) for f in (dense, run))
        np.testing.assert_allclose(found[rows.valid], expected[rows.valid], atol=5e-6)
        counts.append(compilations())
    assert counts[0] == counts[1]


def test_the_blocks_for_cudnn_equal_the_dense_mask_where_xla_computes_them(monkeypatch):
    """No GPU here: what is held is how the blocks are cut and masked, not cuDNN. In float32, which cuDNN would refuse,
    since XLA's bfloat16 form rounds scores differently from one jax release to the next."""
    real = jax.nn.dot_product_attention
    calls = []

    def on_xla(*arguments, implementation, **keywords):
        calls.append(implementation)
        return real(*arguments, implementation="xla", **keywords)

    monkeypatch.setattr(jax.nn, "dot_product_attention", on_xla)
    monkeypatch.setattr(attention, "why_not", lambda *a, **k: None)
    rows = layout(*BLOCKED["growing blocks and a window loop, not a multiple of the block"])
    qkv = random_qkv(rows)

    @functools.partial(jax.jit, static_argnames="backend")
    def run(*qkv, backend):
        slots = dict(prefix_slot=rows.prefix_slot, band=rows.band, backend=backend)
        return packed_attention(*qkv, rows.start, rows.valid, **slots)

    expected = np.asarray(run(*qkv, backend="dense"))
    with jax.numpy_dtype_promotion("standard"):  # for jax's own code
        found = np.asarray(run(*qkv, backend="cudnn"))
    assert set(calls) == {"cudnn"}
    np.testing.assert_allclose(found[rows.valid], expected[rows.valid], atol=5e-6)


def test_each_back_end_says_why_it_cannot_serve():
    bf16 = jnp.bfloat16
    assert why_not("blocked", tokens=5120, dtype=jnp.float32) is None
    assert why_not("dense", tokens=7, dtype=bf16) is None
    assert why_not("splash", tokens=640, dtype=bf16) is None
    assert why_not("cudnn", tokens=7, dtype=bf16) is None
    assert "multiple of 128 tokens, found 100" in why_not("splash", tokens=100, dtype=bf16)
    assert "found rows of 65536 tokens" in why_not("splash_interpret", tokens=65536, dtype=bf16)
    assert "bfloat16 or float16, found float32" in why_not("cudnn", tokens=128, dtype=jnp.float32)
    assert "'flash' is unknown; choose one of blocked, dense" in why_not("flash", tokens=128, dtype=bf16)


def test_a_back_end_of_another_device_is_told_with_what_is_there():
    assert not_here("blocked") is None and not_here("splash_interpret") is None
    assert not_here("splash") == "splash runs on a TPU, found cpu; leave it out, or take blocked"
    assert not_here("cudnn") == "cudnn runs on a GPU, found cpu; leave it out, or take blocked"


def test_a_back_end_that_cannot_serve_raises_its_reason_and_nothing_else_takes_over():
    rows = layout(100, 20, [20], [[30, 41]], 41)
    slots = dict(prefix_slot=20, band=41)
    for backend in ("splash", "cudnn", "flash"):
        reason = re.escape(why_not(backend, tokens=100, dtype=jnp.float32) or "")
        with pytest.raises(RememError, match=reason):
            packed_attention(*random_qkv(rows), rows.start, rows.valid, **slots, backend=backend)


def test_the_default_back_end_is_that_of_the_platform(monkeypatch):
    for platform, backend in {"cpu": "blocked", "gpu": "cudnn", "tpu": "splash"}.items():
        monkeypatch.setattr(attention.jax, "default_backend", lambda platform=platform: platform)
        assert attention.default_backend() == backend


def largest_array(compiled_text):
    """Elements of the largest array that a compiled program names."""
    shapes = re.findall(r"\b(?:f32|bf16|pred|s32)\[([\d,]+)\]", compiled_text)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def compiled_attention(tokens, *, slot, band, backend):
    shape = jax.ShapeDtypeStruct
    q, kv = shape((1, tokens, 2, 8), jnp.float32), shape((1, tokens, 1, 8), jnp.float32)
    start, valid = shape((1, tokens), jnp.int32), shape((1, tokens), jnp.bool_)
    run = jax.jit(lambda *a: packed_attention(*a, prefix_slot=slot, band=band, backend=backend))
    return run.lower(q, kv, kv, start, valid).compile()


def test_a_chunk_of_5120_tokens_never_makes_an_array_of_tokens_by_tokens():
    tokens, heads = 5120, 2
    assert largest_array(compiled_attention(tokens, slot=0, band=tokens, backend="dense").as_text()) >= tokens**2
    for slot, band in ((0, tokens), (0, 512), (4096, 256)):
        compiled = compiled_attention(tokens, slot=slot, band=band, backend="blocked")
        assert largest_array(compiled.as_text()) <= heads * attention.QUERIES * tokens
        assert compiled.memory_analysis().temp_size_in_bytes < tokens**2 * 4 * heads / 7


def test_the_scores_of_all_blocks_together_are_never_alive_at_once_backward_either():
    """A sum over blocks of their scores is half of `[T, T]`: it must not be what a pass needs."""
    tokens, heads = 2048, 2
    shape = jax.ShapeDtypeStruct
    q, kv = shape((1, tokens, heads, 8), jnp.float32), shape((1, tokens, 1, 8), jnp.float32)
    start, valid = np.zeros((1, tokens), np.int32), np.ones((1, tokens), bool)

    def loss(q, k, v):
        return packed_attention(q, k, v, start, valid, prefix_slot=0, band=tokens, backend="blocked").sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, kv, kv).compile()
    assert largest_array(compiled.as_text()) <= heads * attention.QUERIES * tokens
    assert compiled.memory_analysis().temp_size_in_bytes < tokens**2 * 4 * heads / 2


def test_work_beyond_the_band_is_linear_in_the_row():
    flops = [
        compiled_attention(tokens, slot=256, band=256, backend="blocked").cost_analysis()["flops"]
        for tokens in (2560, 4608)
    ]
    assert flops[0] < flops[1] < 2 * flops[0]


@pytest.mark.parametrize("prefix_lengths", [[5, 3], [5, 0]])
def test_two_part_decoding_equals_one_part_decoding(prefix_lengths):
    n, g, heads, kv_heads, size, slot, own = 2, 3, 4, 2, 8, 6, 7
    q = random_array(0, n, g, heads, size)
    own_k, own_v = (random_array(seed, n, g, kv_heads, own, size) for seed in (1, 2))
    prefix_k, prefix_v = (random_array(seed, n, kv_heads, slot, size) for seed in (3, 4))
    first = np.array([[0, 2, 4], [1, 0, 6]])
    own_mask = np.arange(own) >= first[..., None]
    lengths = np.array(prefix_lengths, np.int32)
    decode = jax.jit(decode_attention)
    found = decode(q, (own_k, own_v), own_mask, (prefix_k, prefix_v), lengths)

    def joined(prefix, own):
        return np.concatenate([np.broadcast_to(prefix[:, None], (n, g, *prefix.shape[1:])), own], axis=3)

    prefix_mask = np.broadcast_to((np.arange(slot) < lengths[:, None])[:, None], (n, g, slot))
    mask = np.concatenate([prefix_mask, own_mask], axis=2)
    one_part = decode(q, (joined(prefix_k, own_k), joined(prefix_v, own_v)), mask)
    np.testing.assert_allclose(found, one_part, atol=2e-6)

    k, v = (np.repeat(x, heads // kv_heads, axis=2) for x in (joined(prefix_k, own_k), joined(prefix_v, own_v)))
    scores = np.where(mask[:, :, None], np.einsum("nghd,nghsd->nghs", q, k) / math.sqrt(size), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found, np.einsum("nghs,nghsd->nghd", weights, v), atol=2e-6)
