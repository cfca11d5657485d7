"""Generation against loops that recompute everything for every token, alone against in a batch, and its host visits.

Axes: `N` questions, `G` rollouts, `R` reply tokens, `V` vocabulary.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# NumPy arrays are handed to functions of jax arrays throughout: making them costs no compilation.

import dataclasses
import functools
import importlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.config import Sampling
from remem_jax.errors import RememError
from remem_jax.model import transformer
from remem_jax.model.logprobs import token_logprobs
from remem_jax.model.packing import ragged
from remem_jax.rollout.buckets import compilations
from remem_jax.rollout.generate import generate
from remem_jax.rollout.sampling import row_keys, sample
from remem_jax.testing import tiny_model

module = importlib.import_module("remem_jax.rollout.generate")  # the package's name `generate` is the function

LIMIT = 24
EOS = tuple(range(0, 260, 17))  # 16 ids of 260: replies end at many lengths
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(temperature=0.9, top_p=0.9, top_k=60)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


def random_ids(seed, lengths):
    numbers = np.random.default_rng(seed)
    return [numbers.integers(0, 256, k).tolist() for k in lengths]


PREFIXES = random_ids(0, [9, 0, 17])  # the second question has none
SUFFIXES = [random_ids(1, [5, 0, 1, 12]), random_ids(2, [3, 8, 2, 2]), random_ids(3, [0, 7, 7, 30])]  # two dead rows


@pytest.fixture(scope="module")
def model():
    return tiny_model(0)


@functools.cache
def keys(n=3, g=4):
    return jax.jit(lambda: jax.random.split(jax.random.key(7), n * g).reshape(n, g))()


def run(model, sampling, prefixes=PREFIXES, suffixes=SUFFIXES, **changes):
    options = dict(max_new_tokens=LIMIT, eos_ids=EOS, keys=keys(len(suffixes), len(suffixes[0])))
    return generate(model, prefixes, suffixes, sampling, **options | changes)


@pytest.fixture(scope="module")
def usual(model):
    """The result of the batch above by sampling."""
    return {sampling: run(model, sampling) for sampling in (GREEDY, SAMPLED)}


def replies(result):
    """Ids of each reply as lists `[N][G]`; what lies behind a reply must be 0."""
    behind = np.arange(result.ids.shape[-1]) >= result.lengths[..., None]
    for name in ("ids", "logprobs", "sampled_logprobs"):
        assert (getattr(result, name)[behind] == 0).all()
    return [[row[:k].tolist() for row, k in zip(*group)] for group in zip(result.ids, result.lengths)]


@functools.lru_cache(maxsize=1)
def fold_and_sample():
    def one(logits, row_keys, index, sampling):
        return sample(logits, jax.vmap(jax.random.fold_in, in_axes=(0, None))(row_keys, index), sampling)

    return jax.jit(one, static_argnums=3)


def brute_force(model, sampling, limit=LIMIT):
    """Replies `[N][G]`, every token from the whole forward pass over everything before it; a plain row a rollout."""
    texts = [p + s for p, group in zip(PREFIXES, SUFFIXES) for s in group]
    live = [bool(s) for group in SUFFIXES for s in group]
    begins = [len(text) for text in texts]
    for index in range(limit):
        tokens, lengths = ragged([text or [0] for text in texts], size=96)
        logits = np.asarray(transformer.logits(model, tokens, lengths))
        last = logits[np.arange(len(texts)), np.asarray(lengths) - 1]
        drawn = np.asarray(fold_and_sample()(last, keys().reshape(-1), index, sampling)[0])
        for row, text in enumerate(texts):
            if live[row]:
                text.append(int(drawn[row]))
                live[row] = text[-1] not in EOS
    found = [text[begin:] for text, begin in zip(texts, begins)]
    return [found[i : i + 4] for i in range(0, 12, 4)]


@BOTH
def test_a_batch_gives_the_tokens_of_a_loop_that_recomputes_everything_for_every_token(model, sampling, monkeypatch):
    """Ragged, with dead rows, one question without a prefix, rows that end at many lengths: the batch is compacted."""
    sizes = []
    real = module._compact
    monkeypatch.setattr(module, "_compact", lambda state, *a: sizes.append(a[1].shape) or real(state, *a))
    result = run(model, sampling)
    expected = brute_force(model, sampling)
    assert replies(result) == expected
    assert result.lengths[0, 1] == result.lengths[2, 0] == 0
    assert result.ended.tolist() == [[bool(r) and r[-1] in EOS for r in group] for group in expected]
    assert len({len(r) for group in expected for r in group}) > 4
    assert sizes and all(2 * n * g <= 16 for n, g in sizes)


@BOTH
def test_each_reply_is_the_same_alone_as_in_its_batch(model, usual, sampling):
    together = replies(usual[sampling])
    for i, j in ((0, 0), (1, 1), (2, 3)):
        alone = run(model, sampling, PREFIXES[i : i + 1], [[SUFFIXES[i][j]]], keys=keys()[i : i + 1, j : j + 1])
        assert replies(alone) == [[together[i][j]]]


@BOTH
def test_the_prefix_moved_into_the_suffixes_gives_the_same_tokens(model, usual, sampling):
    moved = [[p + s if s else [] for s in group] for p, group in zip(PREFIXES, SUFFIXES)]
    assert replies(run(model, sampling, [[], [], []], moved)) == replies(usual[sampling])


def test_testing_for_the_end_at_every_eighth_step_changes_nothing(model, usual):
    expected, found = usual[SAMPLED], run(model, SAMPLED, stop_interval=8)
    assert replies(found) == replies(expected)
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-5)
    np.testing.assert_array_equal(found.ended, expected.ended)


@pytest.fixture(scope="module")
def long_reply():
    """Arguments of a reply of 70 tokens by a row alone."""
    one = dict(prefixes=PREFIXES[:1], suffixes=[SUFFIXES[0][:1]], keys=keys()[:1, :1])
    return dict(sampling=SAMPLED, max_new_tokens=70, eos_ids=(), **one)


@pytest.mark.parametrize("interval", [1, 5])
def test_a_cache_that_grows_changes_nothing(model, long_reply, interval, monkeypatch):
    """32 slots at first, then 64, then 128, against 128 from the beginning; 5 does not divide 32."""
    expected = replies(run(model, **long_reply))
    grown = []
    real = module._grow
    monkeypatch.setattr(module, "_grow", lambda state, slots: grown.append(slots) or real(state, slots=slots))
    monkeypatch.setattr(module, "FIRST_REPLY_SLOTS", 32)
    assert replies(run(model, **long_reply, stop_interval=interval)) == expected
    assert grown == [32 + 64, 32 + 128]


@pytest.mark.parametrize(("setting", "parts"), [({"PART_TOKENS": 1, "PREFIX_SHARE": 1.0}, 2), ({"LONGEST_ROW": 90}, 4)])
def test_a_group_that_prefill_reads_in_parts_gives_the_same_replies(model, usual, setting, parts, monkeypatch):
    """Parts because suffixes are long against the prefix, and because a row would be too long."""
    for name, value in setting.items():
        monkeypatch.setattr(module, name, value)
    lengths = np.array([[len(suffix) for suffix in group] for group in SUFFIXES])
    assert module._prefill_parts(lengths, module.bucket(17)) == parts
    found = run(model, SAMPLED)
    assert replies(found) == replies(usual[SAMPLED])
    np.testing.assert_allclose(found.logprobs, usual[SAMPLED].logprobs, atol=1e-5)


def test_a_row_of_suffixes_of_the_paper_is_read_in_parts_and_one_of_ours_at_once():
    after_chunk = np.full((2, 16), 2081)  # the chunk is in the prefix
    assert module._prefill_parts(after_chunk, 5632) == 1
    with_chunk = np.full((2, 16), 7300)  # 116,800 tokens in one row, which no kernel could count
    assert module._prefill_parts(with_chunk, 256) == 16


def test_logprobs_are_those_that_a_forward_pass_over_prompt_and_reply_gives(model, usual):
    temperature, result = SAMPLED.temperature, usual[SAMPLED]
    texts = [p + s for p, group in zip(PREFIXES, SUFFIXES) for s in group]
    flat = [r for group in replies(result) for r in group]
    tokens, lengths = ragged([t + r for t, r in zip(texts, flat)], size=96)
    logits = np.asarray(transformer.logits(model, tokens, lengths), np.float64) / temperature
    log_softmax = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    for row, (text, reply) in enumerate(zip(texts, flat)):
        places = len(text) - 1 + np.arange(len(reply))
        expected = log_softmax[row, places, reply]
        np.testing.assert_allclose(result.logprobs.reshape(12, -1)[row, : len(reply)], expected, atol=1e-4)
    assert (result.sampled_logprobs <= 0).all()
    live = result.lengths > 0
    assert (result.sampled_logprobs[live][:, 0] > result.logprobs[live][:, 0]).all()


def test_greedy_logprobs_are_token_logprobs(model, usual):
    result = usual[GREEDY]
    reply = replies(result)[1][1]
    tokens, lengths = ragged([PREFIXES[1] + SUFFIXES[1][1] + reply])
    expected = np.asarray(token_logprobs(model, tokens, lengths))[0, -len(reply) :]
    np.testing.assert_allclose(result.logprobs[1, 1, : len(reply)], expected, atol=1e-4)


def test_a_reply_ends_with_its_eos_or_at_the_limit(model):
    one_row = dict(prefixes=PREFIXES[:1], suffixes=[SUFFIXES[0][:1]], keys=keys()[:1, :1])
    [[free]] = replies(run(model, SAMPLED, **one_row, eos_ids=()))
    assert len(free) == LIMIT
    ended = run(model, SAMPLED, **one_row, eos_ids=free[3:4])
    assert replies(ended) == [[free[:4]]] and ended.ended.all()
    one = run(model, SAMPLED, **one_row, eos_ids=(), max_new_tokens=1)
    assert replies(one) == [[free[:1]]] and not one.ended.any()
    own = dataclasses.replace(model, config=dataclasses.replace(model.config, eos_ids=tuple(free[3:4])))
    assert replies(run(own, SAMPLED, **one_row, eos_ids=None)) == [[free[:4]]]
    own = dataclasses.replace(model, tokenizer=SimpleNamespace(eos_ids=tuple(free[3:4])))
    assert replies(run(own, SAMPLED, **one_row, eos_ids=None)) == [[free[:4]]]


def test_another_batch_of_the_same_size_class_compiles_nothing(model):
    first, second = ([random_ids((seed, i), lengths) for i, lengths in enumerate(rows)] for seed, rows in
                     enumerate(([[6, 20, 3], [9, 30, 1]], [[25, 4, 2], [31, 2, 5]])))  # fmt: skip
    options = dict(eos_ids=(), keys=keys(2, 3))
    run(model, SAMPLED, random_ids(5, [33, 50]), first, **options)
    before = compilations()
    result = run(model, SAMPLED, random_ids(6, [64, 7]), second, **options)
    assert compilations() == before
    assert (result.lengths == LIMIT).all()


def test_the_host_is_visited_between_loops_and_may_stop_them(model):
    visits = []
    run(model, SAMPLED, between=lambda: visits.append(1))
    assert 1 <= len(visits) <= 6

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, SAMPLED, between=stop)


def test_a_prompt_that_does_not_fit_the_context_with_its_reply_is_refused_with_the_sum(model):
    short = tiny_model(0, max_positions=20)
    error = "prompt of 14 tokens \\+ reply of 7 = 21 tokens exceed the model's context of 20; lower chunk_tokens"
    with pytest.raises(RememError, match=error):
        run(short, GREEDY, PREFIXES[:1], [SUFFIXES[0][:1]], max_new_tokens=7)
    with pytest.raises(RememError, match="max_new_tokens must be at least 1, found 0"):
        run(model, GREEDY, max_new_tokens=0)


def test_a_batch_of_dead_rows_only_gives_empty_replies(model):
    result = run(model, SAMPLED, [[1, 2]], [[[], []]])
    assert result.lengths.tolist() == [[0, 0]] and not result.ids.any()


def test_weights_that_are_not_numbers_are_told_and_not_sampled_from():
    model = tiny_model(num_layers=1)
    broken = dataclasses.replace(model, params={**model.params, "norm": model.params["norm"] * jnp.nan})
    keys = row_keys(0, 0, jnp.zeros(1, jnp.uint32), jnp.arange(1, dtype=jnp.uint32), jnp.zeros(1, jnp.int32))
    with pytest.raises(RememError, match="not finite"):
        generate(broken, [[]], [[[5, 6]]], Sampling(temperature=1.0), max_new_tokens=2, keys=keys)
