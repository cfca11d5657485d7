"""The relay task: two facts answer a question, `partner ANA BORIS` and `home BORIS OSLO`, among distracting ones.

Its words, its records (METHOD 9) with evidence in forward, reverse or distant order, and an agent's settings for it.
"""

import random
from collections.abc import Sequence

from remem_jax.config import AgentConfig, Sampling
from remem_jax.data.documents import Document
from remem_jax.data.records import Record
from remem_jax.errors import RememError

# fmt: off
PERSONS = (
    "ADA", "ANA", "BEN", "BORIS", "CARLA", "CLEO", "DAVID", "DORA", "EMIL", "EVA", "FELIX", "FRIDA", "GRETA", "GUS",
    "HANNA", "HUGO", "IDA", "IVAN", "JANA", "JONAS", "KARL", "KIRA", "LARS", "LENA", "MARCO", "MIRA", "NILS", "NORA",
    "OLGA", "OSCAR", "PAUL", "PETRA", "QUINN", "RITA", "ROMAN", "SARA", "SVEN", "TARA", "TOM", "UMA", "URS", "VERA",
    "VITO", "WANDA", "WILL", "XENIA", "YARA", "ZENO",
)
PLACES = (
    "ATHENS", "BERLIN", "BOSTON", "BREMEN", "CAIRO", "CORK", "DAKAR", "DELHI", "DUBLIN", "GENEVA", "HANOI", "KYOTO",
    "LAGOS", "LIMA", "LYON", "MADRID", "MILAN", "NAIROBI", "OSLO", "PARIS", "PERTH", "PRAGUE", "QUITO", "RIGA", "ROME",
    "SEOUL", "SOFIA", "TUNIS", "TURIN", "VIENNA", "WARSAW", "ZURICH",
)
# fmt: on
HOME, PARTNER, NONE = "home", "partner", "none"
BOX_OPEN, BOX_CLOSE = "\\box{", "}"
PROMPTS = {
    "rules": "",
    "rules_callback": "",
    "final_rules": "",
    "document_rules": "",
    "chunk": "section {chunk}",
    "document": "section {document}",
    "recalled": "recalled {recalled}",
    "memory": "memory {memory}",
    "question": "question {question}",
    "cue": "reply",
    "final_cue": "final",
    "no_memory": NONE,
    "no_recall": NONE,
}
_MARKS = ("<memory>", "</memory>", "<callback>", "</callback>", BOX_OPEN, BOX_CLOSE)
_OTHERS = (HOME, PARTNER, "home_of", "partner_of", NONE, "section", "recalled", "memory", "question", "reply", "final")
WORDS = (*_OTHERS, *_MARKS, *PERSONS, *PLACES)
ORDERS = ("forward", "reverse", "distant")
FACTS_OF_A_CHUNK = 2
FACTS_OF_A_MEMORY = 2
_WORDS_OF_A_FACT = 3
_SHARE_OF_HOMES = 0.7

Fact = tuple[str, str, str]
"""Relation, subject, object."""


def agent_settings(agent: str = "rememr1") -> AgentConfig:
    """Settings of an agent for this task: a chunk and a memory hold two facts, the question stands last."""
    return AgentConfig(
        agent=agent,
        prompt_order="question_last",
        document_format="plain",
        chunk_tokens=FACTS_OF_A_CHUNK * _WORDS_OF_A_FACT,
        memory_tokens=FACTS_OF_A_MEMORY * _WORDS_OF_A_FACT,
        question_tokens=3,
        max_reply_tokens=12,
        prompts=PROMPTS,
        sampling=Sampling(temperature=1.0, top_p=1.0),
    )


def make_record(order: str, documents: int, seed: int | str) -> Record:
    """One question of `documents` facts, a document each; equal arguments give an equal record.

    forward: the partner fact (hop 1) comes before the home fact (hop 2), both at random places. reverse: hop 2 comes
    first. distant: hop 2 comes first, and more than half of all documents lie from one to the other.
    """
    if order not in ORDERS:
        raise RememError(f"order must be one of {', '.join(ORDERS)}, found {order!r}")
    if documents < 4:
        raise RememError(f"a relay question needs at least 4 documents, found {documents}: ask for more")
    name = f"relay-{order}-{documents}-{seed}"
    chance = random.Random(name)
    asked, partner = chance.sample(PERSONS, 2)
    answer = chance.choice(PLACES)
    first, second = (PARTNER, asked, partner), (HOME, partner, answer)
    facts = _distractors(chance, asked, partner, answer, documents - 2)
    early, late = _places(chance, order, documents)
    facts.insert(early, first if order == "forward" else second)
    facts.insert(late, second if order == "forward" else first)
    titles = [f"fact {i}" for i in range(1, documents + 1)]
    return Record(
        id=name,
        question=f"home_of partner_of {asked}",
        answers=(answer,),
        supporting_titles=(titles[facts.index(first)], titles[facts.index(second)]),
        paragraphs=tuple(Document(title, " ".join(fact)) for title, fact in zip(titles, facts, strict=True)),
        type=order,
    )


def make_records(documents: int, count: int, seed: int | str, orders: Sequence[str] = ORDERS) -> list[Record]:
    """`count` questions, the orders by turns."""
    return [make_record(orders[i % len(orders)], documents, f"{seed}-{i}") for i in range(count)]


def facts_of(text: str | None) -> list[Fact]:
    """Whole facts of a text, each once, in order of appearance; words that make no fact are passed over."""
    found: dict[Fact, None] = {}
    words = (text or "").split()
    at = 0
    while at + _WORDS_OF_A_FACT <= len(words):
        fact = (words[at], words[at + 1], words[at + 2])
        ends_in = {HOME: PLACES, PARTNER: PERSONS}.get(fact[0], ())
        whole = fact[1] in PERSONS and fact[2] in ends_in
        if whole:
            found[fact] = None
        at += _WORDS_OF_A_FACT if whole else 1
    return list(found)


def _places(chance: random.Random, order: str, documents: int) -> tuple[int, int]:
    """Places of the earlier and the later evidence document."""
    if order != "distant":
        early, late = sorted(chance.sample(range(documents), 2))
        return early, late
    # The place of the earlier one is drawn evenly. Pairs drawn evenly would put it near the beginning, where an agent
    # that keeps the oldest facts has it for nothing.
    gap = documents // 2 + 1
    early = chance.randrange(documents - gap)
    return early, chance.randrange(early + gap, documents)


def _distractors(chance: random.Random, asked: str, partner: str, answer: str, count: int) -> list[Fact]:
    """Homes of others in other places, and partners of others, the question's own persons among the objects."""
    homes = round(_SHARE_OF_HOMES * (count + 2)) - 1
    residents = _spread(chance, [p for p in PERSONS if p != partner], homes)
    places = _spread(chance, [p for p in PLACES if p != answer], homes)
    facts = [(HOME, person, place) for person, place in zip(residents, places, strict=True)]
    askers = _spread(chance, [p for p in PERSONS if p != asked], count - homes)
    facts += [(PARTNER, person, chance.choice([p for p in PERSONS if p != person])) for person in askers]
    chance.shuffle(facts)
    return facts


def _spread(chance: random.Random, items: Sequence[str], count: int) -> list[str]:
    """`count` of the items, none again before all had their turn."""
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += chance.sample(items, min(len(items), count - len(drawn)))
    return drawn
