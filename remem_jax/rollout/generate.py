"""Generate replies for groups of prompts: one packed prefill a group, then one decode loop on a two-part cache.

The host is visited only when every row has ended, when the live rows fit a smaller batch, or when the cache is full.

Axes: `N` questions, `G` rollouts, `P` prefix slot, `S` suffix slots, `T` tokens of a packed row, `R` reply tokens,
`C` own cache slots (suffix and reply), `V` vocabulary, `K` key heads, `h` head size.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from remem_jax.config import Sampling
from remem_jax.errors import RememError
from remem_jax.mesh import Placement, batch_shards, constrain, mesh_of, per_shard, placement_of
from remem_jax.model.config import ModelConfig
from remem_jax.model.packing import Ragged, pack_groups, ragged, suffix_starts
from remem_jax.model.transformer import Cache, decode_step, forward, head_logits
from remem_jax.rollout.buckets import bucket, power_of_two
from remem_jax.rollout.sampling import sample

COMPACT_FROM = 8  # rows from which a smaller batch is worth its compilation
COMPACT_REPLY = 16  # limit of a reply from which it is
PART_TOKENS = 4096  # suffix tokens that a part of a group has at least, where prefill reads it in parts
PREFIX_SHARE = 0.05  # of the suffixes' tokens: what reading the prefix once a part may add
LONGEST_ROW = 65_408  # tokens of a packed row: splash attention keeps its indices in 16 bits
FIRST_REPLY_SLOTS = 256  # own cache slots for the reply at first; doubled when a reply outgrows them


@dataclasses.dataclass(frozen=True)
class Generation:
    """Replies of `generate`, on the host; places at and after a reply's length are 0."""

    ids: Int[np.ndarray, "N G R"]
    """Sampled ids, the ending EOS included."""
    lengths: Int[np.ndarray, "N G"]
    """Sampled ids of each reply; 0 for a dead row."""
    logprobs: Float[np.ndarray, "N G R"]
    """Log-probability of each id under the full softmax at the sampling temperature (1 when greedy)."""
    sampled_logprobs: Float[np.ndarray, "N G R"]
    """Log-probability under the distribution left after top-k and top-p."""
    ended: Bool[np.ndarray, "N G"]
    """True where the reply ended with EOS, False where it met the limit."""
    prefill_seconds: float
    """Wall time until the first token of every row."""
    decode_seconds: float
    """Wall time of the rest."""


@struct.dataclass
class _State:
    """Rows in flight: the token sampled last, what has been sampled so far, and the cache."""

    cache: Cache
    keys: Key[Array, "N G"]
    base: Int[Array, "N G"]  # position of the first reply token
    suffix_slots: Int[Array, ""]  # own slot of the first reply token
    step: Int[Array, ""]  # index of the token sampled last
    tokens: Int[Array, "N G"]
    done: Bool[Array, "N G"]
    ended: Bool[Array, "N G"]
    ids: Int[Array, "N G R"]
    logprobs: Float[Array, "N G R"]
    sampled_logprobs: Float[Array, "N G R"]
    lengths: Int[Array, "N G"]


def generate(
    model,
    prefixes: Ragged | Sequence[Sequence[int]],
    suffixes: Ragged | Sequence[Sequence[Sequence[int]]],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    keys: Key[Array, "N G"],
    eos_ids: Sequence[int] | None = None,
    backend: str | None = None,
    stop_interval: int | None = None,
    between: Callable[[], None] | None = None,
) -> Generation:
    """Sample one reply for every suffix of every group.

    Args:
        model: a `Model` of `load_model`, its layers unstacked.
        prefixes: ids shared by each group, `[N]` lists or `Ragged`; may be empty.
        suffixes: each rollout's own ids, `[N][G]` lists or `Ragged`; one of length 0 is a dead row without a reply.
        sampling: temperature, top-p, top-k; temperature 0 is greedy.
        max_new_tokens: limit `R` of a reply, EOS included.
        keys: one key a row, see `row_keys`; the index of the token is folded in here.
        eos_ids: ids that end a reply; default those of the model's tokenizer and configuration.
        backend: attention for prefill, default by platform.
        stop_interval: decode steps between tests for the end; default 1 on CPU, 8 elsewhere.
        between: called whenever the host is visited between decode loops; may raise to stop.

    Raises:
        RememError: a prompt with the reply limit does not fit the model's context.
    """
    began = time.perf_counter()
    prefixes = prefixes if isinstance(prefixes, Ragged) else ragged(list(prefixes))
    suffixes = suffixes if isinstance(suffixes, Ragged) else ragged([list(group) for group in suffixes])
    placement = placement_of(model.params)
    plan = _plan(model.config, prefixes, suffixes, max_new_tokens, placement)
    eos = tuple(sorted(set(_default_eos(model) if eos_ids is None else eos_ids)))
    interval = min(stop_interval or (1 if jax.default_backend() == "cpu" else 8), FIRST_REPLY_SLOTS)
    statics = dict(config=model.config, sampling=sampling, eos=eos)
    n, g = suffixes.lengths.shape
    state = _prefill(
        model.params,
        placement.put(_fit(prefixes, plan.prefix, plan.rows)),
        placement.put(_fit(suffixes, plan.suffix, plan.rows)),
        placement.put(_pad_rows(keys, plan.rows)),
        plan=plan,
        backend=backend,
        **statics,
    )
    done = placement.take(state.done)  # the host waits here for the first tokens
    prefilled = time.perf_counter()
    out = _Output.empty(n, g, max_new_tokens)
    rows = np.arange(plan.rows * g, dtype=np.int64).reshape(plan.rows, g)
    rows[n:] = -1
    while not done.all():
        if between is not None:
            between()
        room = state.cache.own[0][0].shape[3] - plan.suffix
        # Steps past the reply's end are noted nowhere; steps past the cache would overwrite its last slot.
        limit = max_new_tokens - 1 if room >= max_new_tokens - 1 else room - interval + 1
        state = _decode(model.params, state, jnp.int32(limit), interval=interval, **statics)
        done, step = placement.take(state.done), int(state.step)
        if step >= max_new_tokens - 1 or done.all():
            break
        if step >= limit:
            state = _grow(state, slots=plan.suffix + min(2 * room, bucket(max_new_tokens)))
        if smaller := _smaller_batch(~done, max_new_tokens, placement.shards):
            out.collect(state, rows, placement)
            questions, members = smaller
            in_shard = questions % (len(done) // placement.shards)
            places = (jnp.asarray(in_shard), jnp.asarray(np.maximum(members, 0)), jnp.asarray(members < 0))
            state = _compact(state, *placement.put(places))
            rows = np.where(members < 0, -1, rows[questions[:, None], np.maximum(members, 0)])
            done = placement.take(state.done)
    out.collect(state, rows, placement)
    if not np.isfinite(out.logprobs).all():
        raise RememError(
            "the model gives probabilities that are not finite: look for NaN in its weights, or try float32"
        )
    return Generation(
        ids=out.ids.reshape(n, g, -1),
        lengths=out.lengths.reshape(n, g),
        logprobs=out.logprobs.reshape(n, g, -1),
        sampled_logprobs=out.sampled_logprobs.reshape(n, g, -1),
        ended=out.ended.reshape(n, g),
        prefill_seconds=prefilled - began,
        decode_seconds=time.perf_counter() - prefilled,
    )


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Static sizes of a call, each from a short ladder."""

    rows: int  # questions, padded with dead ones
    prefix: int
    suffix: int
    parts: int  # of a group, one after the other in prefill, each with the prefix before it
    row_tokens: int  # of a part
    own_slots: int
    reply: int


def _plan(config: ModelConfig, prefixes: Ragged, suffixes: Ragged, reply: int, placement: Placement) -> _Plan:
    prefix_lengths, suffix_lengths = np.asarray(prefixes.lengths), np.asarray(suffixes.lengths)
    if reply < 1:
        raise RememError(f"max_new_tokens must be at least 1, found {reply}")
    longest = int((prefix_lengths[:, None] + suffix_lengths).max()) + reply
    if longest > config.max_positions:
        raise RememError(
            f"prompt of {longest - reply} tokens + reply of {reply} = {longest} tokens exceed the model's context of "
            f"{config.max_positions}; lower chunk_tokens, memory_tokens or max_reply_tokens"
        )
    prefix = bucket(int(prefix_lengths.max())) if prefix_lengths.max() else 0
    suffix = bucket(int(suffix_lengths.max()))
    group = suffix_lengths.shape[1]
    parts = _prefill_parts(suffix_lengths, prefix)
    tokens = prefix + (suffix if parts == group else bucket(_longest_part(suffix_lengths, parts)))
    return _Plan(
        rows=len(placement.own_shards) * power_of_two(-(-len(prefix_lengths) // len(placement.own_shards))),
        prefix=prefix,
        suffix=suffix,
        parts=parts,
        row_tokens=-(-tokens // 128) * 128 if tokens > 128 else tokens,
        own_slots=suffix + bucket(min(reply, FIRST_REPLY_SLOTS)),
        reply=reply,
    )


def _prefill_parts(suffix_lengths: np.ndarray, prefix: int) -> int:
    """Parts that prefill reads groups in: one, unless long suffixes make it cheap to read the prefix once a part.

    What a pass holds falls with the number of parts, and no row may be longer than splash attention can count.
    """
    group = suffix_lengths.shape[1]
    suffixes = _longest_part(suffix_lengths, 1)
    for n in (n for n in range(group, 0, -1) if group % n == 0):
        if n == 1 or (suffixes >= n * PART_TOKENS and (n - 1) * prefix <= PREFIX_SHARE * suffixes):
            break
    longer = [m for m in range(n, group + 1) if group % m == 0]
    return next((m for m in longer if prefix + bucket(_longest_part(suffix_lengths, m)) <= LONGEST_ROW), group)


def _longest_part(suffix_lengths: np.ndarray, parts: int) -> int:
    n, group = suffix_lengths.shape
    return int(suffix_lengths.reshape(n, parts, group // parts).sum(axis=2).max())


def _fit(lists: Ragged, size: int, rows: int) -> Ragged:
    """The same lists with `size` slots and dead rows up to `rows`; what is on the host stays there, uncompiled."""
    xp = np if isinstance(lists.ids, np.ndarray) else jnp
    ids = lists.ids[..., :size]
    pad = [(0, rows - ids.shape[0])] + [(0, 0)] * (ids.ndim - 2) + [(0, size - ids.shape[-1])]
    return Ragged(xp.pad(ids, pad), xp.pad(lists.lengths, pad[:-1]))  # pyright: ignore[reportArgumentType]


def _pad_rows(keys, rows: int):
    return keys if keys.shape[0] == rows else keys[np.minimum(np.arange(rows), keys.shape[0] - 1)]


def _default_eos(model) -> tuple[int, ...]:
    of_tokenizer = model.tokenizer.eos_ids if model.tokenizer is not None else ()
    return tuple(of_tokenizer) + tuple(model.config.eos_ids)


@functools.partial(jax.jit, static_argnames=("config", "sampling", "eos", "plan", "backend"))
def _prefill(
    params, prefixes: Ragged, suffixes: Ragged, keys, *, config, sampling, eos, plan: _Plan, backend
) -> _State:
    """Keys and values of every prompt in one packed pass, and the first token of every reply."""
    n, g = suffixes.lengths.shape
    mesh = mesh_of(params)
    read = functools.partial(_read_prompts, params, prefixes, config=config, plan=plan, backend=backend)
    if plan.parts == 1:
        hidden, prefix, own = read(suffixes)
    else:
        size = g // plan.parts

        def add_part(i, found):
            part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=1), suffixes)
            hidden, prefix, own = read(part)
            put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=i * size, axis=1)
            return put(found[0], hidden), prefix, jax.tree.map(put, found[2], own)

        def room(x, of_group: bool):
            return jnp.zeros((n, g, *x.shape[2:]) if of_group else x.shape, x.dtype)

        one = jax.eval_shape(read, jax.tree.map(lambda x: x[:, :size], suffixes))
        found = tuple(jax.tree.map(functools.partial(room, of_group=i != 1), x) for i, x in enumerate(one))
        found = (found[0], *(jax.tree.map(functools.partial(_by_head, mesh), x) for x in found[1:]))
        hidden, prefix, own = jax.lax.fori_loop(0, plan.parts, add_part, found)
    logits = head_logits(params, hidden.reshape(n * g, -1))
    cache = Cache(prefix=prefix, prefix_lengths=prefixes.lengths, own=own, first=plan.suffix - suffixes.lengths)
    blank = jnp.zeros((n, g, plan.reply), jnp.float32)
    state = _State(
        cache=cache,
        keys=keys,
        base=prefixes.lengths[:, None] + suffixes.lengths,
        suffix_slots=jnp.int32(plan.suffix),
        step=jnp.int32(-1),
        tokens=jnp.zeros((n, g), jnp.int32),
        done=suffixes.lengths == 0,
        ended=jnp.zeros((n, g), bool),
        ids=jnp.zeros((n, g, plan.reply), jnp.int32),
        logprobs=blank,
        sampled_logprobs=blank,
        lengths=jnp.zeros((n, g), jnp.int32),
    )
    return _sharded(_take(state, logits.reshape(n, g, -1), sampling, eos), mesh)


def _read_prompts(params, prefixes: Ragged, suffixes: Ragged, *, config, plan: _Plan, backend):
    """Hidden states of the last tokens `[N, G, D]`, and the cache's prefix and own part, from one packed pass."""
    n, g = suffixes.lengths.shape
    rows = pack_groups(prefixes, suffixes, row_tokens=plan.row_tokens)
    hidden, kv = forward(params, config, rows, backend=backend, return_kv=True)
    assert kv is not None
    starts = suffix_starts(suffixes.lengths, plan.prefix)
    last = jnp.maximum(starts + suffixes.lengths - 1, 0)
    hidden = jnp.take_along_axis(hidden, last[..., None], axis=1)

    first = plan.suffix - suffixes.lengths  # suffixes end at one slot
    source = starts[..., None] + jnp.arange(plan.suffix, dtype=jnp.int32) - first[..., None]  # [N, G, S]
    source = jnp.clip(source, 0, plan.row_tokens - 1).reshape(n, -1)
    spare = plan.own_slots - plan.suffix

    def own_part(x):  # [N, T, K, h] -> [N, G, K, C, h]
        x = jnp.take_along_axis(x, source[..., None, None], axis=1).reshape(n, g, plan.suffix, *x.shape[2:])
        return jnp.pad(jnp.swapaxes(x, 2, 3), ((0, 0), (0, 0), (0, 0), (0, spare), (0, 0)))

    def prefix_part(x):  # [N, T, K, h] -> [N, K, P, h]
        return jnp.swapaxes(x[:, : plan.prefix], 1, 2)

    prefix = tuple((prefix_part(k), prefix_part(v)) for k, v in kv) if plan.prefix else ()
    return hidden, prefix, tuple((own_part(k), own_part(v)) for k, v in kv)


def _by_head(mesh, x):
    """A buffer of the cache, `[N, K, P, h]` or `[N, G, K, S, h]`, by questions and key heads."""
    return constrain(x, "batch", *[None] * (x.ndim - 4), "kv", None, None, mesh=mesh)


def _sharded(state: _State, mesh) -> _State:
    """Rows by data and fsdp, key heads by tensor: the same at every door, so that donated buffers fit."""

    def of(x):
        return constrain(x, "batch", *[None] * (x.ndim - 1), mesh=mesh)

    cache = Cache(
        prefix=jax.tree.map(functools.partial(_by_head, mesh), state.cache.prefix),
        prefix_lengths=of(state.cache.prefix_lengths),
        own=jax.tree.map(functools.partial(_by_head, mesh), state.cache.own),
        first=of(state.cache.first),
    )
    per_row = ("keys", "base", "tokens", "done", "ended", "ids", "logprobs", "sampled_logprobs", "lengths")
    return dataclasses.replace(state, cache=cache, **{name: of(getattr(state, name)) for name in per_row})


def _take(state: _State, logits, sampling: Sampling, eos: tuple[int, ...]) -> _State:
    """Sample the next token of every row from its logits and note it; rows that are done note nothing."""
    n, g, vocabulary = logits.shape
    step = state.step + 1
    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(state.keys.reshape(-1), step)
    # Sorting is not split by the compiler: it would gather the logits of all rows on every device.
    draw = per_shard(functools.partial(sample, sampling=sampling), [("batch", None), ("batch",)], [("batch",)] * 3)
    drawn = draw(logits.reshape(-1, vocabulary), keys)
    tokens, logprobs, sampled = (x.reshape(n, g) for x in drawn)
    live = ~state.done & (step < state.ids.shape[2])
    is_eos = functools.reduce(jnp.logical_or, [tokens == i for i in eos], jnp.zeros((n, g), bool))

    def note(array, value):
        return array.at[:, :, step].set(jnp.where(live, value, jnp.zeros((), array.dtype)), mode="drop")

    return dataclasses.replace(
        state,
        step=step,
        tokens=jnp.where(live, tokens, 0),
        done=state.done | is_eos,
        ended=state.ended | (live & is_eos),
        ids=note(state.ids, tokens),
        logprobs=note(state.logprobs, logprobs),
        sampled_logprobs=note(state.sampled_logprobs, sampled),
        lengths=jnp.where(live, state.lengths + 1, state.lengths),
    )


@functools.partial(jax.jit, static_argnames=("config", "sampling", "eos", "interval"), donate_argnames="state")
def _decode(params, state: _State, limit, *, config, sampling, eos, interval: int) -> _State:
    """Decode until all rows are done, `limit` is met, or the live rows fit half of the batch.

    The prefix cache is closed over, not carried, so the loop neither copies nor donates it.
    """
    prefix = state.cache.prefix
    n, g = state.done.shape
    mesh = mesh_of(params)
    shards = batch_shards(mesh, n)
    sizes = jnp.asarray([power_of_two(i) for i in range(max(n, g) + 1)], jnp.int32)
    worth_compacting = _worth_compacting(n * g, state.ids.shape[2])

    def go_on(state):
        live = ~state.done
        questions = jnp.any(live, axis=1).reshape(shards, -1).sum(axis=1).max()  # of the fullest shard
        members = live.sum(axis=1).max()
        fits_half = (2 * shards * sizes[questions] * sizes[members] <= n * g) & jnp.bool_(worth_compacting)
        return (state.step < limit) & jnp.any(live) & ~fits_half

    def one(_, state):
        cache = dataclasses.replace(state.cache, prefix=prefix)
        position, slot = state.base + state.step, state.suffix_slots + state.step
        logits, cache = decode_step(params, config, cache, state.tokens, position, slot)
        return _take(dataclasses.replace(state, cache=dataclasses.replace(cache, prefix=())), logits, sampling, eos)

    def visit(state):
        return one(0, state) if interval == 1 else jax.lax.fori_loop(0, interval, one, state)

    state = dataclasses.replace(state, cache=dataclasses.replace(state.cache, prefix=()))
    state = jax.lax.while_loop(go_on, visit, state)
    return _sharded(dataclasses.replace(state, cache=dataclasses.replace(state.cache, prefix=prefix)), mesh)


@functools.partial(jax.jit, static_argnames="slots")
def _grow(state: _State, *, slots: int) -> _State:
    """More own cache slots for longer replies."""
    extra = slots - state.cache.own[0][0].shape[3]
    own = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, extra), (0, 0))), state.cache.own)
    grown = dataclasses.replace(state, cache=dataclasses.replace(state.cache, own=own))
    return _sharded(grown, mesh_of(state.cache.own))


def _worth_compacting(rows: int, reply: int) -> bool:
    return rows >= COMPACT_FROM and reply >= COMPACT_REPLY


def _smaller_batch(live: np.ndarray, reply: int, shards: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
    """Questions `[N']` and their members `[N', G']` (-1 for filling) of a batch of at most half the size, or None.

    Every shard keeps equally many of its own questions, so that no cache moves between devices.
    """
    alive = live.any(axis=1).reshape(shards, -1)
    n, g = power_of_two(int(alive.sum(axis=1).max())), power_of_two(int(live.sum(axis=1).max()))
    if 2 * shards * n * g > live.size or not _worth_compacting(live.size, reply):
        return None
    questions = np.zeros((shards, n), np.int64)
    members = np.full((shards * n, g), -1, np.int64)
    for shard, of_shard in enumerate(alive):
        kept = shard * len(of_shard) + np.flatnonzero(of_shard)
        questions[shard] = kept[-1] if len(kept) else shard * len(of_shard)
        questions[shard, : len(kept)] = kept
        for row, question in zip(members[shard * n :], kept, strict=False):
            places = np.flatnonzero(live[question])
            row[: len(places)] = places
    return questions.reshape(-1), members


@jax.jit
def _compact(state: _State, questions, members, filling) -> _State:
    """The named members of the named questions, counted within their shard; filling rows are done from the start."""
    mesh = mesh_of(state.cache.own)
    shards = batch_shards(mesh, len(state.done))

    def by_shard(pick, x, *at):
        if shards == 1:
            return pick(x, *at)
        split = [a.reshape(shards, -1, *a.shape[1:]) for a in (x, *at)]
        out = jax.vmap(pick)(*split)
        return out.reshape(-1, *out.shape[2:])

    def of_questions(x):
        return by_shard(lambda x, q: x[q], x, questions)

    def rows(x):
        return by_shard(lambda x, q, m: x[q[:, None], m], x, questions, members)

    cache = Cache(
        prefix=jax.tree.map(of_questions, state.cache.prefix),
        prefix_lengths=of_questions(state.cache.prefix_lengths),
        own=jax.tree.map(rows, state.cache.own),
        first=rows(state.cache.first),
    )
    per_row = ("keys", "base", "tokens", "ended", "ids", "logprobs", "sampled_logprobs", "lengths")
    moved = {name: rows(getattr(state, name)) for name in per_row}
    moved["done"] = rows(state.done) | filling
    return _sharded(dataclasses.replace(state, cache=cache, **moved), mesh)


@dataclasses.dataclass
class _Output:
    """What has been sampled, by the row's place in the caller's batch."""

    ids: np.ndarray
    lengths: np.ndarray
    logprobs: np.ndarray
    sampled_logprobs: np.ndarray
    ended: np.ndarray

    @classmethod
    def empty(cls, n: int, g: int, reply: int) -> "_Output":
        blank = np.zeros((n * g, reply), np.float32)
        ids, lengths = np.zeros((n * g, reply), np.int32), np.zeros(n * g, np.int32)
        return cls(ids, lengths, blank, blank.copy(), np.zeros(n * g, bool))

    def collect(self, state: _State, rows: np.ndarray, placement: Placement) -> None:
        """Copy the rows in flight to their places; `rows [N', G']` is -1 where a row only fills the batch."""
        kept = rows.reshape(-1) >= 0
        places = rows.reshape(-1)[kept]
        for name in ("ids", "lengths", "logprobs", "sampled_logprobs", "ended"):
            value = placement.take(getattr(state, name))
            getattr(self, name)[places] = value.reshape(-1, *value.shape[2:])[kept]
