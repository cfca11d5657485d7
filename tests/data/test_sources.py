"""Published question files: each form by hand, every fault by file, place and field, and the real questions."""

import gzip
import html
import json
import re
import unicodedata

import pyarrow
import pytest
from pyarrow import parquet

from remem_jax.data.documents import Document, render_documents
from remem_jax.data.records import Record, read_records
from remem_jax.data.source_files import source_items
from remem_jax.data.sources import KINDS, clean_text, join_sentences, read_source, split_documents
from remem_jax.errors import RememError

HOTPOT = {
    "_id": "5a8b",
    "question": "Which  magazine&#39;s first?",
    "answer": "Arthur&amp;Co",
    "supporting_facts": [["B &amp; C", 0], ["A", 1], ["B &amp; C", 1]],
    "context": [["A", ["A one.", " A two.\n"]], ["B &amp; C", ["Cafe\u0301\u200b.", "B\t\ttwo. "]], ["Empty", [" "]]],
    "type": "comparison",
    "level": "medium",
}
HOTPOT_RECORD = Record(
    "5a8b",
    "Which magazine's first?",
    ("Arthur&Co",),
    ("B & C", "A"),
    (Document("A", "A one. A two."), Document("B & C", "Café. B two.")),
    "comparison",
    "medium",
)
WIKI = {k: v for k, v in HOTPOT.items() if k != "level"} | {"evidences": [["A", "by", "B"]], "evidences_id": []}
MUSIQUE = {
    "id": "3hop1__1_2_3",
    "question": "Where?",
    "answer": "New York",
    "answer_aliases": ["NYC", "New York"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Same", "paragraph_text": "s  0", "is_supporting": True},
        {"idx": 1, "title": "Same", "paragraph_text": "s1", "is_supporting": False},
        {"idx": 2, "title": "Last", "paragraph_text": "l2", "is_supporting": True},
        {"idx": 3, "title": "First", "paragraph_text": "f3", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "a", "answer": "b", "paragraph_support_idx": 3},
        {"id": 2, "question": "a", "answer": "b", "paragraph_support_idx": 0},
        {"id": 3, "question": "a", "answer": "b", "paragraph_support_idx": None},
    ],
}
CONTEXT = "Document 1:\nA\nOne.\n\nDocument 7:\nnot a head\n\nDocument 2:\nB\nTwo."
MEMAGENT = {"context": CONTEXT, "input": "Who?", "answers": ["Ann"], "num_docs": 2, "index": 41}
OWN = {
    "id": "q",
    "question": "Who?",
    "answers": ["Ann"],
    "supporting_titles": ["A"],
    "paragraphs": [{"title": "A", "text": "two  spaces"}],
}

GONE = object()


def lines(folder, *values, name="f.jsonl"):
    (folder / name).write_text("".join(json.dumps(v) + "\n" for v in values))
    return folder / name


def listed(folder, *values, name="f.json"):
    (folder / name).write_text(json.dumps(values, indent=1))
    return folder / name


def table(folder, *values, name="f.parquet"):
    parquet.write_table(pyarrow.Table.from_pylist(list(values)), folder / name)
    return folder / name


def only(path, **options):
    source = read_source(path, **options)
    assert len(source.records) == 1 and source.skipped == []
    return source.records[0]


def without(value, *names):
    return {k: v for k, v in value.items() if k not in names}


def test_a_hotpotqa_list_is_read_with_its_text_cleaned_and_evidence_in_the_source_order(tmp_path):
    source = read_source(listed(tmp_path, HOTPOT))
    assert (source.records, source.kind, source.skipped) == ([HOTPOT_RECORD], "hotpotqa", [])


def test_2wikimultihopqa_is_told_by_its_evidences_and_read_as_a_list_or_as_lines(tmp_path):
    for path in (listed(tmp_path, WIKI), lines(tmp_path, WIKI)):
        source = read_source(path)
        assert source.kind == "2wikimultihopqa"
        assert source.records[0].level is None and source.records[0].supporting_titles == ("B & C", "A")


@pytest.mark.parametrize("as_text", [False, True])
def test_parquet_copies_by_columns_or_with_json_text_give_the_same_record(tmp_path, as_text):
    context = {"title": [t for t, _ in HOTPOT["context"]], "sentences": [s for _, s in HOTPOT["context"]]}
    facts = {"title": [t for t, _ in HOTPOT["supporting_facts"]], "sent_id": [0, 1, 1]}
    value = without(HOTPOT, "_id") | {"id": "5a8b", "context": context, "supporting_facts": facts}
    if as_text:
        value |= {name: json.dumps(HOTPOT[name]) for name in ("context", "supporting_facts")}
    assert only(table(tmp_path, value)) == HOTPOT_RECORD


def test_sentences_are_joined_by_one_space_where_the_source_has_none():
    assert join_sentences(["A.", "B.", " C.", "D. ", "E"]) == "A. B. C. D. E"
    assert join_sentences(["", "A.\u00a0", "B", ""]) == "A.\u00a0B"


def test_text_is_unescaped_once_stripped_of_what_shows_nothing_and_folded_but_keeps_spaces_of_their_own_width():
    found = clean_text("\ufeff a\u00adb\u200b\u200ec \t d\r\ne\u2028f\u00a0 \u2009g &amp;lt; e\u0301\u202a\u2069 ")
    assert found == "abc d e f\u00a0 \u2009g &lt; \u00e9"


def test_musique_evidence_follows_the_decomposition_then_the_marks_and_aliases_are_answers(tmp_path):
    source = read_source(lines(tmp_path, MUSIQUE))
    assert source.kind == "musique"
    record = source.records[0]
    assert record.supporting_titles == ("First", "Same", "Last")
    assert record.answers == ("New York", "NYC")
    assert (record.type, record.level) == ("3hop1", None)
    assert record.paragraphs[0] == Document("Same", "s 0") and len(record.paragraphs) == 4


def test_an_unanswerable_musique_twin_stops_or_is_listed_and_does_not_count_as_a_second_id(tmp_path):
    path = lines(tmp_path, MUSIQUE | {"answerable": False}, MUSIQUE, MUSIQUE | {"answerable": False})
    with pytest.raises(RememError, match=rf"^{path} line 1: field 'answerable' is false"):
        read_source(path)
    source = read_source(path, on_error="skip")
    assert [r.id for r in source.records] == ["3hop1__1_2_3"]
    assert [line.split(": field")[0] for line in source.skipped] == [f"{path} line 1", f"{path} line 3"]


def test_memagent_json_is_read_by_documents_without_evidence(tmp_path):
    source = read_source(listed(tmp_path, MEMAGENT))
    documents = (Document("A", "One.\n\nDocument 7:\nnot a head"), Document("B", "Two."))
    assert source.records == [Record("41", "Who?", ("Ann",), (), documents)]
    assert source.kind == "memagent"


def test_memagent_parquet_has_a_chat_for_a_prompt_and_its_gold_under_reward_model(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    row = {
        "data_source": "hotpotqa",
        "prompt": chat,
        "context": CONTEXT,
        "reward_model": {"style": "rule", "ground_truth": ["Ann", "Anna", "Ann"]},
        "extra_info": {"index": 7, "num_docs": 2},
    }
    later = row | {"prompt": chat[1:], "extra_info": {"index": None, "num_docs": 2}}
    records = read_source(table(tmp_path, row, later)).records
    assert [r.id for r in records] == ["7", "1"]
    assert {r.question for r in records} == {"Who?"} and records[0].answers == ("Ann", "Anna")


@pytest.mark.parametrize(
    ("change", "question", "answers"),
    [
        ({"input": None, "prompt": "How?"}, "How?", ("Ann",)),
        ({"input": None, "prompt": "x", "extra_info": {"question": "Why?"}}, "Why?", ("Ann",)),
        ({"input": None, "question": "When?", "solution": "Bob", "answers": None}, "When?", ("Bob",)),
        ({"answers": "Ann Lee"}, "Who?", ("Ann Lee",)),
        ({"answers": None, "reward_model": {"ground_truth": "Eve"}}, "Who?", ("Eve",)),
    ],
)
def test_memagent_question_and_answers_are_found_in_the_fields_seen_in_the_wild(tmp_path, change, question, answers):
    record = only(listed(tmp_path, MEMAGENT | change))
    assert (record.question, record.answers) == (question, answers)


@pytest.mark.parametrize(
    "text",
    [
        CONTEXT,
        "Document 1:\n\nno title",
        "Document 1:\nA\na\n\nb\n\nDocument 2:\nB\n b \n\nDocument 3:\nC\nDocument 4:\nc",
        "Document 1:\nA\nquotes\n\nDocument 2:\nB\na head of its own\n\nDocument 2:\nC\nc",
    ],
)
def test_rendering_the_split_documents_gives_the_text_again(text):
    assert render_documents(split_documents(text)) == text


def test_a_document_without_text_keeps_its_place_and_a_text_without_heads_is_one_paragraph():
    found = split_documents("Document 1:\nA\n\n\nDocument 2:\nB\nb\n\nDocument 3:\nC")
    assert found == (Document("A", ""), Document("B", "b"), Document("C", ""))
    assert split_documents("An essay.\n\nDocument 1:\nx\ny") == (Document("", "An essay.\n\nDocument 1:\nx\ny"),)


def test_our_own_lines_are_read_as_they_are_also_gzipped(tmp_path):
    path = lines(tmp_path, OWN)
    assert read_source(path).records == read_records(path)
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    source = read_source(tmp_path / "g.jsonl.gz")
    assert source.kind == "records" and source.records[0].paragraphs == (Document("A", "two  spaces"),)


@pytest.mark.parametrize(
    ("good", "change", "message"),
    [
        (
            HOTPOT,
            {"answer": GONE, "supporting_facts": GONE},
            "field 'answer' is missing or empty.*test files.*train or dev",
        ),
        (WIKI, {"answer": ""}, "field 'answer' is missing or empty"),
        (HOTPOT, {"answer": "\u200b"}, "field 'answer' must not be blank"),
        (MUSIQUE, {"question": "&#8203;"}, "field 'question' must not be blank"),
        (HOTPOT, {"answer": 3}, "field 'answer' must be a string, found a number"),
        (HOTPOT, {"supporting_facts": GONE}, "field 'supporting_facts' must be a list, found none"),
        (HOTPOT, {"supporting_facts": [["A"]]}, r"field 'supporting_facts\[0\]' must be a title and sent_id"),
        (HOTPOT, {"supporting_facts": [["Z", 0]]}, "field 'supporting_facts' names 'Z', found none of .* 2 paragraphs"),
        (HOTPOT, {"supporting_facts": [["Empty", 0]]}, "field 'supporting_facts' names 'Empty'"),
        (HOTPOT, {"context": [["A", "text"]]}, r"field 'context\[0\]' must be a title and a list .* found a string"),
        (HOTPOT, {"context": [["A", [1]]]}, r"field 'context\[0\]\[1\]\[0\]' must be a string, found a number"),
        (HOTPOT, {"context": [[None, []]]}, r"field 'context\[0\]\[0\]' must be a string, found null"),
        (HOTPOT, {"context": "A: text"}, "field 'context' must be a list of pairs, found a text that is not JSON"),
        (HOTPOT, {"context": {"title": ["A"]}}, "field 'context' must hold title and sentences or content"),
        (HOTPOT, {"_id": GONE}, "field '_id' is missing"),
        (HOTPOT, {"question": " "}, "field 'question' must not be blank"),
        (MUSIQUE, {"paragraphs": [3]}, r"paragraphs\[0\]: expected an object .* found a number"),
        (MUSIQUE, {"paragraphs": [{"title": "A"}]}, r"paragraphs\[0\]: field 'paragraph_text' is missing"),
        (MUSIQUE, {"paragraphs": MUSIQUE["paragraphs"][:1] * 2}, r"paragraphs\[1\]: field 'idx' must be .* found 0"),
        (
            MUSIQUE,
            {"question_decomposition": [{"paragraph_support_idx": 9}]},
            r"field 'question_decomposition\[0\].paragraph_support_idx' must be the idx of a paragraph, found 9",
        ),
        (MUSIQUE, {"answer_aliases": [""]}, r"field 'answer_aliases\[0\]' must not be blank"),
        (MUSIQUE, {"answer_aliases": ["x", "\u200b"]}, r"field 'answer_aliases\[1\]' must not be blank"),
        (MUSIQUE, {"answer": GONE, "answerable": GONE}, "field 'answer' is missing or empty"),
        (MEMAGENT, {"context": [5, 3]}, "field 'context' must be a text, found a list: .* `remem data build`"),
        (MEMAGENT, {"context": ""}, "field 'context' must not be blank"),
        (MEMAGENT, {"answers": GONE}, "field 'answers' is missing, as are reward_model.ground_truth, solution, answer"),
        (MEMAGENT, {"answers": []}, "field 'answers' must hold at least one answer"),
        (MEMAGENT, {"answers": [None]}, r"field 'answers\[0\]' must be a string, found null"),
        (MEMAGENT, {"input": None, "prompt": []}, "field 'prompt' must hold a user's message, found 0 others"),
        (OWN, {"answers": []}, "field 'answers' must hold at least one answer"),
        (OWN, {"supporting_titles": ["Z"]}, "field 'supporting_titles' names 'Z'"),
    ],
)
def test_a_fault_is_named_by_file_item_and_field_and_is_a_line_when_skipped(tmp_path, good, change, message):
    identifier = next(name for name in ("_id", "id", "index") if name in good)
    bad = {name: v for name, v in (good | {identifier: "second"} | change).items() if v is not GONE}
    path = listed(tmp_path, good, bad)
    with pytest.raises(RememError, match=rf"^{path} item 2: {message}") as error:
        read_source(path)
    assert "\n" not in str(error.value)
    source = read_source(path, on_error="skip")
    assert len(source.records) == 1 and source.skipped == [str(error.value)]


def test_a_second_use_of_an_id_is_named_with_both_places(tmp_path):
    path = lines(tmp_path, OWN, OWN | {"id": "r"}, OWN)
    with pytest.raises(RememError, match=rf"^{path} line 3: field 'id' is 'q' again, first at {path} line 1"):
        read_source(path)
    assert [r.id for r in read_source(path, on_error="skip").records] == ["q", "r"]


def test_a_file_of_no_known_form_is_refused_in_one_line_that_lists_every_kind(tmp_path):
    with pytest.raises(RememError, match="fields title, text are of no known kind") as error:
        read_source(lines(tmp_path, {"title": "A", "text": "a"}))
    assert all(f"{kind} (" in str(error.value) for kind in KINDS) and "\n" not in str(error.value)


def test_a_given_kind_is_not_guessed_and_an_unknown_one_is_refused(tmp_path):
    assert read_source(listed(tmp_path, HOTPOT), kind="2wikimultihopqa").kind == "2wikimultihopqa"
    with pytest.raises(RememError, match="field 'paragraphs' must be a list, found none"):
        read_source(listed(tmp_path, HOTPOT), kind="musique")
    with pytest.raises(RememError, match=r"kind must be one of records, hotpotqa, .* found 'squad'"):
        read_source(listed(tmp_path, HOTPOT), kind="squad")
    with pytest.raises(RememError, match="on_error must be stop or skip, found 'ignore'"):
        read_source(listed(tmp_path, HOTPOT), on_error="ignore")


def test_a_line_of_bad_json_is_skipped_but_a_broken_list_or_table_is_not(tmp_path):
    path = lines(tmp_path, OWN)
    path.write_text('{"id": \n' + path.read_text() + "[1]\n")
    assert [s.split(" expected")[0] for s in read_source(path, on_error="skip").skipped] == [
        f"{path} line 1:",
        f"{path} line 3:",
    ]
    for text, message in [
        ('[{"a": 1}, {"b": ', "item 2: expected a JSON object, found bad JSON"),
        ('[{"a": 1} {"b": 2}]', "item 2: expected ',' or ']' at character 10"),
        ('[{"a": 1}', "item 2: expected ',' or ']' at character 9, found the end of the file"),
        ('[{"a": 1}] x', "expected the file to end with the list, found 'x'"),
        ("[" * 100_000, "item 1: expected a JSON object, found bad JSON"),
    ]:
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(RememError, match=f"b.json:? {re.escape(message)}"):
            list(source_items(tmp_path / "b.json"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RememError, match=r"b.parquet: expected a parquet file, found a broken one"):
        read_source(tmp_path / "b.parquet", on_error="skip")
    (tmp_path / "b.parquet").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(RememError, match=r"b.parquet: expected a parquet file, found something else"):
        read_source(tmp_path / "b.parquet")


def test_items_of_a_list_come_in_order_with_what_is_no_object_as_an_error(tmp_path):
    (tmp_path / "a.json").write_text('\n [ {"a": "]"} ,\t3,\n{"b": [1, {"c": 2}]} ] \n')
    found = dict(source_items(tmp_path / "a.json"))
    assert [place.split("a.json ")[1] for place in found] == ["item 1", "item 2", "item 3"]
    first, second, third = found.values()
    assert (first, third) == ({"a": "]"}, {"b": [1, {"c": 2}]})
    assert str(second).endswith("a.json item 2: expected a JSON object, found a number")


def test_a_file_without_questions_a_test_file_and_a_missing_file_are_refused(tmp_path):
    for path in (listed(tmp_path), lines(tmp_path)):
        with pytest.raises(RememError, match="expected at least one question, found none"):
            read_source(path, on_error="skip")
    unanswered = without(HOTPOT, "answer")
    with pytest.raises(RememError, match=r"none of its 2 questions can be read; the first: .* item 1: field 'answer'"):
        read_source(listed(tmp_path, unanswered, unanswered), on_error="skip")
    with pytest.raises(RememError, match=r"absent.json: no such file"):
        read_source(tmp_path / "absent.json")
    with pytest.raises(RememError, match="cannot be read"):
        read_source(tmp_path)


def raw(text):
    """A text as a source may have it: entities, decomposed letters, marks that show nothing."""
    return unicodedata.normalize("NFD", html.escape(text)).replace(" the ", " the\u200b \n")


def official(record, family):
    """A record in the form of the official file it came from."""
    if family == "musique":
        titles = [p.title for p in record.paragraphs]
        steps = [titles.index(title) for title in record.supporting_titles]
        return {
            "id": record.id,
            "question": raw(record.question),
            "answer": record.answers[0],
            "answer_aliases": list(record.answers[1:]),
            "answerable": True,
            "paragraphs": [
                {"idx": i, "title": raw(p.title), "paragraph_text": raw(p.text), "is_supporting": i in steps}
                for i, p in enumerate(record.paragraphs)
            ],
            "question_decomposition": [{"question": "?", "paragraph_support_idx": i} for i in steps],
        }
    # HotpotQA's sentences hold their leading space, 2WikiMultiHopQA's do not.
    split = r"(?<=\.)(?= \S)" if family == "hotpotqa" else r"(?<=\.) (?=[^\s\u200b])"
    value = {
        "_id": record.id,
        "question": raw(record.question),
        "answer": raw(record.answers[0]),
        "supporting_facts": [[raw(title), i] for title in record.supporting_titles for i in (0, 1)],
        "context": [[raw(p.title), re.split(split, raw(p.text))] for p in record.paragraphs],
        "type": record.type,
    }
    return value | ({"level": record.level} if family == "hotpotqa" else {"evidences": [["a", "b", "c"]]})


@pytest.mark.needs_data
@pytest.mark.parametrize("split", ["dev", "train"])
@pytest.mark.parametrize("family", ["hotpotqa", "2wikimultihopqa", "musique"])
def test_the_real_questions_in_official_form_are_read_as_our_samples_have_them(tmp_path, data_dir, family, split):
    sample = data_dir / f"{family}_{split}_sample.jsonl"
    expected = read_records(sample)
    assert read_source(sample).records == expected
    write = lines if family == "musique" else listed
    source = read_source(write(tmp_path, *(official(record, family) for record in expected)))
    assert source.kind == family and source.records == expected


@pytest.mark.needs_data
def test_the_real_paragraphs_rendered_as_memagent_has_them_are_split_exactly(tmp_path, data_dir):
    expected = read_records(data_dir / "musique_train_sample.jsonl")
    rows = [
        {
            "context": render_documents(r.paragraphs),
            "prompt": [{"role": "user", "content": r.question}],
            "reward_model": {"style": "rule", "ground_truth": list(r.answers)},
            "extra_info": {"index": i, "num_docs": len(r.paragraphs)},
        }
        for i, r in enumerate(expected)
    ]
    found = read_source(table(tmp_path, *rows)).records
    assert [r.paragraphs for r in found] == [r.paragraphs for r in expected]
    assert [r.answers for r in found] == [r.answers for r in expected]
