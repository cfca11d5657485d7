"""Reading questions: METHOD 9 field by field, and the real files."""

import json

import pytest

from remem_jax.data.documents import Document
from remem_jax.data.records import Record, read_records
from remem_jax.errors import RememError

GOOD = {
    "id": "q1",
    "question": "Who?",
    "answers": ["Ann", "Anna"],
    "supporting_titles": ["A"],
    "paragraphs": [{"title": "A", "text": "a"}],
    "type": "bridge",
    "level": None,
    "setting": "distractor",
}


def write(folder, *objects):
    (folder / "r.jsonl").write_text("".join(json.dumps(o) + "\n" for o in objects))
    return folder / "r.jsonl"


def test_a_record_is_read_as_it_is_written(tmp_path):
    expected = Record("q1", "Who?", ("Ann", "Anna"), ("A",), (Document("A", "a"),), "bridge", None)
    assert read_records(write(tmp_path, GOOD)) == [expected]


def test_gold_answers_given_as_one_bare_string_are_one_answer(tmp_path):
    assert read_records(write(tmp_path, GOOD | {"answers": "Ann Lee"}))[0].answers == ("Ann Lee",)


def test_type_and_level_may_be_absent(tmp_path):
    short = {k: v for k, v in GOOD.items() if k not in ("type", "level")}
    assert (read_records(write(tmp_path, short))[0].type, read_records(write(tmp_path, short))[0].level) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 3}, "line 2: field 'id' must be a string, found a number"),
        ({"id": ""}, "line 2: field 'id' must not be blank"),
        ({"question": " "}, "line 2: field 'question' must not be blank"),
        ({"answers": []}, "line 2: field 'answers' must hold at least one answer"),
        ({"answers": ""}, "line 2: field 'answers' must not be blank"),
        ({"answers": ["a", None]}, r"line 2: field 'answers\[1\]' must be a string, found null"),
        ({"answers": {}}, "line 2: field 'answers' must be a list, found an object"),
        ({"supporting_titles": "A"}, "line 2: field 'supporting_titles' must be a list, found a string"),
        (
            {"supporting_titles": [True]},
            r"line 2: field 'supporting_titles\[0\]' must be a string, found true or false",
        ),
        ({"paragraphs": None}, "line 2: field 'paragraphs' must be a list, found null"),
        ({"paragraphs": [{"text": "x"}]}, r"line 2: paragraphs\[0\]: field 'title' is missing"),
        ({"type": 1}, "line 2: field 'type' must be a string"),
        ({"id": "q0"}, r"line 2: field 'id' is 'q0' again, first at .*r.jsonl line 1"),
    ],
)
def test_a_bad_field_is_refused_with_file_line_and_field(tmp_path, change, message):
    path = write(tmp_path, GOOD | {"id": "q0"}, GOOD | change)
    with pytest.raises(RememError, match=rf"^{path} {message}"):
        read_records(path)


@pytest.mark.parametrize("name", ["id", "question", "answers", "supporting_titles", "paragraphs"])
def test_a_missing_field_is_refused(tmp_path, name):
    path = write(tmp_path, {k: v for k, v in GOOD.items() if k != name})
    with pytest.raises(RememError, match=f"line 1: field '{name}'"):
        read_records(path)


def test_a_file_without_a_question_is_refused(tmp_path):
    with pytest.raises(RememError, match="expected one question a line, found none"):
        read_records(write(tmp_path))


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("hotpotqa_dev", 357),
        ("hotpotqa_train", 100),
        ("2wikimultihopqa_dev", 329),
        ("2wikimultihopqa_train", 250),
        ("musique_dev", 100),
        ("musique_train", 50),
    ],
)
def test_the_real_questions_are_read_whole(data_dir, name, count):
    records = read_records(data_dir / f"{name}_sample.jsonl")
    assert len(records) == count
    assert all(set(r.supporting_titles) <= {p.title for p in r.paragraphs} for r in records)
