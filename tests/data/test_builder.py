"""Built sets: the same bytes however made, the rules of METHOD 9 on real data, what is left out, and faults."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest

from remem_jax.data import load_contexts
from remem_jax.data.builder import SetOptions, build_set
from remem_jax.data.documents import Document, render_documents
from remem_jax.data.long_context import build_context, read_corpus
from remem_jax.data.records import read_records
from remem_jax.errors import RememError
from tests.data.made_sets import (
    CORPUS,
    QUESTIONS,
    SIZES,
    build_small,
    bytes_of,
    is_subsequence,
    question,
    table_of,
    write_lines,
)

PAPER_SIZES = (50, 100, 200, 400, 800, 1600, 3200, 6400)
CORPORA = {
    "hotpotqa": ("hotpotqa",),
    "2wikimultihopqa": ("2wikimultihopqa",),
    "musique": ("musique", "hotpotqa", "2wikimultihopqa"),  # alone it holds 5,021
}


WITHOUT_TENSORFLOW = """
import sys
from remem_jax.cli import main
try:
    main()
finally:
    assert "tensorflow" not in sys.modules
"""


def build_real(data_dir, name, out, *, workers=1, **options):
    corpus = [data_dir / f"corpus_{one}.jsonl.gz" for one in CORPORA[name]]
    settings = SetOptions(**({"documents": PAPER_SIZES, "split": "dev", "questions": 3} | options))
    return build_set([data_dir / f"{name}_dev_sample.jsonl"], corpus, out, settings, workers=workers)


@pytest.fixture(scope="module", params=list(CORPORA))
def real_set(request, tmp_path_factory):
    """Three questions of a dataset with the paper's eight sizes, and the dataset's name."""
    folder = tmp_path_factory.mktemp("real") / "set"
    build_real(request.getfixturevalue("data_dir"), request.param, folder)
    return folder, request.param


@pytest.mark.needs_data
def test_a_real_set_of_50_to_6400_documents_is_the_same_bytes_with_two_workers(real_set, data_dir, tmp_path):
    folder, name = real_set
    build_real(data_dir, name, tmp_path / "again", workers=2)
    assert bytes_of(tmp_path / "again") == bytes_of(folder)


@pytest.mark.needs_data
def test_real_contexts_nest_hold_no_other_gold_title_and_equal_those_built_one_by_one(real_set, data_dir):
    folder, name = real_set
    source = {record.id: record for record in read_records(data_dir / f"{name}_dev_sample.jsonl")}
    corpus = read_corpus(*(data_dir / f"corpus_{one}.jsonl.gz" for one in CORPORA[name]))
    by_size = [load_contexts(folder, size) for size in PAPER_SIZES]
    assert len({record.id for record in by_size[0]}) == 3
    for contexts in zip(*by_size, strict=True):
        record = source[contexts[0].id]
        assert [len(context.paragraphs) for context in contexts] == list(PAPER_SIZES)
        for small, large in pairwise(contexts):
            assert is_subsequence(small.paragraphs, large.paragraphs)
        gold = {title.casefold() for title in record.supporting_titles}
        titled = [d for d in contexts[-1].paragraphs if d.title.casefold() in gold]
        assert sorted(titled, key=repr) == sorted(
            (d for d in record.paragraphs if d.title.casefold() in gold), key=repr
        )
        for size, context in zip(PAPER_SIZES, contexts, strict=True):
            assert list(context.paragraphs) == build_context(record, corpus, size)
            assert (context.question, context.answers, context.type) == (record.question, record.answers, record.type)


@pytest.mark.needs_data
def test_163_real_2wiki_questions_have_the_distant_variant_and_it_holds_at_50_and_6400_documents(data_dir, tmp_path):
    manifest = build_real(
        data_dir, "2wikimultihopqa", tmp_path / "set", documents=(50, 6400), order="reverse", questions=163
    ).manifest
    assert (manifest["counts"]["questions"], manifest["counts"]["not_eligible"]) == (163, 329 - 163)
    documents = table_of(tmp_path / "set", "documents")
    for row in table_of(tmp_path / "set", "questions"):
        own = [documents[i]["title"].decode() for i in row["own"]]
        first, second = (own.index(title.decode()) for title in row["supporting_titles"])
        for size in (50, 6400):
            joined = row["joined"][row["joined"] < size].tolist()
            assert joined.index(first) - joined.index(second) > size / 2


def chi_square(places, documents, bins=20):
    """Of the counts of places, `bins` equal parts of the context."""
    counts = np.bincount(np.asarray(places) * bins // documents, minlength=bins)
    return float(((counts - len(places) / bins) ** 2 / (len(places) / bins)).sum())


@pytest.mark.needs_data
def test_the_places_of_own_documents_are_uniform_and_differ_between_questions(data_dir, tmp_path):
    corpus = [data_dir / "corpus_musique.jsonl.gz"]
    options = SetOptions((100, 400), "dev")
    build_set([data_dir / "hotpotqa_dev_sample.jsonl"], corpus, tmp_path / "set", options)
    rows = table_of(tmp_path / "set", "questions")
    places = [[np.flatnonzero(row["joined"] == own)[0] for own in range(len(row["own"]))] for row in rows]
    together = [place for of_question in places for place in of_question]
    assert len(places) == 357 and len(together) > 3500
    # 43.8 is the 99.9 % point of chi-square at 19 degrees of freedom; places and seed are fixed, so is the outcome.
    assert chi_square(together, 400) < 43.8
    assert chi_square([of_question[0] for of_question in places], 400) < 43.8
    assert len({of_question[0] for of_question in places}) > 200  # of 400 places, 357 draws: 236 are expected
    assert chi_square(places[0] * len(places), 400) > 1000  # one seed for all questions would be found out


def test_a_set_is_the_same_bytes_whatever_the_workers_process_folder_or_names_of_its_input(tmp_path):
    build_small(tmp_path / "a")
    build_small(tmp_path / "b", workers=3)
    assert bytes_of(tmp_path / "b" / "out") == bytes_of(tmp_path / "a" / "out")
    source = (tmp_path / "a" / "questions.jsonl").rename(tmp_path / "renamed.jsonl")
    command = [
        sys.executable,
        "-c",
        WITHOUT_TENSORFLOW,
        "data",
        "build",
        str(source),
        "--corpus",
        "a/corpus.jsonl",
        "--documents",
    ]
    command += ["30,12,7", "4", "--split", "dev", "--out", "other/name"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert bytes_of(tmp_path / "other" / "name") == bytes_of(tmp_path / "a" / "out")


def test_no_path_and_no_time_stands_in_a_set(tmp_path):
    build_small(tmp_path, workers=2)
    now = time.gmtime()
    for path in (tmp_path / "out").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for found in (str(tmp_path), "questions.jsonl", "corpus.jsonl", time.strftime("%Y-%m-%d", now), "workers"):
            assert found.encode() not in content, path


@pytest.mark.parametrize("order", ["random", "reverse"])
def test_every_size_equals_the_context_built_on_its_own_also_where_the_corpus_holds_own_paragraphs(tmp_path, order):
    build_small(tmp_path, options={"order": order, "seed": 5})
    corpus = read_corpus(tmp_path / "corpus.jsonl")
    for size in SIZES:
        contexts = load_contexts(tmp_path / "out", size)
        for record, source in zip(contexts, read_records(tmp_path / "questions.jsonl"), strict=True):
            assert list(record.paragraphs) == build_context(source, corpus, size, order=order, seed=5)
            assert not any(d.text.startswith("A distractor") for d in record.paragraphs if record.id == "q1")


def test_in_reverse_evidence_is_backwards_and_far_apart_and_questions_that_cannot_be_are_listed(tmp_path):
    lines = [*QUESTIONS[:3], question("c", type="comparison"), question("one", supporting_titles=["First of one"])]
    built = build_small(tmp_path, lines, options={"order": "reverse"})
    for size in SIZES:
        for record in load_contexts(tmp_path / "out", size):
            titles = [d.title for d in record.paragraphs]
            assert titles.index(f"First of {record.id}") - titles.index(f"Second of {record.id}") > size / 2
    left_out = built.manifest["left_out"]["not_eligible"]
    assert list(left_out) == ["c", "one"] and "found comparison" in left_out["c"]
    assert built.manifest["counts"]["questions"] == 3 and built.manifest["counts"]["not_eligible"] == 2
    with pytest.raises(RememError, match=r"4 documents cannot hold a gap of more than 0.9 of them"):
        build_small(tmp_path, lines, out="wide", options={"order": "reverse", "min_gap": 0.9})


def test_the_manifest_counts_what_was_built_and_its_lengths_are_those_of_the_rendered_contexts(tmp_path):
    manifest = build_small(tmp_path).manifest
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest
    assert manifest["counts"] == {
        "questions": 8, "documents": 42 + 8 * 3 - 1, "corpus_documents": 42, "own_documents": 24,
        "own_documents_not_in_corpus": 23, "skipped": 0, "excluded": 0, "not_eligible": 0, "other_level": 0,
    }  # fmt: skip
    for size in SIZES:
        texts = [render_documents(record.paragraphs) for record in load_contexts(tmp_path / "out", size)]
        for unit, lengths in (("characters", [len(t) for t in texts]), ("words", [len(t.split()) for t in texts])):
            assert manifest["lengths"][str(size)][unit] == {
                "mean": round(sum(lengths) / 8, 1), "min": min(lengths), "max": max(lengths)
            }  # fmt: skip
    files = bytes_of(tmp_path / "out")
    del files["manifest.json"]
    assert {name: file["sha256"] for name, file in manifest["files"].items()} == files


def test_no_question_of_another_set_is_built_whether_by_id_or_by_text(tmp_path):
    other = [
        question("q0", question="Something else"),
        question("z", question=" who KNOWS q3 "),
        question("7"),
    ]
    kept_away = write_lines(tmp_path / "evaluation.jsonl", other)
    built = build_small(tmp_path, [*QUESTIONS, question("7", question="Its id is a mere number?")], exclude=[kept_away])
    assert built.manifest["left_out"]["excluded"] == ["q0", "q3"]
    assert {r.id for r in load_contexts(tmp_path / "out", 4)} == {"7", "q1", "q2", "q4", "q5", "q6", "q7"}
    rest = build_small(tmp_path, out="rest", exclude=[tmp_path / "out"]).manifest
    assert rest["left_out"]["excluded"] == ["q1", "q2", "q4", "q5", "q6", "q7"] and rest["counts"]["questions"] == 2


@pytest.mark.needs_data
def test_training_questions_keep_away_from_evaluation_questions_of_real_data(data_dir, tmp_path):
    train, dev = (read_records(data_dir / f"hotpotqa_{part}_sample.jsonl") for part in ("train", "dev"))
    lines = [json.loads(line) for line in (data_dir / "hotpotqa_dev_sample.jsonl").read_text().splitlines()]
    leaked = [line | {"id": f"leak{i}", "question": line["question"].upper()} for i, line in enumerate(lines[:5])]
    sources = [data_dir / "hotpotqa_train_sample.jsonl", write_lines(tmp_path / "leaked.jsonl", leaked)]
    options = SetOptions((20,), "train")
    manifest = build_set(
        sources, [data_dir / "corpus_musique.jsonl.gz"], tmp_path / "set", options,
        exclude=[data_dir / "hotpotqa_dev_sample.jsonl"],
    ).manifest  # fmt: skip
    assert manifest["left_out"]["excluded"] == [f"leak{i}" for i in range(5)]
    built = {record.question for record in load_contexts(tmp_path / "set", 20)}
    assert built == {record.question for record in train} and not built & {record.question for record in dev}


def test_chosen_questions_depend_on_ids_and_seed_alone_and_more_only_add(tmp_path):
    shuffled = random.Random(0).sample(QUESTIONS, len(QUESTIONS))

    def chosen(out, lines, **options):
        build_small(tmp_path, lines, out=out, options=options)
        return [record.id for record in load_contexts(tmp_path / out, 4)]

    three = chosen("three", QUESTIONS, questions=3)
    assert three == sorted(three) and three == chosen("shuffled", shuffled, questions=3)
    assert three == chosen("reverse", QUESTIONS, questions=3, order="reverse")
    assert set(three) < set(chosen("five", QUESTIONS, questions=5))
    assert len({tuple(chosen(f"seed{i}", QUESTIONS, questions=3, seed=i)) for i in range(5)}) > 2
    with pytest.raises(RememError, match="expected 9 questions, found 8"):
        chosen("nine", QUESTIONS, questions=9)


def test_a_question_that_cannot_be_read_stops_the_build_or_is_listed_by_source_and_line(tmp_path):
    lines = [QUESTIONS[0], question("bad", answers=[]), QUESTIONS[1]]
    with pytest.raises(RememError, match=r"questions.jsonl line 2: field 'answers'"):
        build_small(tmp_path, lines)
    manifest = build_small(tmp_path, lines, options={"on_error": "skip"}).manifest
    assert manifest["counts"]["questions"] == 2 and manifest["counts"]["skipped"] == 1
    assert manifest["left_out"]["skipped"][0].startswith("source 1 line 2: field 'answers'")


def test_the_same_input_again_changes_nothing_and_other_input_is_refused(tmp_path):
    assert build_small(tmp_path).written
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = build_small(tmp_path, workers=2)
    assert not again.written and again.manifest["counts"]["questions"] == 8
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    for questions, corpus, seed in ((QUESTIONS, CORPUS, 1), (QUESTIONS, CORPUS[:-1], 0), (QUESTIONS[:-1], CORPUS, 0)):
        with pytest.raises(RememError, match="holds a set made from other input or options: remove it"):
            build_small(tmp_path, questions, corpus, options={"seed": seed})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(RememError, match="full: expected a new or empty folder"):
        build_small(tmp_path, out="full")
    (tmp_path / "empty").mkdir()
    assert build_small(tmp_path, out="empty").written


@pytest.mark.parametrize("workers", [1, 2])
def test_a_corpus_too_small_is_an_error_with_both_numbers_and_leaves_nothing(tmp_path, workers):
    with pytest.raises(RememError, match="q1: 45 documents asked for, its paragraphs and the corpus give 44"):
        build_small(tmp_path, options={"documents": (4, 45)}, workers=workers)
    with pytest.raises(RememError, match=f"q0: {10**15} documents asked for"):  # and no memory for so many either
        build_small(tmp_path, options={"documents": (10**15,)}, workers=workers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "questions.jsonl"]


def test_faults_of_the_options_are_named(tmp_path):
    for wrong, said in [
        ({"documents": ()}, "documents must be numbers from 1"),
        ({"documents": (0, 5)}, "documents must be numbers from 1"),
        ({"split": "a b"}, "split must be a name of letters, digits and _"),
        ({"split": "all"}, "and not all, found 'all'"),
        ({"questions": 0}, "questions must be at least 1"),
        ({"seed": -1}, "seed must be from 0 to 4294967295, found -1"),
        ({"order": "sorted"}, "order must be one of random, reverse"),
        ({"min_gap": 1.0}, "min_gap must be a share"),
    ]:
        with pytest.raises(RememError, match=said):
            build_small(tmp_path, options=wrong)
    with pytest.raises(RememError, match="workers must be at least 1"):
        build_small(tmp_path, workers=0)
    with pytest.raises(RememError, match="3 documents asked for, it has 4 of its own"):
        own = [*QUESTIONS[0]["paragraphs"], {"title": "more", "text": "more"}]
        build_small(tmp_path, [question("q0", paragraphs=own)], options={"documents": (3, 9)})
    source = tmp_path / "questions.jsonl"
    with pytest.raises(RememError, match=r"copy.jsonl: question id 'q0' stands in .*questions.jsonl too"):
        copy = write_lines(tmp_path / "copy.jsonl", [question("q0")])
        build_set([source, copy], [tmp_path / "corpus.jsonl"], tmp_path / "out", SetOptions((4,), "dev"))
    with pytest.raises(RememError, match=r"absent.jsonl: no such file"):
        build_set([source], [tmp_path / "absent.jsonl"], tmp_path / "out", SetOptions((4,), "dev"))


def test_two_builds_of_one_folder_do_not_mix(tmp_path):
    part = tmp_path / ".out.part"
    part.mkdir()
    lock = os.open(part, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(RememError, match="another build is writing it"):
        build_small(tmp_path)
    os.close(lock)
    assert build_small(tmp_path).written


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_is_killed_leaves_no_set_and_the_next_one_removes_what_it_left(tmp_path, kill):
    many = [question(f"q{i}") for i in range(4000)]
    source, pool = write_lines(tmp_path / "q.jsonl", many), write_lines(tmp_path / "c.jsonl", CORPUS)
    command = [sys.executable, "-m", "remem_jax.cli", "data", "build", str(source), "--corpus", str(pool)]
    command += ["--documents", "4,30", "--split", "dev", "--out", str(tmp_path / "out"), "--workers", "2"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    part = tmp_path / ".out.part"
    while not (part / "documents").exists():  # half of the set is written
        assert running.poll() is None and not (tmp_path / "out").exists()
        time.sleep(0.005)
    running.send_signal(kill)
    _, errors = running.communicate(timeout=60)
    assert not (tmp_path / "out").exists()
    if kill == signal.SIGINT:
        assert running.returncode == 130 and errors == "remem: stopped\n" and not part.exists()
    options = SetOptions((4, 30), "dev", questions=5)
    assert build_set([source], [pool], tmp_path / "out", options).written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.jsonl", "out", "q.jsonl"]


def test_a_document_with_an_own_text_and_another_title_is_another_document(tmp_path):
    twin = {"title": "Another", "text": QUESTIONS[0]["paragraphs"][0]["text"]}
    build_small(tmp_path, QUESTIONS[:1], [twin, *CORPUS], options={"documents": (4, 43)})
    (record,) = load_contexts(tmp_path / "out", 43)
    assert Document(**twin) in record.paragraphs and Document(**QUESTIONS[0]["paragraphs"][0]) in record.paragraphs


def test_only_questions_of_the_level_asked_for_are_taken_and_the_others_counted(tmp_path):
    lines = [question("a", level="hard"), question("b", level="easy"), question("c"), question("d", level="hard")]
    built = build_small(tmp_path, lines, options={"level": "hard"})
    assert [record.id for record in load_contexts(tmp_path / "out", 4)] == ["a", "d"]
    assert (built.manifest["counts"]["other_level"], built.manifest["level"]) == (2, "hard")
    with pytest.raises(RememError, match=r"found 0 .*4 of another level\): ask fewer, or add a source"):
        build_small(tmp_path, lines, out="none", options={"level": "Hard"})
