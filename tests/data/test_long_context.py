"""Long contexts: nesting, seeding by the question's id, titles kept apart, the distant variant, the program."""

import gzip
import hashlib
import json
from itertools import pairwise

import pytest

from remem_jax.data.documents import Document, read_documents
from remem_jax.data.long_context import build_context, main, not_distant, read_corpus
from remem_jax.data.records import Record, read_records
from remem_jax.errors import RememError

CORPUS = [Document(f"T{i}", f"text {i}") for i in range(400)]
SIZES = (4, 5, 9, 50, 100, 400)


def question(name="q", **changes):
    own = tuple(Document(title, f"own {title}") for title in ("First", "Second", "Third", "t7"))
    record = Record(name, "Who?", ("x",), ("First", "Second"), own, "compositional", None)
    return Record(**(record.__dict__ | changes))


def is_subsequence(small, large):
    rest = iter(large)
    return all(document in rest for document in small)


@pytest.mark.parametrize("order", ["random", "reverse"])
def test_contexts_nest_and_hold_the_questions_own_paragraphs_once(order):
    for name in ("a", "b", "c"):
        contexts = [build_context(question(name), CORPUS, n, order=order) for n in SIZES]
        assert [len(c) for c in contexts] == list(SIZES)
        for small, large in pairwise(contexts):
            assert is_subsequence(small, large)
        for context in contexts:
            assert len(set(context)) == len(context)
            assert set(question().paragraphs) <= set(context)


def test_no_distractor_has_a_title_of_the_question_in_any_case():
    context = build_context(question(), CORPUS, 403)
    assert [d for d in context if d.title.casefold() == "t7"] == [Document("t7", "own t7")]
    supporting = question(paragraphs=(), supporting_titles=("t1", "T2"))
    assert not {"T1", "T2"} & {d.title for d in build_context(supporting, CORPUS, 398)}


def test_a_corpus_too_small_is_an_error_with_both_numbers():
    with pytest.raises(RememError, match="404 documents asked for, its paragraphs and the corpus give 403"):
        build_context(question(), CORPUS, 404)


def test_fewer_documents_than_the_questions_own_are_refused_with_both_numbers():
    with pytest.raises(RememError, match="3 documents asked for, it has 4 of its own"):
        build_context(question(), CORPUS, 3)


def test_places_come_from_the_id_and_the_seed_alone():
    once = build_context(question("a"), CORPUS, 50)
    assert once == build_context(question("a"), CORPUS, 50)
    assert once != build_context(question("a"), CORPUS, 50, seed=1)
    places = {build_context(question(f"q{i}"), CORPUS, 50).index(question().paragraphs[0]) for i in range(60)}
    assert len(places) > 25 and min(places) < 10 and max(places) > 39


def test_a_context_is_the_same_on_every_machine():
    titles = ",".join(d.title for d in build_context(question("a"), CORPUS, 50))
    assert hashlib.sha256(titles.encode()).hexdigest()[:16] == "05adfc4c0cb51bb0"
    titles = ",".join(d.title for d in build_context(question("a"), CORPUS, 50, order="reverse"))
    assert hashlib.sha256(titles.encode()).hexdigest()[:16] == "de444e51de81aa20"


def test_distant_evidence_stands_in_reverse_more_than_half_of_all_documents_apart():
    firsts = set()
    for i in range(40):
        for n in (4, 7, 50, 400):
            context = build_context(question(f"q{i}"), CORPUS, n, order="reverse")
            first, second = (context.index(p) for p in question().paragraphs[:2])
            assert first - second > n / 2
            firsts.add((n, second))
    assert len([n for n, _ in firsts if n == 400]) > 10


def test_a_wider_gap_can_be_asked_for_and_one_that_cannot_be_is_refused():
    context = build_context(question(), CORPUS, 100, order="reverse", min_gap=0.9)
    assert context.index(question().paragraphs[0]) - context.index(question().paragraphs[1]) > 90
    with pytest.raises(RememError, match=r"4 documents cannot hold a gap of more than 0.9 of them"):
        build_context(question(), CORPUS, 4, order="reverse", min_gap=0.9)
    with pytest.raises(RememError, match="min_gap must be a share"):
        build_context(question(), CORPUS, 4, min_gap=1.0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"type": "comparison"}, "its type must be compositional or inference, found comparison"),
        ({"supporting_titles": ("First",)}, "two evidence documents, found"),
        ({"supporting_titles": ("First", "First")}, "two evidence documents, found"),
        ({"supporting_titles": ("First", "Second", "Third")}, "two evidence documents, found"),
        ({"supporting_titles": ("First", "Gone")}, "the title 'Gone' must name one paragraph, found 0"),
    ],
)
def test_questions_that_the_distant_variant_cannot_take_are_told_why(changes, why):
    assert not_distant(question()) == ""
    assert why in not_distant(question(**changes))
    with pytest.raises(RememError, match="question q: not eligible for order reverse"):
        build_context(question(**changes), CORPUS, 50, order="reverse")


def test_an_unknown_order_is_refused():
    with pytest.raises(RememError, match="order must be one of random, reverse, found 'x'"):
        build_context(question(), CORPUS, 50, order="x")


def write_corpus(path, documents):
    data = "".join(json.dumps(d.__dict__) + "\n" for d in documents).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_corpora_are_read_plain_or_gzipped_and_equal_texts_count_once(tmp_path):
    plain = write_corpus(tmp_path / "a.jsonl", CORPUS[:3])
    zipped = write_corpus(tmp_path / "b.jsonl.gz", [Document("again", "text 1"), CORPUS[3]])
    assert read_corpus(plain, zipped) == CORPUS[:4]
    zipped.write_bytes(zipped.read_bytes()[:-9])
    with pytest.raises(RememError, match=r"b.jsonl.gz: expected a gzip file, found a broken one"):
        read_corpus(zipped)


def test_an_empty_corpus_file_is_an_error(tmp_path):
    (tmp_path / "e.jsonl").write_text("\n")
    with pytest.raises(RememError, match=r"e.jsonl: expected distractors, .* found an empty file"):
        read_corpus(write_corpus(tmp_path / "c.jsonl.gz", CORPUS[:2]), tmp_path / "e.jsonl")


def test_a_question_file_as_a_corpus_stands_for_the_paragraphs_of_its_questions(tmp_path):
    official = [
        {
            "_id": name,
            "question": "Who?",
            "answer": "x",
            "supporting_facts": [["A", 0]],
            "context": [["A", ["One.", " Two."]], [f"B {name}", [f"Of {name}."]]],
            "type": "bridge",
            "level": "hard",
        }
        for name in ("q", "r")
    ]
    path = tmp_path / "hotpot_train_v1.1.json"
    path.write_text(json.dumps(official))
    expected = [Document("A", "One. Two."), Document("B q", "Of q."), Document("B r", "Of r.")]
    assert read_corpus(path) == expected
    assert read_corpus(write_corpus(tmp_path / "c.jsonl.gz", CORPUS[:2]), path) == [*CORPUS[:2], *expected]


def test_the_program_writes_a_context_that_reads_back_and_prints_the_question(tmp_path, capsys):
    records, out = tmp_path / "r.jsonl", tmp_path / "out.jsonl"
    own = [d.__dict__ for d in question().paragraphs]
    record = question().__dict__ | {"paragraphs": own}
    records.write_text(json.dumps(record) + "\n" + json.dumps(record | {"id": "0"}))
    arguments = [str(records), "--corpus", str(write_corpus(tmp_path / "c.jsonl.gz", CORPUS)), "--documents", "20"]
    for wanted, name in [("q", "q"), ("1", "0"), ("0", "0")]:
        assert main([*arguments, "--out", str(out), "--question", wanted]) == 0
        assert capsys.readouterr().out == "Who?\n"
        assert read_documents([out]) == build_context(question(name), CORPUS, 20)


def test_the_program_ends_with_one_line_and_status_2_on_bad_input_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    rest = ["--corpus", "c", "--documents", "20", "--question", "q", "--out", str(out)]
    assert main([str(tmp_path / "absent.jsonl"), *rest]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("remem: error: ") and shown.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.needs_data
def test_real_contexts_nest_up_to_6400_documents_and_musique_alone_is_too_small(data_dir):
    record = read_records(data_dir / "hotpotqa_dev_sample.jsonl")[0]
    corpus = read_corpus(data_dir / "corpus_hotpotqa.jsonl.gz")
    contexts = [build_context(record, corpus, n) for n in (50, 800, 6400)]
    assert is_subsequence(contexts[0], contexts[1]) and is_subsequence(contexts[1], contexts[2])
    with pytest.raises(RememError, match="6400 documents asked for"):
        build_context(record, read_corpus(data_dir / "corpus_musique.jsonl.gz"), 6400)


@pytest.mark.needs_data
def test_163_real_2wiki_questions_take_the_distant_variant(data_dir):
    records = read_records(data_dir / "2wikimultihopqa_dev_sample.jsonl")
    eligible = [r for r in records if not not_distant(r)]
    assert len(eligible) == 163
    corpus = read_corpus(data_dir / "corpus_2wikimultihopqa.jsonl.gz")
    context = build_context(eligible[0], corpus, 50, order="reverse")
    first, second = ([d.title for d in context].index(title) for title in eligible[0].supporting_titles)
    assert first - second > 25
