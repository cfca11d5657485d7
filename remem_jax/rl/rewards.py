"""What a trajectory earns: outcome, memory gain, callback gain and format, as pure functions of masked arrays.

The host turns texts into hit arrays (which words of which gold answer a text holds); the rest is jnp and jit-able.

Axes: `N` questions, `T` memory turns, `G` rollouts of a question, `Y` gold answers, `A` words of an answer.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from remem_jax.agent.words import words
from remem_jax.eval.metrics import Answers, as_answers, exact_match
from remem_jax.eval.normalise import normalise


def is_yes_no(answers: Answers) -> bool:
    """Whether every gold answer is yes or no; such a question has no memory and no callback gain."""
    return all(normalise(answer) in ("yes", "no") for answer in as_answers(answers))


def _answer_words(answers: Answers, shape: tuple[int, int] | None) -> tuple[list[list[str]], tuple[int, int]]:
    listed = [sorted(words(answer)) for answer in as_answers(answers)]
    needed = (len(listed), max(len(one) for one in listed))
    if shape is None:
        return listed, needed
    if shape[0] < needed[0] or shape[1] < needed[1]:
        raise ValueError(f"expected a shape of at least {needed} (answers, words), found {shape}: enlarge it")
    return listed, shape


def answer_mask(answers: Answers, shape: tuple[int, int] | None = None) -> Bool[np.ndarray, "Y A"]:
    """Which places of a hit array stand for a word.

    All False for a question whose answers are all yes or no: every gain of such a question is then 0.

    Args:
        answers: gold answers of one question; one bare string is one answer.
        shape: `(Y, A)` to pad to; the smallest that fits by default.
    """
    listed, shape = _answer_words(answers, shape)
    mask = np.zeros(shape, bool)
    if not is_yes_no(answers):
        for row, one in zip(mask, listed):
            row[: len(one)] = True
    return mask


def answer_hits(
    text: str | AbstractSet[str], answers: Answers, shape: tuple[int, int] | None = None
) -> Bool[np.ndarray, "Y A"]:
    """Which words of which gold answer `text` holds (host).

    Words are compared whole, so "York" is not in "Yorkshire". The words of an answer are distinct and sorted.

    Args:
        text: a text, or its words where they are known already.
        answers: gold answers of one question; one bare string is one answer.
        shape: `(Y, A)` to pad to with False; the smallest that fits by default.
    """
    listed, shape = _answer_words(answers, shape)
    held = words(text) if isinstance(text, str) else text
    hits = np.zeros(shape, bool)
    for row, one in zip(hits, listed):
        row[: len(one)] = [word in held for word in one]
    return hits


def best(hits: Bool[ArrayLike, "N *B Y A"], answer_mask: Bool[ArrayLike, "N Y A"]) -> Float[Array, "N *B"]:
    """`max over y of (hit words of y / words of y)`; an answer without words counts 0."""
    hits, mask = jnp.asarray(hits, bool), jnp.asarray(answer_mask, bool)
    mask = mask.reshape(mask.shape[0], *(1,) * (hits.ndim - 3), *mask.shape[1:])
    held = (hits & mask).sum(-1).astype(jnp.float32)
    known = jnp.maximum(mask.sum(-1), 1).astype(jnp.float32)
    return (held / known).max(-1)


def outcome_reward(predictions: Sequence[Sequence[str | None]], answers: Sequence[Answers]) -> Float[np.ndarray, "N G"]:
    """1 where the prediction equals a gold answer after normalisation, else 0; no prediction is wrong (host).

    Args:
        predictions: `[N][G]`, the content of the last box or None.
        answers: `[N][Y]` gold answers.
    """
    sizes = {len(group) for group in predictions}
    if len(predictions) != len(answers) or len(sizes) > 1:
        raise ValueError(
            f"expected one group of predictions a question, all of one size, found {len(predictions)} groups of sizes "
            f"{sorted(sizes)} for {len(answers)} questions: give a missing prediction as None"
        )
    scores = [[exact_match(one, gold) for one in group] for group, gold in zip(predictions, answers)]
    return np.array(scores, np.float32).reshape(len(predictions), max(sizes, default=0))


def memory_gain(
    hits_memory: Bool[ArrayLike, "N T1 G Y A"],
    answer_mask: Bool[ArrayLike, "N Y A"],
    turn_mask: Bool[ArrayLike, "N T G"],
) -> Float[Array, "N T G"]:
    """`best(m[t+1]) - best(m[t])`: what the memory written at turn `t` knows of the answer beyond the one it replaced.

    Negative where answer words were lost. The sum over turns is `best` of the last memory. Paper: the state reward's
    memory term.

    Args:
        hits_memory: index `t` is the memory after `t` turns, so 0 is the empty one; `T1` is `T + 1`. After a
            question's last chunk the values are not read.
        answer_mask: see `answer_mask`.
        turn_mask: the live memory turns.

    Returns:
        The gain, 0 at masked places.
    """
    share = best(hits_memory, answer_mask)
    return jnp.where(jnp.asarray(turn_mask, bool), share[:, 1:] - share[:, :-1], 0.0)


def callback_gain(
    hits_recalled: Bool[ArrayLike, "N T G Y A"],
    hits_memory: Bool[ArrayLike, "N T1 G Y A"],
    hits_next_chunk: Bool[ArrayLike, "N T Y A"],
    answer_mask: Bool[ArrayLike, "N Y A"],
    turn_mask: Bool[ArrayLike, "N T G"],
) -> Float[Array, "N T G"]:
    """`best(r | m | c) - best(m | c)`: what a recalled memory adds to all else that the next turn will see.

    Never negative. It is credited to the turn that wrote the query. Paper: the state reward's callback term.

    Args:
        hits_recalled: of `r`, the memory recalled by the query written at turn `t`; False where none was.
        hits_memory: as in `memory_gain`; `m` is the memory written with the query, index `t + 1`.
        hits_next_chunk: of `c`, the chunk read after turn `t`; False after the last chunk.
        answer_mask: see `answer_mask`.
        turn_mask: the live memory turns.

    Returns:
        The gain, 0 at masked places.
    """
    seen = jnp.asarray(hits_memory, bool)[:, 1:] | jnp.asarray(hits_next_chunk, bool)[:, :, None]
    gain = best(jnp.asarray(hits_recalled, bool) | seen, answer_mask) - best(seen, answer_mask)
    return jnp.where(jnp.asarray(turn_mask, bool), gain, 0.0)


def format_reward(valid: Bool[ArrayLike, "N T1 G"]) -> Float[Array, "N T1 G"]:
    """1 where the reply kept to its format (memory turn: a valid reply; final turn: one complete box), else 0."""
    return jnp.asarray(valid, bool).astype(jnp.float32)


def state_parts(
    memory: Float[ArrayLike, "N T G"], callback: Float[ArrayLike, "N T G"], format: Float[ArrayLike, "N T1 G"]
) -> dict[str, Float[Array, "N T1 G"]]:
    """The three parts of the state reward on one shape; the final turn has format alone, its gains are 0."""
    gains = {"memory": memory, "callback": callback}
    parts = {name: jnp.pad(jnp.asarray(gain, jnp.float32), ((0, 0), (0, 1), (0, 0))) for name, gain in gains.items()}
    return parts | {"format": jnp.asarray(format, jnp.float32)}


def state_reward(
    memory: Float[ArrayLike, "N T G"],
    callback: Float[ArrayLike, "N T G"],
    format: Float[ArrayLike, "N T1 G"],
    *,
    memory_weight: float = 1.0,
    callback_weight: float = 1.0,
    format_weight: float = 1.0,
) -> Float[Array, "N T1 G"]:
    """`memory_weight * memory gain + callback_weight * callback gain + format_weight * format` of every turn."""
    parts = state_parts(memory, callback, format)
    return memory_weight * parts["memory"] + callback_weight * parts["callback"] + format_weight * parts["format"]
