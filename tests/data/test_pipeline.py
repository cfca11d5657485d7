"""Batches of questions: each epoch holds every one once, and a position is all that is needed to go on."""

import json

import pytest

from remem_jax.agent.prompts import encode_blocks, load_prompts
from remem_jax.config import AgentConfig
from remem_jax.data.documents import Document
from remem_jax.data.pipeline import Batches, make_example, open_records
from remem_jax.data.records import Record
from remem_jax.errors import RememError
from remem_jax.testing import DummyTokenizer

TOKENIZER = DummyTokenizer()


def stream(seed: int, batches: int = 14) -> list[list[str]]:
    found = Batches("abcdefg", 3, seed, str.upper)
    return [found[i] for i in range(batches)]


def test_every_epoch_holds_each_element_once_in_an_order_of_its_own():
    flat = [element for batch in stream(seed=0) for element in batch]
    epochs = ["".join(flat[i : i + 7]) for i in range(0, 42, 7)]
    assert all(sorted(epoch) == list("ABCDEFG") for epoch in epochs)
    assert len(set(epochs)) > 3 and "ABCDEFG" not in epochs


def test_a_batch_is_a_function_of_seed_and_position_alone():
    in_order = stream(seed=3)
    fresh = Batches("abcdefg", 3, 3, str.upper)
    assert [fresh[i] for i in (13, 2, 7, 2)] == [in_order[i] for i in (13, 2, 7, 2)]
    assert stream(seed=3) == in_order != stream(seed=4)


def test_elements_are_made_when_they_are_read_and_not_before():
    made = []
    batches = Batches(range(6), 2, 0, made.append)
    assert made == []
    assert batches[4] == [None, None] and len(made) >= 2


def test_several_workers_make_the_same_batches():
    alone, several = Batches(range(50), 5, 7, str), Batches(range(50), 5, 7, str, workers=4)
    assert [several[i] for i in (0, 1, 2, 9, 3)] == [alone[i] for i in (0, 1, 2, 9, 3)]


def test_processes_have_parts_of_the_batch_that_one_process_has():
    whole = Batches(range(20), 6, 1, str)
    parts = [Batches(range(20), 6, 1, str, shard=(p, 3)) for p in range(3)]
    for batch in (0, 1, 5, 2):
        assert [element for part in parts for element in part[batch]] == whole[batch]
    with pytest.raises(RememError, match=r"^a batch of 6 cannot be divided among 4 processes: take a multiple$"):
        Batches(range(20), 6, 1, str, shard=(0, 4))


def test_batches_of_like_lengths_hold_every_element_of_an_epoch_once_and_come_in_no_order_of_length():
    lengths = [(7 * i) % 24 for i in range(24)]
    batches = Batches(range(24), 4, 0, lambda i: i, lengths=lengths, window=6)
    epochs = [[batches[6 * epoch + i] for i in range(6)] for epoch in range(3)]
    for epoch in epochs:
        assert sorted(element for batch in epoch for element in batch) == list(range(24))
        means = []
        for batch in epoch:
            found = sorted(lengths[i] for i in batch)
            assert found == list(range(found[0], found[0] + 4)) and found[0] % 4 == 0  # neighbours by length
            means.append(found[0])
        assert means != sorted(means)
    assert Batches(range(24), 4, 0, lambda i: i, lengths=lengths, window=6)[13] == epochs[2][1]


def test_a_file_of_records_opens_without_and_only_without_a_number_of_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    line = {"id": "q", "question": "Who?", "answers": ["Ann"], "supporting_titles": [], "paragraphs": []}
    path.write_text(json.dumps(line) + "\n")
    assert [record.id for record in open_records(path)] == ["q"]
    with pytest.raises(RememError, match=r"^documents: expected none with .*, found 50: leave it out"):
        open_records(path, 50)
    with pytest.raises(RememError, match=r"b: no such file or folder: check the path$"):
        open_records(tmp_path / "b", 50)
    with pytest.raises(RememError, match="expected how many documents a context should have"):
        open_records(tmp_path)


def test_less_data_than_a_batch_is_refused_with_both_numbers():
    assert len(Batches("abc", 3, 0, str)[0]) == 3
    with pytest.raises(RememError, match=r"^data.train: expected at least 4 lines, the size of a batch, found 3$"):
        Batches("abc", 4, 0, str)


def example(record: Record, context: int):
    config = AgentConfig(chunk_tokens=8, memory_tokens=4, max_reply_tokens=4, question_tokens=16)
    blocks = encode_blocks(load_prompts(), TOKENIZER, config.agent, config.tags)
    return make_example(record, TOKENIZER, config, blocks, context)


def test_an_example_is_the_record_with_its_documents_in_chunks():
    record = Record("q7", "Who wrote?", ("Ada",), ("T",), (Document("T", "Ada wrote."),))
    made = example(record, 8192)
    text = "Document 1:\nT\nAda wrote.\n"
    assert made.record is record and made.reading.id == "q7"
    assert [len(chunk) for chunk in made.reading.chunks[:-1]] == [8] * (len(made.reading.chunks) - 1)
    assert TOKENIZER.decode([int(i) for chunk in made.reading.chunks for i in chunk]).strip() == text.strip()


def test_lengths_that_do_not_fit_name_the_question():
    record = Record("q7", "Who wrote?", ("Ada",), (), (Document("T", "Ada wrote."),))
    with pytest.raises(RememError, match=r"^question q7: .*") as error:
        example(record, 64)
    assert "\n" not in str(error.value)
