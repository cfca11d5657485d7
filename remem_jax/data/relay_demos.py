"""What a relay agent learns from before reinforcement learning: reading practice, then a noisy demonstrator's turns.

Lines of demonstrations as `algorithm: sft` reads them: practice is text with weights on few words, turns are turns.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from remem_jax.data.relay_policies import NOISY_CALLBACK, NOISY_MEMAGENT, ScriptedTurn, play
from remem_jax.data.relay_task import HOME, ORDERS, PARTNER, PERSONS, PLACES, Fact, make_record

PRACTICE_FACTS = 12
WARM_DOCUMENTS = (4, 8, 12, 16)
_KEPT_BEFORE_HOP_1 = 0.5


def practice_lines(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Two to four facts, then repeats of them by chance; only the object of a repeated fact carries loss.

    A dense exercise in looking a fact up and copying from it, which the turns alone do not teach.
    """
    for i in range(count):
        chance = random.Random(f"practice-{seed}-{i}")
        facts = _facts(chance, chance.randint(2, 4))
        told = facts + [chance.choice(facts) for _ in range(PRACTICE_FACTS - len(facts))]
        words = [word for fact in told for word in fact]
        weights = [0, 0, 0] * len(facts) + [0, 0, 1] * (PRACTICE_FACTS - len(facts))
        yield {"prompt": words[0], "reply": " ".join(words[1:]), "ended": False, "loss_weights": weights[1:]}


def warm_lines(agent: str, count: int, seed: int = 0, documents: Sequence[int] = WARM_DOCUMENTS) -> list[dict]:
    """`count` turns of the noisy demonstrator, shuffled, on all orders alike.

    Of the turns before hop 1 is known, which are most, half are left out.
    """
    policy = NOISY_CALLBACK if agent == "rememr1" else NOISY_MEMAGENT
    lines: list[dict] = []
    chance = random.Random(f"warm-{seed}")
    questions = 0
    while len(lines) < count:
        order = ORDERS[questions % len(ORDERS)]
        record = make_record(order, documents[questions // len(ORDERS) % len(documents)], f"warm-{seed}-{questions}")
        questions += 1
        turns = play(record, policy, chance)
        lines += [_turn_line(t) for t in turns if t.knows_hop_1 or chance.random() < _KEPT_BEFORE_HOP_1]
    chance.shuffle(lines)
    return lines[:count]


def _facts(chance: random.Random, count: int) -> list[Fact]:
    """Facts of distinct subjects."""
    facts: list[Fact] = []
    for person in chance.sample(PERSONS, count):
        relation = chance.choice((HOME, PARTNER))
        ends_in = PLACES if relation == HOME else [other for other in PERSONS if other != person]
        facts.append((relation, person, chance.choice(ends_in)))
    return facts


def _turn_line(turn: ScriptedTurn) -> dict[str, Any]:
    view = turn.view
    line = {"question": view.question, "final": view.chunk is None}
    line |= {} if view.chunk is None else {"chunk": view.chunk}
    return line | {"memory_before": view.memory, "recalled": view.recalled, "reply": turn.reply}
