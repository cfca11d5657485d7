"""Relay questions: evidence where the order says, one answer, distractors that mislead but never answer."""

import pytest

from remem_jax.data.relay_task import (
    ORDERS,
    PERSONS,
    PLACES,
    WORDS,
    agent_settings,
    facts_of,
    make_record,
    make_records,
)
from remem_jax.errors import RememError

RECORDS = [record for n in (4, 8, 9, 32) for record in make_records(n, 60, "task-test")]


def hop_places(record):
    """Indices of hop 1 and hop 2 among the documents, found by the titles of the evidence."""
    titles = [paragraph.title for paragraph in record.paragraphs]
    return tuple(titles.index(title) for title in record.supporting_titles)


def facts(record):
    return [tuple(paragraph.text.split()) for paragraph in record.paragraphs]


def test_a_question_leads_over_two_facts_to_its_answer():
    for record in RECORDS:
        first, second = (facts(record)[place] for place in hop_places(record))
        asked = record.question.split()[-1]
        assert record.question == f"home_of partner_of {asked}"
        assert first[:2] == ("partner", asked)
        assert second[:2] == ("home", first[2])
        assert record.answers == (second[2],)


def test_only_the_evidence_answers():
    for record in RECORDS:
        first, second = hop_places(record)
        all_facts = facts(record)
        asked, partner, answer = all_facts[first][1], all_facts[first][2], all_facts[second][2]
        others = [fact for i, fact in enumerate(all_facts) if i not in (first, second)]
        assert all(fact[1] != asked for fact in others if fact[0] == "partner")
        assert all(fact[1] != partner and fact[2] != answer for fact in others if fact[0] == "home")
        subjects = [fact[:2] for fact in all_facts]
        assert len(set(subjects)) == len(subjects)  # no person has two homes or two partners


def test_the_order_says_where_the_evidence_stands():
    for record in RECORDS:
        first, second = hop_places(record)
        documents = len(record.paragraphs)
        assert (first < second) == (record.type == "forward")
        if record.type == "distant":
            assert first - second > documents / 2


def test_the_early_hop_of_distant_evidence_is_as_often_at_each_place_that_leaves_the_gap():
    places = [hop_places(make_record("distant", 8, i))[1] for i in range(600)]
    counts = [places.count(place) for place in range(8)]
    assert all(150 < count < 250 for count in counts[:3])  # 200 expected of 600 at 0, 1, 2; standard deviation 12
    assert counts[3:] == [0] * 5


def test_seven_tenths_of_the_facts_are_homes():
    for documents, homes in ((4, 3), (8, 6), (16, 11), (32, 22)):
        for record in make_records(documents, 6, "share"):
            assert sum(fact[0] == "home" for fact in facts(record)) == homes


def test_some_distractors_name_the_partner_or_the_asked_person_as_a_partner_of_another():
    misleading = 0
    for record in make_records(32, 60, "hard"):
        first, _ = hop_places(record)
        pair = facts(record)[first][1:]
        others = [fact for i, fact in enumerate(facts(record)) if fact[0] == "partner" and i != first]
        misleading += any(fact[2] in pair for fact in others)
    assert 5 <= misleading <= 40  # 9 facts, 2 of 47 persons each: 19 of 60 expected


def test_equal_arguments_give_equal_records_and_other_seeds_other_ones():
    assert make_record("reverse", 8, "a-3") == make_record("reverse", 8, "a-3")
    assert make_record("reverse", 8, "a-3").paragraphs != make_record("reverse", 8, "a-4").paragraphs
    assert len({record.id for record in RECORDS}) == len(RECORDS)


def test_the_orders_take_turns():
    assert [record.type for record in make_records(8, 4, 0)] == ["forward", "reverse", "distant", "forward"]
    assert {record.type for record in make_records(8, 4, 0, ["reverse"])} == {"reverse"}


def test_sixty_four_documents_repeat_places_only_after_all_had_their_turn():
    homes = [fact[2] for fact in facts(make_record("forward", 64, 0)) if fact[0] == "home"]
    counts = [homes.count(place) for place in PLACES]
    assert len(homes) == 45 and max(counts) == 2 and min(counts) >= 1


def test_facts_of_a_text_are_its_whole_facts_each_once():
    text = "home ANA OSLO partner ANA home ANA OSLO partner BEN CLEO home BEN CLEO LIMA"
    assert facts_of(text) == [("home", "ANA", "OSLO"), ("partner", "BEN", "CLEO")]
    assert facts_of(None) == facts_of("none") == []


def test_words_are_distinct_and_an_answer_is_never_a_person():
    assert len(set(WORDS)) == len(WORDS)
    assert (len(PERSONS), len(PLACES), len(set(PERSONS) & set(PLACES))) == (48, 32, 0)


def test_settings_of_both_agents_hold_two_facts_in_a_chunk_and_in_a_memory():
    for agent in ("rememr1", "memagent"):
        settings = agent_settings(agent)
        assert settings.agent == agent
        assert (settings.chunk_tokens, settings.memory_tokens, settings.prompt_order) == (6, 6, "question_last")


def test_an_unknown_order_and_too_few_documents_are_refused():
    with pytest.raises(RememError, match="order must be one of forward, reverse, distant, found 'random'"):
        make_record("random", 8, 0)
    with pytest.raises(RememError, match="at least 4 documents, found 3"):
        make_record(ORDERS[0], 3, 0)
