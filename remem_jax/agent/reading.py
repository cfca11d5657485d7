"""From documents and a question to what the loop reads: token chunks, and a length budget checked before anything runs.

Axes: `T` chunks of a document.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence

import numpy as np

from remem_jax.agent.prompts import LOOPLESS, PromptBlocks, prompt_parts
from remem_jax.agent.recall import recall
from remem_jax.config import AgentConfig
from remem_jax.data.documents import Document, paragraphs, render_documents
from remem_jax.data.token_cache import TokenCache
from remem_jax.errors import RememError
from remem_jax.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Reading:
    """One question with the text it is asked about, as ids."""

    id: str
    """Stable name of the question; random numbers are folded from it."""
    question: str
    question_ids: tuple[int, ...]
    chunks: tuple[np.ndarray, ...]
    """Ids of each chunk, `T` of them; the agents without a loop have at most one, shown in the final turn."""
    document_tokens: int
    """Tokens of the whole document, also those that were cut."""
    cut_tokens: int = 0
    """Tokens of the document that will not be read: beyond `max_chunks`, or cut out of the middle (full_context)."""


def chunk_ids(ids: np.ndarray, chunk_tokens: int) -> tuple[np.ndarray, ...]:
    """Ids cut into `ceil(tokens / chunk_tokens)` chunks; none for no ids."""
    return tuple(ids[i : i + chunk_tokens] for i in range(0, len(ids), chunk_tokens))


def encode_documents(
    tokenizer: Tokenizer, documents: Sequence[Document], form: str = "numbered", cache: TokenCache | None = None
) -> np.ndarray:
    """Ids of the rendered documents, int32 (from a `cache` maybe uint16); special strings in them are plain text."""
    text = render_documents(documents, form)
    return np.asarray(tokenizer.encode(text), np.int32) if cache is None else cache.encode(tokenizer, text)


def prepare(
    tokenizer: Tokenizer,
    config: AgentConfig,
    blocks: PromptBlocks,
    context: int,
    questions: Sequence[tuple[str, str]],
    documents: Sequence[Document],
    cache: TokenCache | None = None,
) -> list[Reading]:
    """Readings of several questions, `(id, text)`, over one set of documents, which is tokenised once.

    A `cache` keeps the ids for the next time.

    Raises:
        RememError: an empty or overlong question, or lengths that do not fit `context` (the sum spelled out).
    """
    if not questions:
        raise RememError("expected at least one question, found none")
    encoded = [question_ids(tokenizer, config, text) for _, text in questions]
    longest = max(map(len, encoded))
    room = check_budget(config, blocks, context, longest)
    readings = []
    form = config.document_format
    whole = None if config.agent == "retrieval" else encode_documents(tokenizer, documents, form, cache)
    for (name, text), ids in zip(questions, encoded, strict=True):
        if whole is None:
            shown, total = _retrieved(tokenizer, config, text, documents, cache)
        else:
            shown, total = whole, len(whole)
        if config.agent in LOOPLESS:
            kept = cut_middle(shown, room)
            chunks = (kept,) if len(kept) else ()
        else:
            chunks = chunk_ids(shown, config.chunk_tokens)[: config.max_chunks]
        cut = len(shown) - sum(map(len, chunks))
        readings.append(Reading(name, text, tuple(ids), chunks, total, cut))
    return readings


def cut_middle(ids: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` ids: the first half and the last half of the room, the middle left out."""
    if len(ids) <= limit:
        return ids
    head = limit - limit // 2
    return np.concatenate([ids[:head], ids[len(ids) - limit // 2 :]])


def pad_chunks(readings: Sequence[Reading], size: Callable[[int], int]) -> tuple[np.ndarray, np.ndarray]:
    """Chunks of several questions as one array: ids `[N, T, C]` and lengths `[N, T]`, int32, 0 beyond each.

    `T` is that of the longest, and at least 1; `C` is `size` of the longest chunk.
    """
    lengths = np.zeros((len(readings), max([len(r.chunks) for r in readings] + [1])), np.int32)
    for row, reading in zip(lengths, readings, strict=True):
        row[: len(reading.chunks)] = [len(chunk) for chunk in reading.chunks]
    ids = np.zeros((*lengths.shape, size(int(lengths.max()))), np.int32)
    for n, reading in enumerate(readings):
        for t, chunk in enumerate(reading.chunks):
            ids[n, t, : len(chunk)] = chunk
    return ids, lengths


def fit_lengths(
    config: AgentConfig, blocks: PromptBlocks, context: int, *, keep: Collection[str] = ()
) -> tuple[AgentConfig, str]:
    """Halve chunk, memory and reply together until they fit `context`; returns the settings and a note ("" if as is).

    Lengths named in `keep` stay. A question of up to 256 tokens is allowed for. Where even 64 tokens do not fit, the
    settings come back unchanged and the check of the budget says why.
    """
    names = [n for n in ("chunk_tokens", "memory_tokens", "max_reply_tokens") if n not in keep]
    fitted = config
    while _budget(fitted, blocks, min(256, config.question_tokens))[1] > context:
        halved = {name: getattr(fitted, name) // 2 for name in names}
        if not halved or min(halved.values()) < 64:
            return config, ""
        fitted = dataclasses.replace(fitted, **halved)
    if fitted == config:
        return config, ""
    spelled = ", ".join(f"{name} {getattr(fitted, name)}" for name in names)
    return fitted, f"lengths fitted to the model's context of {context}: {spelled}"


def check_budget(config: AgentConfig, blocks: PromptBlocks, context: int, question_tokens: int) -> int:
    """Check that the longest prompt and its reply fit the model; returns the tokens left for a document.

    Raises RememError with the sum spelled out.
    """
    loop = config.agent not in LOOPLESS
    terms, total = _budget(config, blocks, question_tokens)
    if total + (0 if loop else 1) > context:  # an agent without a loop needs room for some of the document
        spelled = " + ".join(f"{name} {count}" for name, count in terms.items())
        raise RememError(
            f"{spelled} = {total} tokens do not fit the model's context of {context}: "
            f"lower {'chunk_tokens, memory_tokens or ' if loop else ''}max_reply_tokens"
        )
    return context - total


def _budget(config: AgentConfig, blocks: PromptBlocks, question_tokens: int) -> tuple[dict[str, int], int]:
    """What the longest prompt and its reply are made of, in tokens, and their sum."""
    terms = {
        "question": question_tokens,
        "reply": config.max_reply_tokens,
        "prompt text": _prompt_tokens(config, blocks),
    }
    if config.agent not in LOOPLESS:
        terms |= {"chunk": config.chunk_tokens, "memory": max(config.memory_tokens, len(blocks.no_memory))}
        if config.agent != "memagent":
            terms["recalled memory"] = max(config.memory_tokens, len(blocks.no_recall))
    return terms, sum(terms.values())


def _prompt_tokens(config: AgentConfig, blocks: PromptBlocks) -> int:
    """Constant tokens of the longer of the two prompts."""
    turns = (True,) if config.agent in LOOPLESS else (False, True)
    return max(
        sum(len(s) for part in prompt_parts(blocks, config.agent, config.prompt_order, final) for s in part
            if not isinstance(s, str))
        for final in turns
    )  # fmt: skip


def question_ids(tokenizer: Tokenizer, config: AgentConfig, text: str) -> list[int]:
    """Ids of a question; RememError where it is empty or longer than `question_tokens`."""
    if not isinstance(text, str):
        raise RememError(f"the question must be a text, found {type(text).__name__}")
    if not text.strip():
        raise RememError("the question is empty: give a question of at least one word")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise RememError(
            "the question holds half of a surrogate pair, which is no character: write the whole character"
        )
    ids = tokenizer.encode(text)
    if len(ids) > config.question_tokens:
        raise RememError(
            f"the question has {len(ids)} tokens, expected at most question_tokens = {config.question_tokens}: "
            "shorten it, or raise question_tokens, a setting of the agent"
        )
    return ids


def _retrieved(
    tokenizer: Tokenizer, config: AgentConfig, question: str, documents: Sequence[Document], cache: TokenCache | None
):
    """Ids of the paragraphs with the highest recall of the question, in document order, and of all the documents."""
    pieces = paragraphs(documents)
    scores = [recall(question, f"{piece.title}\n{piece.text}") for piece in pieces]
    best = sorted(range(len(pieces)), key=lambda i: (-scores[i], i))[: config.retrieval_paragraphs]
    shown = encode_documents(tokenizer, [pieces[i] for i in sorted(best)], config.document_format)
    return shown, len(encode_documents(tokenizer, documents, config.document_format, cache))
