"""The agent's loop: every turn of every question and rollout, for training, evaluation and answering alike.

A turn looks up, assembles prompts and generates on the device; only text (parse, tokenise, intern) is host work.

Axes: `N` questions of a wave, `G` rollouts, `T` chunks, `B` questions that take part in a turn.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.agent.prompts import LOOPLESS, PromptBlocks, encode_blocks, load_prompts, prompt_parts
from remem_jax.agent.protocol import Reply, count_boxes, parse_answer, parse_reply
from remem_jax.agent.reading import Reading, pad_chunks
from remem_jax.agent.state import AgentState, assemble_prompts, initial_state, look_up, store
from remem_jax.agent.words import WordTable
from remem_jax.config import AgentConfig
from remem_jax.model.packing import Ragged, ragged
from remem_jax.rollout.buckets import bucket, power_of_two
from remem_jax.rollout.generate import generate
from remem_jax.rollout.sampling import question_digest, row_keys

_row_keys = jax.jit(row_keys)
QUERY_WORDS = 256  # words of a query that a look-up compares; more are dropped and counted


@dataclasses.dataclass
class Turn:
    """One reply of one rollout, with what led to it and what came of it."""

    turn: int
    """0-based; the final turn has the number of chunks of its question."""
    final: bool
    prompt_tokens: int
    reply_ids: np.ndarray
    logprobs: np.ndarray
    """Of `reply_ids` under the full softmax at the sampling temperature."""
    sampled_logprobs: np.ndarray
    """Of `reply_ids` after top-k and top-p."""
    ended: bool
    """The reply ended with EOS, not at the limit."""
    reply: str
    recalled_step: int
    """Memory turn that wrote the recalled memory this prompt showed; -1 for none."""
    recalled_score: float
    recalled: str | None
    valid: bool
    """Memory turn: METHOD 2; final turn: exactly one complete box."""
    reason: str
    """Why a memory turn is invalid, else empty."""
    memory: str | None
    """The memory after this turn; None while there is none."""
    memory_cut: bool
    """The memory written was longer than `memory_tokens`."""
    callback: str | None
    """The query written, for the look-up of the next turn."""
    dropped_words: int
    """Words of memory and query that did not fit their arrays."""
    seconds: float
    """Wall time of the turn, shared by all that took part in it."""
    lookup_seconds: float
    """Part of it spent on look-up: interning words, the device call and waiting for it."""
    prefix_ids: np.ndarray | None = None
    """The prompt's ids, kept on request."""
    suffix_ids: np.ndarray | None = None
    memory_tokens: int = 0
    """Tokens of `memory`."""


@dataclasses.dataclass
class Episode:
    """All turns of one rollout of one question; the last is the final turn."""

    reading: Reading
    rollout: int
    turns: list[Turn] = dataclasses.field(default_factory=list)

    @property
    def answer(self) -> str | None:
        """The answer of the last complete box of the final reply."""
        return parse_answer(self.turns[-1].reply)

    @property
    def memory(self) -> str | None:
        """The memory after the last turn so far."""
        return self.turns[-1].memory if self.turns else None


@dataclasses.dataclass(frozen=True)
class Progress:
    """Told after every turn of a wave."""

    turn: int
    """Turns done in this wave."""
    turns: int
    """Turns of this wave, the final one included."""
    tokens_read: int
    """Document tokens read so far, in all questions of all waves."""
    seconds: float
    """Since the start."""
    episodes: list[list[Episode]]
    """`[N][G]`, of this wave."""


class Agent:
    """A model with an agent's settings, its prompts tokenised once; `run` may be called any number of times."""

    def __init__(self, model, config: AgentConfig, *, attention: str | None = None):
        """`attention` names the back end that reads prompts (`model.attention.BACKENDS`); default by platform."""
        self.model, self.config, self.attention = model, config, attention
        self.blocks: PromptBlocks = encode_blocks(
            load_prompts(config.prompts), model.tokenizer, config.agent, config.tags
        )
        self.writes_queries = config.agent == "rememr1"
        self.shows_recalled = config.agent in ("rememr1", "rule_callback")

    def run(
        self,
        readings: Sequence[Reading],
        *,
        rollouts: int = 1,
        seed: int = 0,
        step: int = 0,
        questions_in_flight: int = 8,
        keep_prompts: bool = False,
        on_turn: Callable[[Progress], None] | None = None,
        between: Callable[[], None] | None = None,
    ) -> list[list[Episode]]:
        """Read and answer; `[N][G]` episodes in the order of `readings`.

        Args:
            rollouts: `G`.
            seed, step: folded into every random number, with the question's id, the rollout and the turn.
            questions_in_flight: questions of a wave; results do not depend on it.
            keep_prompts: keep each prompt's ids in its `Turn`, for training.
            on_turn: called after every turn.
            between: called whenever the host is visited; may raise to stop.
        """
        began, read = time.perf_counter(), 0
        done: list[list[Episode]] = [[] for _ in readings]
        # Questions of like length advance together, so that few wait for the longest of their wave.
        by_length = sorted(range(len(readings)), key=lambda i: len(readings[i].chunks))
        for first in range(0, len(readings), questions_in_flight):
            members = by_length[first : first + questions_in_flight]
            wave = _Wave(self, [readings[i] for i in members], rollouts, seed, step, keep_prompts)
            for turn in range(wave.turns + 1):
                read += wave.play(turn, between)
                if on_turn is not None:
                    seconds = time.perf_counter() - began
                    on_turn(Progress(turn + 1, wave.turns + 1, read, seconds, wave.episodes))
            for i, episodes in zip(members, wave.episodes, strict=True):
                done[i] = episodes
        return done


class _Wave:
    """Questions that advance together, chunk by chunk."""

    def __init__(
        self, agent: Agent, readings: Sequence[Reading], rollouts: int, seed: int, step: int, keep_prompts: bool
    ):
        self.agent, self.readings, self.rollouts = agent, readings, rollouts
        self.seed, self.step, self.keep_prompts = seed, step, keep_prompts
        config = agent.config
        self.loopless = config.agent in LOOPLESS
        self.counts = np.array([0 if self.loopless else len(reading.chunks) for reading in readings], np.int32)
        self.turns = int(self.counts.max(initial=0))
        self.chunks, self.chunk_lengths = pad_chunks(readings, bucket)
        self.tables = [[WordTable() for _ in range(rollouts)] for _ in readings]
        self.episodes = [[Episode(reading, g) for g in range(rollouts)] for reading in readings]
        self.digests = np.array([question_digest(reading.id) for reading in readings], np.uint32)
        self.state: AgentState = initial_state(
            len(readings),
            rollouts,
            turns=power_of_two(max(self.turns, 1)),
            memory_tokens=config.memory_tokens,
            memory_words=config.memory_tokens,
            query_words=QUERY_WORDS,
        )
        shape = (len(readings), rollouts)
        self.current = np.full(shape, -1, np.int32)  # host copies of what the state holds, for sizes and traces
        self.lengths = np.zeros((*shape, self.state.lengths.shape[2]), np.int32)
        self.texts: list[list[dict[int, str]]] = [[{} for _ in range(rollouts)] for _ in readings]
        self.dropped = np.zeros(shape, np.int32)  # words of the standing query that did not fit, told at turn 0
        # What is asked when a reply writes no query: nothing, or for rule_callback the question itself.
        self.standing_query = np.full((*shape, QUERY_WORDS), -1, np.int32)
        if config.agent == "rule_callback":
            for n, reading in enumerate(readings):
                for g, table in enumerate(self.tables[n]):
                    self.standing_query[n, g], self.dropped[n, g] = table.ids(reading.question, QUERY_WORDS)
        self.state = dataclasses.replace(self.state, query=jnp.asarray(self.standing_query))
        self.asked = np.asarray((self.standing_query >= 0).any(axis=-1))

    def play(self, turn: int, between) -> int:
        """One turn of all questions that have it; returns the document tokens read."""
        began = time.perf_counter()
        final = turn == self.turns
        index, scores, lookup_seconds = self._look_up()
        active = list(range(len(self.readings))) if final else np.flatnonzero(self.counts > turn).tolist()
        prefixes, suffixes, live = self._prompts(turn, final, active, index)
        batch = np.resize(active, len(live))
        keys = _row_keys(
            jax.random.key(self.seed),
            self.step,
            jnp.asarray(self.digests[batch]),
            jnp.arange(self.rollouts, dtype=jnp.uint32),
            jnp.asarray(self.counts[batch] if final else np.full(len(batch), turn, np.int32)),
        )
        config = self.agent.config
        out = generate(
            self.agent.model,
            prefixes,
            suffixes,
            config.sampling,
            max_new_tokens=config.max_reply_tokens,
            keys=keys,
            backend=self.agent.attention,
            between=between,
        )
        lengths = np.asarray(prefixes.lengths)[:, None] + np.asarray(suffixes.lengths)
        turns = [
            [self._turn(turn, final, n, g, out, row, index, scores, int(lengths[row, g])) for g in range(self.rollouts)]
            for row, n in enumerate(active)
        ]
        if self.keep_prompts:
            _keep_prompts(turns, prefixes, suffixes)
        if not final:
            lookup_seconds += self._store(turn, active, turns)
        seconds = time.perf_counter() - began
        for row, n in enumerate(active):
            for g in range(self.rollouts):
                turns[row][g].seconds, turns[row][g].lookup_seconds = seconds, lookup_seconds
                self.episodes[n][g].turns.append(turns[row][g])
        if final:
            return sum(sum(map(len, r.chunks)) for r in self.readings) if self.loopless else 0
        return sum(len(self.readings[n].chunks[turn]) for n in active)

    def _look_up(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Recalled slot and score of every rollout, and the seconds it took; no device call when nobody asks."""
        shape = (len(self.readings), self.rollouts)
        if not self.agent.shows_recalled or not self.asked.any():
            return np.full(shape, -1, np.int32), np.zeros(shape, np.float32), 0.0
        began = time.perf_counter()
        index, scores = look_up(self.state, candidates=self.agent.config.candidates)
        index, scores = np.asarray(index), np.asarray(scores)
        return index, scores, time.perf_counter() - began

    def _prompts(self, turn: int, final: bool, active: list[int], recalled: np.ndarray):
        """Prompts of the turn, padded with dead rows to a power of two; `live` tells which rows are real."""
        config, blocks = self.agent.config, self.agent.blocks
        size = power_of_two(len(active))
        live = np.arange(size) < len(active)
        batch = np.resize(active, size)
        readings = [self.readings[n] for n in batch]
        show_chunk = not final or self.loopless
        column = min(turn, self.chunks.shape[1] - 1)
        chunk_lengths = self.chunk_lengths[batch, column] if show_chunk else np.zeros(size, np.int32)
        longest_chunk = bucket(int(chunk_lengths.max()))
        chunks = Ragged(jnp.asarray(self.chunks[batch, column, :longest_chunk]), jnp.asarray(chunk_lengths))
        prefix, suffix = prompt_parts(blocks, config.agent, config.prompt_order, final)
        shown = {
            "question": np.array([[len(r.question_ids)] for r in readings]),
            "chunk": chunk_lengths[:, None],
            "memory": self._shown_lengths(self.current, blocks.no_memory)[batch],
            "recalled": self._shown_lengths(recalled, blocks.no_recall)[batch],
        }

        def longest(parts) -> int:
            total = np.zeros((size, self.rollouts), np.int64)
            for segment in parts:
                total = total + (shown[segment] if isinstance(segment, str) else len(segment))
            return int(total[: len(active)].max())

        prefixes, suffixes = assemble_prompts(
            self.state,
            jnp.asarray(batch),
            jnp.asarray(live),
            jnp.asarray(recalled),
            _padded([r.question_ids for r in readings]),
            chunks,
            prefix=prefix,
            suffix=suffix,
            prefix_size=bucket(longest(prefix)) if prefix else 0,
            suffix_size=bucket(longest(suffix)),
            no_memory=blocks.no_memory,
            no_recall=blocks.no_recall,
        )
        return prefixes, suffixes, live

    def _shown_lengths(self, slot: np.ndarray, placeholder: tuple[int, ...]) -> np.ndarray:
        """Tokens that the record in `slot [N, G]` takes in a prompt; those of the placeholder where it is -1."""
        of_record = np.take_along_axis(self.lengths, np.maximum(slot, 0)[..., None], axis=2)[..., 0]
        return np.where(slot < 0, len(placeholder), of_record)

    def _turn(self, turn, final, n, g, out, row, index, scores, prompt_tokens) -> Turn:
        """What one reply says; a memory turn's fields are filled in, nothing is stored yet."""
        length = int(out.lengths[row, g])
        ids = out.ids[row, g, :length].copy()  # a slice would keep the whole batch alive
        config, tokenizer = self.agent.config, self.agent.model.tokenizer
        text = tokenizer.decode(ids[:-1].tolist() if out.ended[row, g] else ids.tolist())
        if final:
            valid = count_boxes(text) == 1
            parsed = Reply(None, None, valid, "" if valid else "not_one_box")
        else:
            parsed = parse_reply(text, config.tags, callbacks=self.agent.writes_queries)
        slot = int(index[n, g])
        return Turn(
            turn=int(self.counts[n]) if final else turn,
            final=final,
            prompt_tokens=prompt_tokens,
            reply_ids=ids,
            logprobs=out.logprobs[row, g, :length].copy(),
            sampled_logprobs=out.sampled_logprobs[row, g, :length].copy(),
            ended=bool(out.ended[row, g]),
            reply=text,
            recalled_step=slot,
            recalled_score=float(scores[n, g]),
            recalled=self.texts[n][g].get(slot),
            valid=parsed.valid,
            reason=parsed.reason,
            memory=parsed.memory if parsed.valid and not final else self.texts[n][g].get(int(self.current[n, g])),
            memory_cut=False,
            callback=parsed.callback,
            dropped_words=int(self.dropped[n, g]) if turn == 0 else 0,
            seconds=0.0,
            lookup_seconds=0.0,
            memory_tokens=int(self.lengths[n, g, self.current[n, g]]) if self.current[n, g] >= 0 else 0,
        )

    def _store(self, turn: int, active: list[int], turns: list[list[Turn]]) -> float:
        """Cut, store and intern what the replies of a memory turn wrote; returns the seconds spent on words."""
        config, tokenizer = self.agent.config, self.agent.model.tokenizer
        shape = self.current.shape
        memory = np.zeros((*shape, config.memory_tokens), np.int32)
        lengths, valid = np.zeros(shape, np.int32), np.zeros(shape, bool)
        words = np.full((*shape, config.memory_tokens), -1, np.int32)
        query = self.standing_query.copy()
        seconds = 0.0
        for row, n in enumerate(active):
            for g, reply in enumerate(turns[row]):
                valid[n, g] = reply.valid
                if reply.memory is None or not reply.valid:
                    continue
                written = tokenizer.encode(reply.memory)
                ids = tokenizer.cut(written, config.memory_tokens)
                text = tokenizer.decode(ids)
                reply.memory, reply.memory_cut, reply.memory_tokens = text, len(ids) < len(written), len(ids)
                memory[n, g, : len(ids)], lengths[n, g] = ids, len(ids)
                self.current[n, g], self.lengths[n, g, turn] = turn, len(ids)
                self.texts[n][g][turn] = text
                if self.agent.shows_recalled:
                    began = time.perf_counter()
                    table = self.tables[n][g]
                    words[n, g], dropped = table.ids(text, config.memory_tokens)
                    reply.dropped_words += dropped
                    if reply.callback:
                        query[n, g], dropped = table.ids(reply.callback, QUERY_WORDS)
                        reply.dropped_words += dropped
                    seconds += time.perf_counter() - began
        taking_part = np.zeros(len(self.readings), bool)
        taking_part[active] = True
        self.asked[active] = (query[active] >= 0).any(axis=-1)
        self.state = store(
            self.state,
            jnp.int32(turn),
            jnp.asarray(taking_part),
            jnp.asarray(valid),
            Ragged(jnp.asarray(memory), jnp.asarray(lengths)),
            jnp.asarray(words),
            jnp.asarray(query),
        )
        return seconds


def _padded(lists: Sequence[Sequence[int] | np.ndarray]) -> Ragged:
    """Lists of one size class as one array."""
    return ragged([list(ids) for ids in lists], bucket(max(map(len, lists))))


def _keep_prompts(turns: list[list[Turn]], prefixes: Ragged, suffixes: Ragged) -> None:
    prefix, suffix = np.asarray(prefixes.ids), np.asarray(suffixes.ids)
    prefix_lengths, suffix_lengths = np.asarray(prefixes.lengths), np.asarray(suffixes.lengths)
    for row, of_question in enumerate(turns):
        for g, turn in enumerate(of_question):
            turn.prefix_ids = prefix[row, : prefix_lengths[row]]
            turn.suffix_ids = suffix[row, g, : suffix_lengths[row, g]]
