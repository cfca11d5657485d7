"""Scripted policies of the relay task: oracles that bound what an agent can reach, and noisy ones to imitate.

A policy sees exactly what a model's prompt shows at one turn and writes an ordinary reply; `play` is the loop of
METHOD 1 in plain Python.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from remem_jax.agent.protocol import parse_answer, parse_reply
from remem_jax.agent.recall import retrieve_reference
from remem_jax.data.records import Record
from remem_jax.data.relay_task import (
    BOX_CLOSE,
    BOX_OPEN,
    FACTS_OF_A_CHUNK,
    FACTS_OF_A_MEMORY,
    HOME,
    NONE,
    PARTNER,
    PLACES,
    Fact,
    facts_of,
)
from remem_jax.eval.metrics import exact_match


@dataclass(frozen=True)
class View:
    """What a turn's prompt shows; `chunk` is None in the final turn."""

    question: str
    chunk: str | None
    memory: str | None
    recalled: str | None

    @property
    def asked(self) -> str:
        """The person asked about."""
        return self.question.split()[-1]


Policy = Callable[[View, random.Random], str]
"""A turn's reply."""


@dataclass(frozen=True)
class Script:
    """A policy's habits, each a probability; the defaults are those of the callback oracle."""

    keeps: float = 1.0
    """That a hop which is in sight stands in the new memory."""
    notes: float = 1.0
    """That a home of the chunk is a candidate for the memory."""
    new_first: float = 1.0
    """That homes of the chunk go before homes of the memory, and not behind."""
    calls: float = 1.0
    """That it asks for hop 2 when hop 1 is known and hop 2 is not."""
    wrong_calls: float = 0.0
    """That it then asks for something else."""
    idle_calls: float = 0.0
    """That it asks for something where nothing is missing."""

    def __call__(self, view: View, chance: random.Random) -> str:
        """The reply to one turn."""
        return _answer(view, chance) if view.chunk is None else self._memory_turn(view, chance)

    def _memory_turn(self, view: View, chance: random.Random) -> str:
        chunk, memory = facts_of(view.chunk), facts_of(view.memory)
        first, second = _hops(view.asked, chunk + memory + facts_of(view.recalled))
        kept = [hop for hop in (first, second) if hop and chance.random() < self.keeps]
        new = [fact for fact in chunk if fact[0] == HOME and chance.random() < self.notes]
        old = [fact for fact in memory if fact[0] == HOME]
        homes = new + old if chance.random() < self.new_first else old + new
        kept += [fact for fact in dict.fromkeys(homes) if fact != second]
        memory_text = " ".join(" ".join(fact) for fact in kept[:FACTS_OF_A_MEMORY]) or NONE
        query = self._query(view, chance, first, second, chunk + memory)
        return f"<memory> {memory_text} </memory>" + (f" <callback> {query} </callback>" if query else "")

    def _query(
        self, view: View, chance: random.Random, first: Fact | None, second: Fact | None, shown: Sequence[Fact]
    ) -> str | None:
        draw = chance.random()
        other = chance.choice([view.asked, *(fact[1] for fact in shown)])
        if first is None or second is not None:
            return other if draw < self.idle_calls else None
        if draw < self.calls:
            return first[2]
        return other if draw < self.calls + self.wrong_calls else None


CALLBACK_ORACLE = Script()
NEWEST_FIRST = Script(calls=0.0)
OLDEST_FIRST = Script(calls=0.0, new_first=0.0)
_NOISE = dict(keeps=0.9, notes=0.85, new_first=0.7)
NOISY_CALLBACK = Script(**_NOISE, calls=0.35, wrong_calls=0.1, idle_calls=0.05)
NOISY_MEMAGENT = Script(**_NOISE, calls=0.0)


@dataclass(frozen=True)
class ScriptedTurn:
    """One turn of a scripted policy: what it saw, what it wrote."""

    view: View
    reply: str

    @property
    def knows_hop_1(self) -> bool:
        """Whether the asked person's partner is in sight."""
        shown = facts_of(self.view.memory) + facts_of(self.view.chunk) + facts_of(self.view.recalled)
        return _hops(self.view.asked, shown)[0] is not None


def play(record: Record, policy: Policy, chance: random.Random) -> Iterator[ScriptedTurn]:
    """Every turn of a policy on one question, the final turn last."""
    texts = [paragraph.text for paragraph in record.paragraphs]
    history: list[str | None] = []
    current, query = -1, ""
    for at in [*range(0, len(texts), FACTS_OF_A_CHUNK), None]:
        slot, _ = retrieve_reference(history, [i != current for i in range(len(history))], query)
        chunk = None if at is None else "\n".join(texts[at : at + FACTS_OF_A_CHUNK])
        memory, recalled = (history[i] if i >= 0 else None for i in (current, slot))
        view = View(record.question, chunk, memory, recalled)
        reply = policy(view, chance)
        yield ScriptedTurn(view, reply)
        if at is not None:
            parsed = parse_reply(reply)
            current = len(history) if parsed.valid else current
            history.append(parsed.memory)
            query = parsed.callback or ""


def scripted_accuracy(records: Sequence[Record], policy: Policy, seed: int = 0) -> float:
    """Share of questions that a policy answers exactly."""
    right = 0.0
    for record in records:
        *_, final = play(record, policy, random.Random(f"{seed}-{record.id}"))
        right += exact_match(parse_answer(final.reply), list(record.answers))
    return right / len(records)


def _hops(asked: str, shown: Sequence[Fact]) -> tuple[Fact | None, Fact | None]:
    """The two facts of the answer among those shown, where they are."""
    first = next((fact for fact in shown if fact[:2] == (PARTNER, asked)), None)
    second = next((fact for fact in shown if first and fact[:2] == (HOME, first[2])), None)
    return first, second


def _answer(view: View, chance: random.Random) -> str:
    """The evidence, then the answer in a box; a guess among the places in sight where the evidence is not complete."""
    shown = facts_of(view.memory) + facts_of(view.recalled)
    first, second = _hops(view.asked, shown)
    guess = chance.choice([fact[2] for fact in shown if fact[0] == HOME] or PLACES)
    evidence = [" ".join(hop) for hop in (first, second) if hop]
    return " ".join([*evidence, BOX_OPEN, second[2] if second else guess, BOX_CLOSE])
