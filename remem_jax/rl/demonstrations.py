"""Demonstrations for the warm start: JSON lines of turns, plain texts or ids, as training rows.

A turn's prompt is put together by the same segments as the agent's own, so what a dumped trajectory teaches is what the
agent will be shown.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from remem_jax.agent.prompts import LOOPLESS, PromptBlocks, assemble, prompt_parts
from remem_jax.config import AgentConfig
from remem_jax.data.documents import json_lines
from remem_jax.errors import RememError
from remem_jax.rl.rows import Group, Reply
from remem_jax.tokenizer import Tokenizer


def read_demonstrations(
    path: str | Path, tokenizer: Tokenizer, config: AgentConfig, blocks: PromptBlocks, context: int
) -> list[Group]:
    """Every line of a file as a group of one reply, its loss weights in `Reply.weights`.

    A line is one of

    - a turn: `question`, `final`, `chunk` (memory turns), `memory_before`, `recalled` (null shows the placeholder);
    - a text: `prompt`;
    - ids: `prefix_ids`, `suffix_ids`, `reply_ids`;

    the first two with `reply` and `ended` (true, the default, appends the end token). `loss_weights` holds a number a
    reply token, the end token included; absent it is 1 for all.

    Raises RememError with file, line and field for what is missing, of the wrong kind or too long for `context`.
    """
    groups = []
    for place, value in json_lines(path):
        prefix, suffix, reply = _ids(value, place, tokenizer, config, blocks)
        if not suffix:
            raise RememError(f"{place}: expected a prompt of at least one token, found none")
        if len(prefix) + len(suffix) + len(reply) > context:
            total = len(prefix) + len(suffix) + len(reply)
            raise RememError(f"{place}: {total} tokens exceed the model's context of {context}: shorten it")
        groups.append(_group(prefix, suffix, reply, _weights(value, len(reply), place)))
    if not groups:
        raise RememError(f"{path}: expected one demonstration a line, found none")
    return groups


def _group(prefix, suffix, reply, weights) -> Group:
    nothing = np.zeros(len(reply), np.float32)
    only = Reply(np.asarray(suffix, np.int32), np.asarray(reply, np.int32), weights, 1.0, nothing)
    return Group(np.asarray(prefix, np.int32), (only,))


def _ids(value: Mapping[str, Any], place: str, tokenizer, config, blocks) -> tuple[list[int], list[int], list[int]]:
    if "reply_ids" in value:
        prefix = _id_list(value, "prefix_ids", place, tokenizer) if "prefix_ids" in value else []
        suffix, reply = (_id_list(value, name, place, tokenizer) for name in ("suffix_ids", "reply_ids"))
        return prefix, suffix, reply
    reply = tokenizer.encode(_text(value, "reply", place))
    ended = value.get("ended", True)
    if not isinstance(ended, bool):
        raise RememError(f"{place}: field 'ended' must be true or false, found {ended!r}")
    if ended:
        reply = [*reply, tokenizer.eos_ids[0]]
    if not reply:
        raise RememError(f"{place}: field 'reply' must hold at least one token, found none")
    if "prompt" in value:
        return [], tokenizer.encode(_text(value, "prompt", place)), reply
    return (*_turn_prompt(value, place, tokenizer, config, blocks), reply)


def _turn_prompt(value, place, tokenizer, config: AgentConfig, blocks: PromptBlocks) -> tuple[list[int], list[int]]:
    final = value.get("final", False)
    if not isinstance(final, bool):
        raise RememError(f"{place}: field 'final' must be true or false, found {final!r}")
    shows_chunk = not final or config.agent in LOOPLESS
    sources = {
        "question": tokenizer.encode(_text(value, "question", place)),
        "chunk": tokenizer.encode(_text(value, "chunk", place)) if shows_chunk else [],
        "memory": _shown(value, "memory_before", place, tokenizer, blocks.no_memory),
        "recalled": _shown(value, "recalled", place, tokenizer, blocks.no_recall),
    }
    prefix, suffix = prompt_parts(blocks, config.agent, config.prompt_order, final)
    return assemble(prefix, sources), assemble(suffix, sources)


def _shown(value, name: str, place: str, tokenizer, placeholder: tuple[int, ...]) -> list[int]:
    return list(placeholder) if value.get(name) is None else tokenizer.encode(_text(value, name, place))


def _text(value: Mapping[str, Any], name: str, place: str) -> str:
    if name not in value:
        raise RememError(
            f"{place}: field '{name}' is missing: a demonstration is a turn, a prompt with a reply, or ids"
        )
    if not isinstance(value[name], str):
        raise RememError(f"{place}: field '{name}' must be a text, found {type(value[name]).__name__}")
    return value[name]


def _id_list(value: Mapping[str, Any], name: str, place: str, tokenizer) -> list[int]:
    found = value.get(name)
    fits = isinstance(found, list) and all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in found)
    if not fits or (not found and name == "reply_ids"):
        raise RememError(f"{place}: field '{name}' must be a list of ids below {tokenizer.vocab_size}")
    return found  # pyright: ignore[reportReturnType]


def _weights(value: Mapping[str, Any], length: int, place: str) -> np.ndarray:
    if value.get("loss_weights") is None:
        return np.ones(length, np.float32)
    found = value["loss_weights"]
    numbers = isinstance(found, list) and all(isinstance(w, int | float) and 0 <= w < float("inf") for w in found)
    if not numbers or len(found) != length:
        count = len(found) if isinstance(found, list) else type(found).__name__
        raise RememError(
            f"{place}: field 'loss_weights' must hold {length} numbers of at least 0, one a reply token with the end "
            f"token, found {count}"
        )
    return np.asarray(found, np.float32)
