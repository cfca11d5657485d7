"""Turns and episodes made by hand, for tests of what is shown and written of them."""

from typing import Any

import numpy as np

from remem_jax.agent.loop import Episode, Turn
from remem_jax.agent.reading import Reading
from remem_jax.testing import DummyTokenizer


def made_turn(number: int, **changes: Any) -> Turn:
    """A valid turn of three reply tokens that took 1.23456 seconds, with `changes`."""
    values: dict[str, Any] = dict(
        turn=number, final=False, prompt_tokens=10, reply_ids=np.arange(3), logprobs=np.zeros(3),
        sampled_logprobs=np.zeros(3), ended=True, reply="text", recalled_step=-1, recalled_score=0.0, recalled=None,
        valid=True, reason="", memory=None, memory_cut=False, callback=None, dropped_words=0, seconds=1.23456,
        lookup_seconds=0.0,
    )  # fmt: skip
    return Turn(**values | changes)


def told_episode(texts: list[str], *turns: Turn, id: str = "q", question: str = "Who?", rollout: int = 0) -> Episode:
    """An episode of these turns over chunks of these texts, encoded by the dummy tokenizer."""
    chunks = tuple(np.array(DummyTokenizer().encode(text), np.int32) for text in texts)
    return Episode(Reading(id, question, (1,), chunks, sum(map(len, chunks))), rollout, list(turns))


def made_episode(*turns: Turn, id: str = "q", question: str = "Who?", chunks: int = 2) -> Episode:
    """An episode of these turns over a document of `chunks` chunks of 8 tokens."""
    reading = Reading(id, question, (1,), (np.arange(8),) * chunks, 8 * chunks)
    return Episode(reading, 0, list(turns))
