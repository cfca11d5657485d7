"""Built sets as they are read: records by random access, through plain TFDS too, and damage as one line."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from remem_jax.data import load_contexts
from remem_jax.data.built import Contexts, check_built, read_manifest
from remem_jax.data.records import read_records
from remem_jax.data.tables import DocumentTable
from remem_jax.errors import RememError
from tests.data.made_sets import QUESTIONS, SIZES, build_small, question, table_of


@pytest.fixture
def folder(tmp_path):
    """A set of eight questions."""
    build_small(tmp_path)
    return tmp_path / "out"


def test_records_come_back_sorted_by_id_as_they_were_but_with_their_context(tmp_path):
    lines = [question("ü", type=None, level="hard", answers=["Zürich\u2028x"]), question("a", supporting_titles=[])]
    build_small(tmp_path, lines)
    sources = read_records(tmp_path / "questions.jsonl")
    for record, source in zip(load_contexts(tmp_path / "out", 12), reversed(sources), strict=True):
        assert len(record.paragraphs) == 12 and set(source.paragraphs) < set(record.paragraphs)
        for name in ("id", "question", "answers", "supporting_titles", "type", "level"):
            assert getattr(record, name) == getattr(source, name)


def test_a_set_opens_with_plain_tfds_and_gives_the_same_contexts(folder):
    questions, documents = table_of(folder, "questions"), table_of(folder, "documents")
    assert len(questions) == 8
    for size in SIZES:
        for row, record in zip(questions, load_contexts(folder, size), strict=True):
            texts = [documents[i]["text"] for i in row["documents"][row["joined"] < size]]
            assert row["id"] == record.id.encode()
            assert texts == [document.text.encode() for document in record.paragraphs]
            own = [documents[i]["title"].decode() for i in row["own"]]
            assert own == [f"{part} of {record.id}" for part in ("First", "Second", "Third")]


def test_contexts_are_a_sequence_whose_slices_are_views(folder):
    contexts = load_contexts(folder, 7)
    ids = [line["id"] for line in QUESTIONS]
    assert [record.id for record in contexts] == ids and len(contexts) == 8
    assert (contexts[-1].id, contexts[2].id) == ("q7", "q2")
    view = contexts[1:6][::2]
    assert isinstance(view, Contexts) and [record.id for record in view] == ["q1", "q3", "q5"]
    assert view[1] == contexts[3] and contexts[3] in view
    with pytest.raises(IndexError, match="question 3 of 3"):
        view[3]


def test_contexts_may_be_pickled_and_read_by_threads(folder):
    view = load_contexts(folder, 30)[2:]
    once = list(view)
    assert list(pickle.loads(pickle.dumps(view))) == once
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(view.__getitem__, list(range(6)) * 20)) == once * 20


def test_columns_are_stored_in_the_order_of_their_names(folder):
    rows = DocumentTable(folder / "documents", "dev")._rows
    # A name stands behind its length; in every process the same order, which TFDS alone does not give.
    assert all(row.index(b"\x04text") < row.index(b"\x05title") for row in rows)


def test_a_size_that_a_set_lacks_is_an_error_that_names_those_it_has(folder):
    with pytest.raises(RememError, match="no contexts of 8 documents: it has 4, 7, 12, 30"):
        load_contexts(folder, 8)


def test_a_folder_that_is_no_set_or_of_another_format_is_told(folder, tmp_path):
    for wrong in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RememError, match="expected a folder made by `remem data build`"):
            load_contexts(wrong, 4)
    path = folder / "manifest.json"
    whole = path.read_text()
    for broken in (whole[:100], "[]", "{}", json.dumps({"files": {"a": 1}, "documents": [4], "split": "dev"})):
        path.write_text(broken)
        with pytest.raises(RememError, match=r"found none with a readable manifest\.json"):
            load_contexts(folder, 4)
    path.write_text(json.dumps(json.loads(whole) | {"format": 99}))
    with pytest.raises(RememError, match="expected a set of format 1, found 99"):
        load_contexts(folder, 4)


def test_a_missing_or_shortened_file_is_found_when_a_set_is_opened(folder):
    file = next((folder / "documents").glob("*array_record*"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(RememError, match=f"expected {len(whole)} bytes, found {len(whole) - 1}: build the set again"):
        load_contexts(folder, 4)
    file.unlink()
    with pytest.raises(RememError, match=f"expected {len(whole)} bytes, found none"):
        read_manifest(folder)


def test_changed_bytes_are_found_by_a_check_and_told_in_one_line_when_they_cannot_be_read(folder):
    assert check_built(folder) == read_manifest(folder)
    file = next((folder / "questions").glob("*array_record*"))
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(RememError, match="its bytes are not those that were written"):
        check_built(folder)
    file.write_bytes(bytes(len(whole)))
    with pytest.raises(RememError, match=r"question 0 cannot be read \(.*see `remem data check`") as raised:
        load_contexts(folder, 4)[0]
    assert "\n" not in str(raised.value)
