"""Runs and traces made by hand for the tests of the report: small ones that can be counted, large and hostile ones."""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HOSTILE = (
    "</script></div><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    "<svg onload=window.hacked=3> &lt;b&gt; {{ 7*7 }} \x00\x07\u202egnp\u2066 \u2028 \ud800 \"'`${window.hacked = 4}"
)


def line(question: str, turn: int, **changes: Any) -> dict[str, Any]:
    """A turn with everything that a step of training writes, and `changes`."""
    return {
        "question_id": f"id {question}", "question": question, "rollout": 0, "turn": turn, "final": False,
        "prompt_tokens": 20, "chunk": f"chunk text {turn}", "memory_before": None, "recalled_step": None,
        "recalled_score": 0.0, "recalled": None, "reply": f"reply {turn}", "reply_tokens": 7, "ended": True,
        "valid": True, "reason": "", "callback": None, "memory": f"memory {turn}", "memory_cut": False,
        "answers": ["York"], "outcome": 0.0, "memory_gain": 0.0, "callback_gain": 0.0, "format": 1.0,
        "state_reward": 1.0, "advantage": 0.0,
    } | changes  # fmt: skip


def story(question: str, answer: str | None, *, gold: str = "York", turns: int = 3, **common: Any) -> list[dict]:
    """`turns` memory turns and an answer, of which turn 1 asks for the memory of turn 0."""
    right = float(answer == gold)
    lines = []
    before = None
    for turn in range(turns):
        memory = f"Ada lives in {'old York' if turn == 0 else 'Rome'} {turn}"
        changes: dict[str, Any] = {
            "memory": memory,
            "memory_before": before,
            "chunk": f"In chunk {turn} Ada left York.",
        }
        if turn == 1:
            changes |= {"callback": "where Ada lives", "callback_gain": 0.5, "advantage": -0.25}
        if turn == 2:
            changes |= {"recalled_step": 0, "recalled_score": 2 / 3, "recalled": "Ada lives in old York 0"}
        lines.append(line(question, turn, answers=[gold], **common | changes))
        before = memory
    final = {"final": True, "chunk": None, "memory": before, "memory_before": before, "answer": answer}
    final |= {"reply": rf"\boxed{{{answer}}}", "outcome": right}
    return [*lines, line(question, turns, answers=[gold], **common | final)]


def write(path: Path, turns: Iterable[Mapping[str, Any]]) -> Path:
    """A trace of these turns; lone surrogates go in as escapes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(turn) + "\n" for turn in turns), encoding="utf-8")
    return path


def write_run(folder: Path, *stories: list[dict], steps: int = 40) -> Path:
    """A run of `steps` steps, whose call rate is the step's share of them, with stories of its last step."""
    write(
        folder / "trajectories" / f"step_{steps:06}.jsonl", [turn | {"step": steps} for one in stories for turn in one]
    )
    metrics = [
        {"step": n, "health/call_rate": n / steps, "reward/outcome": None if n == 3 else 0.5, "own/thing": 2.0 * n}
        for n in range(1, steps + 1)
    ]
    write(folder / "metrics.jsonl", metrics)
    write(folder / "validation.jsonl", [{"step": 0, "exact_match": 0.25}, {"step": steps, "exact_match": 0.75}])
    return folder


def long_stories(
    questions: int, rollouts: int, *, turns: int = 6, chunk: int = 13_000, memory: int = 1_000
) -> list[dict]:
    """Stories of so many questions and rollouts with texts of such lengths, of words without a pattern."""
    dice = random.Random(0)
    vocabulary = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))) for _ in range(5000)]

    def text(length: int) -> str:
        return " ".join(dice.choices(vocabulary, k=length // 6))

    lines = []
    for n in range(questions):
        chunks = [text(chunk) + " York" for _ in range(turns)]
        for g in range(rollouts):
            for one in story(f"Question {n}?", "York" if g % 2 else None, turns=turns, rollout=g):
                if not one["final"]:
                    one["chunk"], one["memory"] = chunks[one["turn"]], text(memory)
                    one["reply"] = f"<memory>{one['memory']}</memory>"
                lines.append(one)
    return lines
