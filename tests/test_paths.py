"""Configs, data and models are read from a bucket as from this machine: here fsspec's own in-memory one, and file://."""

import sys
from pathlib import Path

import fsspec
import jax
import numpy as np
import pytest

from remem_jax.data.builder import SetOptions, build_set
from remem_jax.data.built import check_built
from remem_jax.data.documents import read_documents
from remem_jax.data.pipeline import open_records
from remem_jax.errors import RememError
from remem_jax.eval.config import EvalConfig
from remem_jax.model import load_model
from remem_jax.paths import expanded, local, url_of
from remem_jax.rl.config import TrainConfig
from remem_jax.settings import from_mapping, load_config
from tests.data.made_sets import QUESTIONS, SIZES, build_small, bytes_of, write_lines
from tests.tiny_agent import write_model

OPTIONS = SetOptions(documents=SIZES, split="dev")


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """An empty in-memory bucket; copies go to a home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def put(bucket, folder: Path, name: str) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            bucket.pipe(f"/{name}/{file.relative_to(folder)}", file.read_bytes())


@pytest.mark.parametrize(
    ("path", "url", "here"),
    [
        ("gs://b/x", "gs://b/x", "gs://b/x"),
        (Path("gs://b/x"), "gs://b/x", "gs:/b/x"),  # what Python makes of it
        ("GS://b/X", "gs://b/X", "GS://b/X"),
        ("file:///a/b", None, "/a/b"),
        (Path("file:///a/b"), None, "/a/b"),
        ("a:b/c", None, "a:b/c"),
        ("Qwen/Qwen2.5-3B", None, "Qwen/Qwen2.5-3B"),
    ],
)
def test_a_path_is_in_a_bucket_or_here(path, url, here):
    assert (url_of(path), expanded(str(path))) == (url, here)


def test_settings_leave_buckets_alone_and_open_file_and_home(bucket, tmp_path):
    changes = ["data.train=gs://b//t.jsonl", "run_dir=gs://b/runs/1", "data.validation=~/v", "resume=file:///old/run"]
    found = load_config(TrainConfig, None, ["model=org/m", *changes])
    assert (found.data.train, found.run_dir) == ("gs://b//t.jsonl", "gs://b/runs/1")
    assert (found.data.validation, found.resume) == (f"{tmp_path}/home/v", "/old/run")


@pytest.mark.parametrize("spell", [str, Path])
def test_a_config_and_its_questions_are_read_from_a_bucket(bucket, tmp_path, spell):
    lines = write_lines(tmp_path / "q.jsonl", QUESTIONS).read_bytes()
    bucket.pipe("/b/data/q.jsonl", lines)
    bucket.pipe("/b/c.yaml", b"model: org/m\nrun_dir: runs/x\ndata: {train: 'memory://b/data/q.jsonl'}\nsteps: 3\n")
    config = load_config(TrainConfig, spell("memory://b/c.yaml"), ["steps=4"])
    assert config.steps == 4
    assert [record.id for record in config.data.questions(config.data.train)] == [q["id"] for q in QUESTIONS]
    bucket.pipe("/b/data/q.jsonl", lines[:50])
    with pytest.raises(RememError, match=r"^memory://b/data/q\.jsonl line 1: expected a JSON object, found bad JSON"):
        config.data.questions(config.data.train)
    bucket.pipe("/b/c.yaml", b"model: org/m\nrun_dir: runs/x\ndata: {train: x}\nstep: 3\n")
    with pytest.raises(RememError, match=r"^memory://b/c\.yaml: step: expected a known setting"):
        load_config(TrainConfig, spell("memory://b/c.yaml"))


def test_a_file_is_copied_once_and_again_when_it_changes(bucket, monkeypatch):
    bucket.pipe("/b/d/one.txt", b"first")
    bucket.pipe("/b/d/sub/two.md", b"second")
    texts = [document.text for document in read_documents(["memory://b/d"])]
    assert texts == ["first", "second"]
    monkeypatch.setattr(type(bucket), "get_file", lambda *_, **__: pytest.fail("copied again"))
    assert [document.title for document in read_documents(["memory://b/d"])] == ["one.txt", "two.md"]
    monkeypatch.undo()
    bucket.pipe("/b/d/one.txt", b"third")
    assert [document.text for document in read_documents(["memory://b/d"])] == ["third", "second"]


def test_a_copy_that_fails_leaves_nothing_and_is_told_in_one_line(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    bucket.pipe("/b/d/one.txt", b"first")
    bucket.pipe("/b/d/two.txt", b"second")
    whole = type(bucket).get_file

    def one_only(self, name, target, **options):
        if name.endswith("two.txt"):
            raise ConnectionError("lost\nthe line")
        whole(self, name, target, **options)

    monkeypatch.setattr(type(bucket), "get_file", one_only)
    with pytest.raises(RememError, match=r"^memory://b/d cannot be read: ConnectionError lost the line$"):
        local("memory://b/d")
    assert list((tmp_path / ".cache/remem_jax/copies").iterdir()) == []
    monkeypatch.setattr(type(bucket), "get_file", whole)
    assert sorted(path.name for path in local("memory://b/d").iterdir()) == ["one.txt", "two.txt"]


def test_a_built_set_in_a_bucket_is_checked_read_and_kept_away_from(bucket, tmp_path):
    made = build_small(tmp_path)
    assert made.written
    put(bucket, tmp_path / "out", "b/sets/dev")
    assert check_built("memory://b/sets/dev") == made.manifest
    there, here = open_records("memory://b/sets/dev", SIZES[0]), open_records(tmp_path / "out", SIZES[0])
    assert len(here) == len(QUESTIONS) and list(there) == list(here)
    # Built from a bucket it is the same set, byte by byte.
    bucket.pipe("/b/q.jsonl", (tmp_path / "questions.jsonl").read_bytes())
    bucket.pipe("/b/corpus.jsonl", (tmp_path / "corpus.jsonl").read_bytes())
    sources, corpus = ["memory://b/q.jsonl"], ["memory://b/corpus.jsonl"]
    build_set(sources, corpus, tmp_path / "from_bucket", OPTIONS)
    assert bytes_of(tmp_path / "from_bucket") == bytes_of(tmp_path / "out")
    with pytest.raises(RememError, match=r"found 0 \(8 excluded"):
        build_set(sources, corpus, tmp_path / "none", OPTIONS, exclude=["memory://b/sets/dev"])


def test_a_model_in_a_bucket_has_the_weights_and_words_of_the_one_here(bucket, tmp_path):
    here = load_model(write_model(tmp_path / "model"), "float32")
    put(bucket, tmp_path / "model", "b/models/tiny")
    there = load_model("memory://b/models/tiny", "float32")
    assert here.tokenizer is not None and there.tokenizer is not None
    assert there.tokenizer.encode("a letter") == here.tokenizer.encode("a letter")
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), here.params, there.params)


def test_what_cannot_be_opened_is_told_in_one_line(bucket, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    cases = {
        "memory://b/none.jsonl": "memory://b/none.jsonl: no such file or folder: check the path",
        "gs://b/t.jsonl": "gs://b/t.jsonl: the package that opens it is missing: Please install gcsfs to access Google "
        "Storage; for gs:// pip install 'remem_jax[gcs]'",
        "way://b/t.jsonl": "way://b/t.jsonl: expected a path, or one that begins with file:// or gs://: check it",
    }
    for path, message in cases.items():
        with pytest.raises(RememError) as found:
            open_records(path)
        assert str(found.value) == message
    settings = {"models": {"m": "x"}, "agents": {"memagent": None}, "datasets": {"d": {"path": "gs://b/d"}}}
    with pytest.raises(RememError, match=r"^out: expected a path of this machine, found gs://b/out: copy it there"):
        from_mapping(EvalConfig, {"out": "gs://b/out", **settings})
    with pytest.raises(RememError, match=r"^out: expected a path of this machine, found gs://b/out"):
        build_set(["x"], ["y"], Path("gs://b/out"), OPTIONS)
    assert not Path("gs:").exists()
