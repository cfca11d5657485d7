"""A tiny random model, a byte tokenizer and made-up episodes: test code around a model in seconds, without a download.

The model's words mean nothing; what it computes is as exact as any other's, and the same for the same seed. An episode
is told by its replies alone and is what an agent's loop would have made of them.

Axes: D hidden, F feed-forward, H query heads, K key/value heads, h head size, L layers, V vocabulary.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from remem_jax.agent.loop import Episode, Turn
from remem_jax.agent.protocol import count_boxes, parse_reply
from remem_jax.agent.reading import Reading
from remem_jax.agent.recall import retrieve_reference
from remem_jax.errors import RememError
from remem_jax.model.config import ModelConfig, Spec, parameter_tree
from remem_jax.model.load import Model
from remem_jax.token_rules import cut_ids, valid_text

SPECIAL = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>")
_FIRST_SPECIAL = 256
_ANY_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


class DummyTokenizer:
    """A `Tokenizer`: ids 0-255 are the bytes of UTF-8, then the strings of `SPECIAL`; a reply ends with `<|end|>`."""

    vocab_size = _FIRST_SPECIAL + len(SPECIAL)
    eos_ids = (_FIRST_SPECIAL + 1,)
    special_ids = frozenset(range(_FIRST_SPECIAL, _FIRST_SPECIAL + len(SPECIAL)))
    bos_id = _FIRST_SPECIAL
    fingerprint = "dummy"

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        ids = []
        for part in _ANY_SPECIAL.split(text) if special else [text]:
            one_special = special and part in SPECIAL
            ids += [_FIRST_SPECIAL + SPECIAL.index(part)] if one_special else valid_text(part).encode("utf-8")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(_bytes, ids)).decode("utf-8", "replace")

    def show(self, ids: Sequence[int]) -> str:
        shown = b"".join(_bytes(i) or SPECIAL[i - _FIRST_SPECIAL].encode() for i in ids)
        return shown.decode("utf-8", "replace")

    def chat(self) -> tuple[list[int], list[int]]:
        head, tail = "<|begin|><|user|>", "<|end|><|assistant|>"
        return self.encode(head, special=True), self.encode(tail, special=True)

    def cut(self, ids: Sequence[int], limit: int) -> list[int]:
        return cut_ids(ids, limit, _bytes)


def _bytes(token: int) -> bytes:
    return bytes([token]) if token < _FIRST_SPECIAL else b""


def tiny_config(family: str = "llama", **changes) -> ModelConfig:
    """A decoder of 2 layers (D 32, F 48, H 4, K 2, h 8) over `DummyTokenizer`'s ids.

    Args:
        family: `llama`, `mistral`, `qwen2` (biases) or `qwen3` (normed query and key heads).
        changes: fields of `ModelConfig` that should differ.
    """
    fields: dict = {
        "model_type": family,
        "vocab_size": DummyTokenizer.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_embeddings": False,
        "qkv_bias": family == "qwen2",
        "o_bias": False,
        "qk_norm": family == "qwen3",
        "max_positions": 8192,
        "eos_ids": DummyTokenizer.eos_ids,
    }
    return ModelConfig(**fields | changes)


def tiny_model(seed: int = 0, *, family: str = "llama", stacked: bool = False, **changes) -> Model:
    """A float32 model of `tiny_config(family, **changes)` with random weights.

    They are larger than a fresh model's, biases and norms included: each layer matters, attention is not uniform, and
    the next token is neither certain nor anyone's guess.
    """
    config = tiny_config(family, **changes)
    numbers = np.random.default_rng(seed)

    def spread(spec: Spec) -> np.ndarray:
        noise = numbers.normal(size=spec.shape).astype(np.float32)
        if len(spec.shape) == 1:
            return 0.2 * noise + np.float32(spec.init == "ones")
        # The embedding is wide, unless it is the head too: then every token would repeat itself.
        wide = spec.hf_name.endswith("embed_tokens.weight") and not config.tie_embeddings
        return noise if wide else noise * np.float32(spec.shape[1] ** -0.5)

    params = jax.tree.map(spread, parameter_tree(config))
    if stacked:
        params["layers"] = jax.tree.map(lambda *leaves: np.stack(leaves), *params["layers"])
    params = jax.tree.map(jnp.asarray, params)
    return Model(config, params, DummyTokenizer(), jnp.dtype("float32"), Path("tiny"))


def make_episode(
    *replies: str,
    question: str = "Who wrote the letter?",
    chunks: Sequence[str] | None = None,
    agent: str = "rememr1",
    rollout: int = 0,
) -> Episode:
    """The episode in which an agent gave these replies, to test a reward on.

    Replies are read as any agent's: a broken one keeps the old memory, a query looks up the memories written before,
    the one now shown aside. Lengths are not limited, log-probabilities and seconds are 0.

    Args:
        replies: one a memory turn, the final one last, with their marks: `<memory>...</memory>`, `\\boxed{...}`.
        question: all rollouts of a group must have the same one, and the same chunks.
        chunks: texts read, one a memory turn; `part 1`, `part 2` ... where none are given.
        agent: `rememr1`, or `memagent`, which writes no queries.
        rollout: its number in the group.

    Raises:
        RememError: no reply, another number of chunks than of memory turns, or another agent.
    """
    if not replies:
        raise RememError("make_episode: expected at least the final reply, found none")
    if agent not in ("rememr1", "memagent"):
        raise RememError(f"make_episode: agent must be rememr1 or memagent, found {agent!r}")
    memory_turns = len(replies) - 1
    texts = [f"part {t + 1}" for t in range(memory_turns)] if chunks is None else list(chunks)
    if len(texts) != memory_turns:
        raise RememError(f"make_episode: expected {memory_turns} chunks for {len(replies)} replies, found {len(texts)}")
    tokenizer = DummyTokenizer()
    ids = tuple(np.asarray(tokenizer.encode(text), np.int32) for text in texts)
    reading = Reading(question, question, tuple(tokenizer.encode(question)), ids, sum(map(len, ids)))
    episode = Episode(reading, rollout)
    written: list[str | None] = []
    current, query = -1, None
    for turn, reply in enumerate(replies):
        allowed = [slot != current for slot in range(turn)]
        slot, score = retrieve_reference(written, allowed, query or "")
        recalled = written[slot] if slot >= 0 else None
        final = turn == memory_turns
        parsed = None if final else parse_reply(reply, callbacks=agent == "rememr1")
        if parsed is not None:
            written.append(parsed.memory if parsed.valid else None)
            current = turn if parsed.valid else current
            query = parsed.callback
        valid = count_boxes(reply) == 1 if parsed is None else parsed.valid
        shown = [question, "" if final else texts[turn], episode.memory or "", recalled or ""]
        memory = written[current] if current >= 0 else None
        reply_ids = np.asarray([*tokenizer.encode(reply), *tokenizer.eos_ids], np.int32)
        nothing = np.zeros(len(reply_ids), np.float32)
        episode.turns.append(
            Turn(
                turn=turn, final=final, prompt_tokens=sum(len(tokenizer.encode(text)) for text in shown),
                reply_ids=reply_ids, logprobs=nothing, sampled_logprobs=nothing, ended=True, reply=reply,
                recalled_step=slot, recalled_score=score, recalled=recalled, valid=valid,
                reason=("" if valid else "not_one_box") if parsed is None else parsed.reason,
                memory=memory, memory_cut=False, callback=None if parsed is None else parsed.callback,
                dropped_words=0, seconds=0.0, lookup_seconds=0.0, memory_tokens=len(tokenizer.encode(memory or "")),
            )
        )  # fmt: skip
    return episode
