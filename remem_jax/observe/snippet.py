"""A trajectory as a piece of HTML for a notebook: one table, no scripts, every text escaped."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from remem_jax.observe.marking import changes, gold_words, marked, shortened, visible
from remem_jax.observe.stories import Trajectory

CHUNK_CHARACTERS, TEXT_CHARACTERS = 2000, 6000


@cache
def environment() -> Environment:
    """Where the templates are found; what they are given is escaped."""
    folder = FileSystemLoader(Path(__file__).parent / "pages")
    return Environment(loader=folder, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)


def trajectory_html(trajectory: Trajectory) -> str:
    """The turns of a trajectory as a table: memories with what changed, queries with what they recalled, rewards."""
    gold = gold_words(trajectory.answers)
    turns, before = [], ""
    for turn, after in zip(trajectory.turns, [*trajectory.turns[1:], None]):
        memory = visible(turn["memory"] or "").strip()
        found = None if after is None or after["recalled_step"] is None else after
        turns.append(
            {
                "name": turn_name(turn),
                "memory": [(kind, marked(text, gold)) for kind, text in changes(before, memory)],
                "chunk": turn["chunk"] and _pieces(turn["chunk"], gold, CHUNK_CHARACTERS),
                "reply": _pieces(turn["reply"], gold, TEXT_CHARACTERS),
                "query": visible(turn["callback"] or ""),
                "found": found and recalled_from(found),
                "recalled": found and _pieces(found["recalled"] or "", gold, TEXT_CHARACTERS),
                "notes": [*flags(turn), *rewards(turn)],
            }
        )
        before = memory
    return (
        environment()
        .get_template("snippet.html.j2")
        .render(
            question=visible(trajectory.question),
            answer=answer_text(trajectory),
            gold=visible(" | ".join(trajectory.answers or ())),
            counts=counts(trajectory),
            turns=turns,
        )
    )


def _pieces(text: str, gold: frozenset[str], limit: int) -> list[str]:
    return shortened(marked(visible(text).strip(), gold), limit)


def turn_name(turn: Mapping[str, Any]) -> str:
    """What a person calls a turn: chunks count from 1."""
    return "answer" if turn["final"] else f"chunk {turn['turn'] + 1}"


def answer_text(trajectory: Trajectory) -> str:
    """The answer as shown, or why there is none."""
    if not trajectory.finished:
        return "(not finished)"
    return "(no answer)" if trajectory.answer is None else visible(trajectory.answer)


def recalled_from(turn: Mapping[str, Any]) -> str:
    """Which memory a turn showed as the recalled one."""
    score = turn["recalled_score"]
    return f"recalled: memory of chunk {turn['recalled_step'] + 1}" + ("" if score is None else f", score {score:.2f}")


def counts(trajectory: Trajectory) -> str:
    """Turns, calls, hits, scores and faults in one line."""
    told = [f"{len(trajectory.turns)} turn{'' if len(trajectory.turns) == 1 else 's'}"]
    told += [f"calls {trajectory.calls}", f"hits {trajectory.hits}"]
    if trajectory.exact_match is not None and trajectory.f1 is not None:
        told += [f"EM {trajectory.exact_match:g}", f"F1 {trajectory.f1:.2f}"]
    told += [f"{n} {name}" for n, name in ((trajectory.invalid_turns, "invalid"), (trajectory.truncated, "cut")) if n]
    return " · ".join(told)


def flags(turn: Mapping[str, Any]) -> list[str]:
    """What went wrong in a turn, in words."""
    found = []
    if turn["valid"] is False and turn["final"]:
        found.append("! not exactly one complete box")
    elif turn["valid"] is False:
        reason = visible(turn["reason"] or "").replace("_", " ")
        found.append(f"! invalid reply{f' ({reason})' if reason else ''}: the memory stays")
    if turn["ended"] is False:
        found.append("! reply cut at its limit")
    if turn["memory_cut"]:
        found.append("! memory cut at its limit")
    return found


def rewards(turn: Mapping[str, Any]) -> list[str]:
    """Reward parts and advantage of a turn; the outcome belongs to the final one, gains to the others."""
    names = ("outcome", "format") if turn["final"] else ("memory_gain", "callback_gain", "format")
    shown = {name: turn[name] for name in (*names, "advantage") if turn[name] is not None}
    return [f"{name.replace('_', ' ')} {value:.3g}" for name, value in shown.items()]
