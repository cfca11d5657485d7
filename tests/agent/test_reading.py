"""What the loop is given to read: chunks, the budget of a prompt, what is cut, and paragraphs picked for a question.

Axes: `T` chunks.
"""

import dataclasses

import numpy as np
import pytest

from remem_jax.agent.prompts import encode_blocks, load_prompts, prompt_parts
from remem_jax.agent.reading import (
    Reading,
    check_budget,
    chunk_ids,
    cut_middle,
    encode_documents,
    fit_lengths,
    pad_chunks,
    prepare,
)
from remem_jax.config import AgentConfig
from remem_jax.data.documents import Document
from remem_jax.errors import RememError
from remem_jax.testing import SPECIAL, DummyTokenizer

TOKENIZER = DummyTokenizer()
HEADING = "Document 1:\nt\n"  # 14 tokens, one a byte
AMPLE = 100_000


def of_length(tokens: int) -> list[Document]:
    """One document of that many tokens, rendered."""
    return [Document("t", "x" * (tokens - len(HEADING)))] if tokens else []


def read(config: AgentConfig, documents, question="Who?", context=AMPLE):
    blocks = encode_blocks(load_prompts(), TOKENIZER, config.agent, config.tags)
    return prepare(TOKENIZER, config, blocks, context, [("id", question)], documents)[0]


def text_of(reading) -> str:
    return TOKENIZER.decode(np.concatenate(reading.chunks).tolist())


@pytest.mark.parametrize(("tokens", "lengths"), [(0, []), (5000, [5000]), (5001, [5000, 1]), (10001, [5000, 5000, 1])])
def test_a_document_becomes_as_many_chunks_as_it_takes_and_none_when_it_is_empty(tokens, lengths):
    reading = read(AgentConfig(chunk_tokens=5000), of_length(tokens))
    assert [len(chunk) for chunk in reading.chunks] == lengths
    assert (reading.document_tokens, reading.cut_tokens) == (tokens, 0)
    assert (reading.id, reading.question, bytes(reading.question_ids)) == ("id", "Who?", b"Who?")


def test_chunks_in_order_hold_every_token_of_the_document_once():
    ids = np.arange(23, dtype=np.int32)
    np.testing.assert_array_equal(np.concatenate(chunk_ids(ids, 5)), ids)


def test_a_document_without_text_is_read_in_zero_turns():
    assert read(AgentConfig(), [Document("title alone", "\n  \n")]).chunks == ()


def test_a_limit_on_chunks_reports_the_tokens_it_cut():
    reading = read(AgentConfig(chunk_tokens=100, max_chunks=2), of_length(250))
    assert [len(chunk) for chunk in reading.chunks] == [100, 100]
    assert (reading.document_tokens, reading.cut_tokens) == (250, 50)
    within = read(AgentConfig(chunk_tokens=100, max_chunks=3), of_length(250))
    assert (len(within.chunks), within.cut_tokens) == (3, 0)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [(0, []), (1, [0]), (2, [0, 6]), (3, [0, 1, 6]), (6, [0, 1, 2, 4, 5, 6]), (7, list(range(7))), (9, list(range(7)))],
)
def test_the_middle_is_cut_and_the_odd_token_goes_to_the_head(limit, kept):
    assert cut_middle(np.arange(7), limit).tolist() == kept


def test_several_questions_share_one_tokenised_document():
    config = AgentConfig()
    blocks = encode_blocks(load_prompts(), TOKENIZER, config.agent, config.tags)
    asked = [("a", "One?"), ("b", "Two?")]
    first, second = prepare(TOKENIZER, config, blocks, AMPLE, asked, of_length(40))
    assert (first.id, second.id, second.question) == ("a", "b", "Two?")
    assert np.shares_memory(first.chunks[0], second.chunks[0])


@pytest.mark.parametrize("question", ["", " \n\t"])
def test_a_blank_question_is_refused(question):
    with pytest.raises(RememError, match=r"^the question is empty: give a question"):
        read(AgentConfig(), [], question)


def test_no_question_is_refused():
    blocks = encode_blocks(load_prompts(), TOKENIZER, "rememr1", AgentConfig().tags)
    with pytest.raises(RememError, match="at least one question"):
        prepare(TOKENIZER, AgentConfig(), blocks, AMPLE, [], [])


def test_a_question_longer_than_its_limit_is_refused_with_both_numbers():
    message = (
        "^the question has 5 tokens, expected at most question_tokens = 4: "
        "shorten it, or raise question_tokens, a setting of the agent$"
    )
    with pytest.raises(RememError, match=message):
        read(AgentConfig(question_tokens=4), [], "12345")
    assert read(AgentConfig(question_tokens=5), [], "12345").question_ids == (49, 50, 51, 52, 53)


SHORT = dict.fromkeys(("rules", "rules_callback", "final_rules", "document_rules"), "") | {
    "question": "{question}",
    "chunk": "{chunk}",
    "recalled": "{recalled}",
    "memory": "{memory}",
    "document": "{document}",
    "cue": "Write.",
    "final_cue": "Answer.",
    "no_memory": "none",
    "no_recall": "no",
}
CONFIG = AgentConfig(chunk_tokens=100, memory_tokens=20, max_reply_tokens=30, prompts=SHORT)


def blocks_of(config: AgentConfig):
    return encode_blocks(load_prompts(config.prompts), TOKENIZER, config.agent, config.tags)


# Constants: chat head 2 and tail 2, a blank line (2) after each block but the cue, which has 6 or 7 tokens.
# A memory turn has question, recalled, memory, chunk: 4 + 8 + 6 = 18; the final turn 4 + 6 + 7 = 17.
@pytest.mark.parametrize(
    ("agent", "spelled", "total", "advice"),
    [
        (
            "rememr1",
            "question 10 + reply 30 + prompt text 18 + chunk 100 + memory 20 + recalled memory 20",
            198,
            "chunk_tokens, memory_tokens or max_reply_tokens",
        ),
        (
            "memagent",  # without the recalled block
            "question 10 + reply 30 + prompt text 16 + chunk 100 + memory 20",
            176,
            "chunk_tokens, memory_tokens or max_reply_tokens",
        ),
        ("full_context", "question 10 + reply 30 + prompt text 15", 55, "max_reply_tokens"),
    ],
)
def test_a_budget_over_the_context_is_refused_with_the_sum_spelled_out(agent, spelled, total, advice):
    config = dataclasses.replace(CONFIG, agent=agent)
    blocks = blocks_of(config)
    context = total - 1
    with pytest.raises(RememError) as error:
        check_budget(config, blocks, context, 10)
    assert str(error.value) == f"{spelled} = {total} tokens do not fit the model's context of {context}: lower {advice}"
    assert check_budget(config, blocks, total + 5, 10) == 5


def test_the_budget_counts_the_longer_of_memory_and_placeholder():
    config = dataclasses.replace(CONFIG, memory_tokens=3)
    assert check_budget(config, blocks_of(config), 1000, 10) == 1000 - (10 + 30 + 18 + 100 + 4 + 3)


@pytest.mark.parametrize("agent", ["rememr1", "memagent", "rule_callback"])
def test_the_longest_possible_prompt_with_its_reply_just_fits_the_budget(agent):
    config = dataclasses.replace(CONFIG, agent=agent)
    blocks = blocks_of(config)
    longest = {"question": 10, "chunk": 100, "memory": 20, "recalled": 20}
    tokens = max(
        sum(longest[s] if isinstance(s, str) else len(s) for part in parts for s in part)
        for parts in (prompt_parts(blocks, agent, "section_first", final) for final in (False, True))
    )
    assert check_budget(config, blocks, AMPLE, 10) == AMPLE - tokens - 30


def test_lengths_are_halved_together_until_they_fit_and_named_ones_stay():
    config = AgentConfig(prompts=SHORT, chunk_tokens=4000, memory_tokens=800, max_reply_tokens=800)
    blocks = blocks_of(config)
    asis, note = fit_lengths(config, blocks, AMPLE)
    assert (asis, note) == (config, "")
    # 256 + 18 + 4000 + 3 * 800 = 6674; halved once 3474; twice 1874.
    fitted, note = fit_lengths(config, blocks, 3474)
    assert (fitted.chunk_tokens, fitted.memory_tokens, fitted.max_reply_tokens) == (2000, 400, 400)
    assert note == (
        "lengths fitted to the model's context of 3474: chunk_tokens 2000, memory_tokens 400, max_reply_tokens 400"
    )
    assert fit_lengths(config, blocks, 3473)[0].chunk_tokens == 1000
    kept, _ = fit_lengths(config, blocks, 3474, keep={"memory_tokens"})  # 274 + chunk + reply + 1600
    assert (kept.chunk_tokens, kept.memory_tokens, kept.max_reply_tokens) == (1000, 800, 200)
    assert fit_lengths(config, blocks, 300) == (config, "")


def test_full_context_is_one_chunk_cut_in_the_middle_to_the_room_that_is_left():
    config = dataclasses.replace(CONFIG, agent="full_context")
    blocks = blocks_of(config)
    room = 50
    context = 4 + 30 + 15 + room  # question, reply, prompt text
    document = [Document("t", "".join(chr(97 + i % 26) for i in range(86)))]  # 100 tokens
    (reading,) = prepare(TOKENIZER, config, blocks, context, [("id", "Who?")], document)
    whole = encode_documents(TOKENIZER, document)
    assert [len(chunk) for chunk in reading.chunks] == [room]
    np.testing.assert_array_equal(reading.chunks[0], np.concatenate([whole[:25], whole[-25:]]))
    assert (reading.document_tokens, reading.cut_tokens) == (100, 50)
    (uncut,) = prepare(TOKENIZER, config, blocks, context + 50, [("id", "Who?")], document)
    assert (len(uncut.chunks[0]), uncut.cut_tokens) == (100, 0)


def test_full_context_of_an_empty_document_has_no_chunk():
    assert read(AgentConfig(agent="full_context"), []).chunks == ()


PARAGRAPHS = [
    Document("Harbor", "Dune Harbor is a film.\n\nIt was shown in spring."),
    Document("Weather", "Rain in Oslo."),
    Document("Lind", "Ada Lind directed Dune Harbor, a film."),
]


@pytest.mark.parametrize(
    ("paragraphs", "expected"),
    [
        (1, "Document 1:\nLind\nAda Lind directed Dune Harbor, a film."),
        (
            2,
            "Document 1:\nHarbor\nDune Harbor is a film.\n\nDocument 2:\nLind\nAda Lind directed Dune Harbor, a film.",
        ),
    ],
)
def test_retrieval_shows_the_paragraphs_with_the_highest_recall_in_document_order(paragraphs, expected):
    # Words of the question found: "Dune Harbor is a film" 3 of 5 (dune, harbor, film), "spring" 1 (its title, harbor),
    # "Oslo" 0, "Ada Lind directed ..." 4 of 5.
    config = AgentConfig(agent="retrieval", retrieval_paragraphs=paragraphs)
    reading = read(config, PARAGRAPHS, "Who directed film Dune Harbor?")
    assert text_of(reading) == expected and len(reading.chunks) == 1
    assert reading.document_tokens == len(encode_documents(TOKENIZER, PARAGRAPHS)) and reading.cut_tokens == 0


def test_of_paragraphs_with_equal_recall_the_first_is_shown():
    twins = [Document("a", "rain"), Document("b", "film"), Document("c", "film")]
    reading = read(AgentConfig(agent="retrieval", retrieval_paragraphs=1), twins, "film?")
    assert text_of(reading) == "Document 1:\nb\nfilm"


def test_retrieval_counts_a_title_as_part_of_its_paragraph():
    documents = [Document("Rain", "Oslo."), Document("Film", "Visby.")]
    reading = read(AgentConfig(agent="retrieval", retrieval_paragraphs=1), documents, "Which film?")
    assert text_of(reading) == "Document 1:\nFilm\nVisby."


def test_retrieved_paragraphs_that_do_not_fit_are_cut_in_the_middle_and_the_cut_is_reported():
    config = dataclasses.replace(CONFIG, agent="retrieval", retrieval_paragraphs=1)
    room = 20
    context = 30 + 30 + 15 + room
    (reading,) = prepare(
        TOKENIZER, config, blocks_of(config), context, [("id", "Who directed film Dune Harbor?")], PARAGRAPHS
    )
    shown = "Document 1:\nLind\nAda Lind directed Dune Harbor, a film."
    assert text_of(reading) == shown[:10] + shown[-10:] and reading.cut_tokens == len(shown) - 20


@pytest.mark.parametrize("agent", ["rememr1", "full_context", "retrieval"])
def test_special_strings_in_question_and_documents_stay_text(agent):
    hostile = "".join(SPECIAL)
    reading = read(AgentConfig(agent=agent), [Document(hostile, hostile)], hostile)
    ids = {*reading.question_ids, *np.concatenate(reading.chunks).tolist()}
    assert ids and not ids & DummyTokenizer.special_ids
    assert text_of(reading) == f"Document 1:\n{hostile}\n{hostile}"


def test_chunks_of_several_questions_are_padded_to_one_array_of_the_size_asked_for():
    chunks = [(np.array([5, 6, 7]), np.array([8])), (), (np.array([9, 9]),)]
    readings = [Reading(str(i), "", (), of_question, 0) for i, of_question in enumerate(chunks)]
    ids, lengths = pad_chunks(readings, lambda longest: longest + 1)
    assert ids.tolist() == [[[5, 6, 7, 0], [8, 0, 0, 0]], [[0] * 4, [0] * 4], [[9, 9, 0, 0], [0] * 4]]
    assert lengths.tolist() == [[3, 1], [0, 0], [2, 0]]
    ids, lengths = pad_chunks(readings[1:2], lambda longest: max(longest, 1))
    assert (ids.tolist(), lengths.tolist()) == ([[[0]]], [[0]])
