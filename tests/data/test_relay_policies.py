"""Scripted policies: what they write where, and the bounds that they set."""

import random
from collections import Counter

import pytest

from remem_jax.agent.protocol import parse_answer, parse_reply
from remem_jax.data.documents import Document
from remem_jax.data.records import Record
from remem_jax.data.relay_policies import (
    CALLBACK_ORACLE,
    NEWEST_FIRST,
    NOISY_CALLBACK,
    NOISY_MEMAGENT,
    OLDEST_FIRST,
    View,
    play,
    scripted_accuracy,
)
from remem_jax.data.relay_task import ORDERS, make_records

QUESTION = "home_of partner_of ANA"


def record_of(*texts: str) -> Record:
    paragraphs = tuple(Document(f"fact {i}", text) for i, text in enumerate(texts, 1))
    return Record("by hand", QUESTION, ("OSLO",), (), paragraphs)


def write(policy, chunk, memory=None, recalled=None):
    return policy(View(QUESTION, chunk, memory, recalled), random.Random(0))


def test_before_hop_1_is_known_homes_fill_the_memory_new_or_old_ones_first():
    chunk, memory = "home BEN LIMA\nhome CLEO ROME", "home DORA PARIS"
    assert write(NEWEST_FIRST, chunk, memory) == "<memory> home BEN LIMA home CLEO ROME </memory>"
    assert write(OLDEST_FIRST, chunk, memory) == "<memory> home DORA PARIS home BEN LIMA </memory>"


def test_where_there_is_nothing_to_keep_the_memory_says_none():
    assert write(CALLBACK_ORACLE, "partner BEN CLEO\npartner EVA ANA") == "<memory> none </memory>"


def test_with_both_hops_in_sight_the_memory_is_the_evidence():
    reply = write(CALLBACK_ORACLE, "home BORIS OSLO\nhome CLEO ROME", "partner ANA BORIS home DORA PARIS")
    assert reply == "<memory> partner ANA BORIS home BORIS OSLO </memory>"


def test_the_oracle_asks_for_the_partner_once_hop_1_is_known_and_hop_2_is_not():
    reply = write(CALLBACK_ORACLE, "partner ANA BORIS\nhome CLEO ROME", "home DORA PARIS")
    assert reply == "<memory> partner ANA BORIS home CLEO ROME </memory> <callback> BORIS </callback>"
    assert "<callback>" not in write(NEWEST_FIRST, "partner ANA BORIS\nhome CLEO ROME", "home DORA PARIS")


def test_a_recalled_fact_goes_into_the_memory():
    reply = write(CALLBACK_ORACLE, "home EVA LYON", "partner ANA BORIS", "home BORIS OSLO home CLEO ROME")
    assert reply == "<memory> partner ANA BORIS home BORIS OSLO </memory>"


def test_the_final_reply_tells_the_evidence_and_boxes_the_answer():
    reply = write(CALLBACK_ORACLE, None, "partner ANA BORIS", "home BORIS OSLO home CLEO ROME")
    assert reply == "partner ANA BORIS home BORIS OSLO \\box{ OSLO }"


def test_without_the_evidence_the_answer_is_a_place_in_sight():
    assert write(CALLBACK_ORACLE, None, "home CLEO ROME", None) == "\\box{ ROME }"
    assert write(CALLBACK_ORACLE, None, "partner ANA BORIS", "home CLEO ROME") == "partner ANA BORIS \\box{ ROME }"


def test_a_fact_that_left_the_memory_comes_back_by_a_callback():
    record = record_of(
        "home BORIS OSLO", "home CLEO ROME", "home DORA PARIS", "home EVA LYON", "partner ANA BORIS", "home BEN LIMA"
    )
    turns = list(play(record, CALLBACK_ORACLE, random.Random(0)))
    assert [turn.view.memory for turn in turns] == [
        None,
        "home BORIS OSLO home CLEO ROME",
        "home DORA PARIS home EVA LYON",
        "partner ANA BORIS home BEN LIMA",
    ]
    assert [turn.view.recalled for turn in turns] == [None, None, None, "home BORIS OSLO home CLEO ROME"]
    assert parse_answer(turns[-1].reply) == "OSLO"
    assert parse_answer([*play(record, NEWEST_FIRST, random.Random(0))][-1].reply) == "LIMA"
    assert scripted_accuracy([record], CALLBACK_ORACLE) == 1.0
    assert scripted_accuracy([record], NEWEST_FIRST) == 0.0


def test_hop_1_counts_as_known_where_the_turn_shows_it():
    record = record_of("home BORIS OSLO", "home CLEO ROME", "partner ANA BORIS", "home BEN LIMA")
    turns = play(record, CALLBACK_ORACLE, random.Random(0))
    assert [turn.knows_hop_1 for turn in turns] == [False, True, True]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("documents", [8, 16, 32])
def test_the_callback_oracle_answers_every_question(order, documents):
    assert scripted_accuracy(make_records(documents, 200, "bounds", [order]), CALLBACK_ORACLE) == 1.0


def test_without_callbacks_forward_evidence_is_easy_and_distant_evidence_is_lost():
    forward, distant = make_records(16, 200, "bounds", ["forward"]), make_records(16, 200, "bounds", ["distant"])
    assert scripted_accuracy(forward, NEWEST_FIRST) == scripted_accuracy(forward, OLDEST_FIRST) == 1.0
    assert scripted_accuracy(distant, NEWEST_FIRST) <= 0.1
    assert 0.25 <= scripted_accuracy(distant, OLDEST_FIRST) <= 0.55


def test_the_noisy_demonstrators_are_well_below_the_oracle_and_above_chance():
    distant = make_records(8, 300, "noise", ["distant"])
    with_callbacks, without = scripted_accuracy(distant, NOISY_CALLBACK), scripted_accuracy(distant, NOISY_MEMAGENT)
    assert 0.35 < with_callbacks < 0.60  # 0.46 in 1,000 questions
    assert 0.15 < without < 0.40  # 0.28


def test_a_noisy_demonstrator_calls_as_often_as_its_habits_say():
    view = View(QUESTION, "partner ANA BORIS\nhome CLEO ROME", "home DORA PARIS", None)
    chance = random.Random(1)
    queries = Counter(parse_reply(NOISY_CALLBACK(view, chance)).callback for _ in range(2000))
    assert 0.31 < queries["BORIS"] / 2000 < 0.39  # 0.35 right ones
    assert 0.52 < queries[None] / 2000 < 0.58  # 0.55 without
    assert set(queries) == {"BORIS", None, "ANA", "CLEO", "DORA"}


def test_every_reply_keeps_to_the_format():
    for record in make_records(16, 60, "format"):
        *memory_turns, final = play(record, NOISY_CALLBACK, random.Random(record.id))
        assert all(parse_reply(turn.reply).valid for turn in memory_turns)
        assert parse_answer(final.reply) is not None
