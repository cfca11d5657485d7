"""Configs, data and models are read from a bucket as from this machine: here fsspec's own in-memory one, and file://."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import jax
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from remem_jax.checkpoint import Checkpoints, check_writable
from remem_jax.convert import convert
from remem_jax.data.builder import SetOptions, build_set
from remem_jax.data.built import check_built
from remem_jax.data.documents import read_documents
from remem_jax.data.pipeline import open_records
from remem_jax.errors import RememError
from remem_jax.eval.config import EvalConfig
from remem_jax.model import load_model
from remem_jax.paths import expanded, fetch_run, local, run_folder, send_run, url_of
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.trainer import check_export, train
from remem_jax.settings import from_mapping, load_config
from remem_jax.stored import COMMIT_FILE, absolute, complete_steps, find_checkpoint, read_info
from tests.data.made_sets import QUESTIONS, SIZES, build_small, bytes_of, write_lines
from tests.relay_run import assert_same_run, settings, write_start
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


class MadeBucket(MemoryFileSystem):
    """fsspec's in-memory files under gs://, where TensorStore, which writes the arrays, does not see them."""

    protocol = ("gs", "gcs")
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(re.sub(r"^gc?s://", "/", str(path)))

    def ls(self, path, detail=True, **options):
        found: list[Any] = super().ls(path, True, **options)
        found = [entry for entry in found if self.isfile(entry["name"]) or self.find(entry["name"])]
        if not found:
            raise FileNotFoundError(path)  # as there are no empty folders
        return found if detail else [entry["name"] for entry in found]


@pytest.fixture
def google(monkeypatch, bucket):
    """A made bucket that answers for gs:// in place of gcsfs."""
    for name in MadeBucket.protocol:
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, name, MadeBucket)
    MadeBucket.store.clear()
    return MadeBucket()


def test_a_run_goes_to_the_bucket_and_comes_back_without_what_is_left_there(google):
    run = "gs://b/runs/one"
    fetch_run(run)
    folder = run_folder(run)
    (folder / "trajectories").mkdir()
    (folder / "trajectories" / "1.jsonl").write_text("{}")
    (folder / "metrics.jsonl").write_text("step 1\n")
    (folder / "half.part").write_text("")
    send_run(run)
    assert google.cat("/b/runs/one/metrics.jsonl") == b"step 1\n"
    assert sorted(google.find("/b")) == ["/b/runs/one/metrics.jsonl", "/b/runs/one/trajectories/1.jsonl"]
    # Only what changed is sent, and what went is removed.
    google.pipe("/b/runs/one/metrics.jsonl", b"not touched\n")
    (folder / "trajectories" / "1.jsonl").rename(folder / "trajectories" / "2.jsonl")
    send_run(run)
    assert google.cat("/b/runs/one/metrics.jsonl") == b"not touched\n"
    assert sorted(google.find("/b")) == ["/b/runs/one/metrics.jsonl", "/b/runs/one/trajectories/2.jsonl"]
    # Another machine finds what the bucket has, not what lies about there.
    google.pipe("/b/runs/one/checkpoints/3/large", b"x")
    (folder / "stray").write_text("")
    fetch_run(run, "checkpoints")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == ["metrics.jsonl", "trajectories/2.jsonl"]
    assert (folder / "metrics.jsonl").read_text() == "not touched\n"
    send_run(run)
    assert google.cat("/b/runs/one/checkpoints/3/large") == b"x"


def test_a_run_on_this_machine_is_written_where_it_is(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("x")
    fetch_run(tmp_path)
    send_run(tmp_path)
    assert run_folder(tmp_path) == tmp_path and [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_checkpoint_in_a_bucket_counts_from_the_file_that_says_it_is_whole(google, tmp_path):
    here = Checkpoints(tmp_path / "checkpoints", keep=9)
    for step, score in ((1, 0.5), (2, 0.75), (3, 0.25), (4, None)):
        here.save(step, {"a": np.ones(2, np.float32)}, {"step": step}, files={}, score=score)
    here.close()
    put(google, tmp_path / "checkpoints", "b/run/checkpoints")
    google.rm_file(f"/b/run/checkpoints/4/{COMMIT_FILE}")  # Orbax writes it last
    folder = absolute("gs://b/run/checkpoints")
    assert complete_steps(folder) == {1: 0.5, 2: 0.75, 3: 0.25}  # 4 was being written when its machine went
    assert str(find_checkpoint("gs://b/run")) == "gs://b/run/checkpoints/3"
    assert str(find_checkpoint(Path("gs://b/run"), best=True)) == "gs://b/run/checkpoints/2"
    assert read_info(find_checkpoint("gs://b/run/checkpoints/1")) == {"step": 1}
    there = Checkpoints("gs://b/run/checkpoints", keep=9)
    assert {name.split("/")[4] for name in google.find("/b/run/checkpoints")} == {"1", "2", "3"}
    there.discard_after(2)
    there.close()
    assert {name.split("/")[4] for name in google.find("/b/run")} == {"1", "2"}
    assert (there.best(), there.latest()) == (2, 2)
    assert list(complete_steps(absolute("gs://b/none"))) == []


def test_checkpoints_are_refused_where_orbax_cannot_write_them(bucket, tmp_path, monkeypatch):
    with pytest.raises(RememError, match=r"^memory://b/run: expected a path of this machine or gs://: Orbax keeps no"):
        Checkpoints("memory://b/run")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for use in (Checkpoints, check_writable, find_checkpoint):
        with pytest.raises(
            RememError, match=r"^gs://b/run: the package that opens it is missing: Please install gcsfs"
        ):
            use("gs://b/run")
    with pytest.raises(RememError, match=r"^out: expected a path of this machine, found gs://b/model"):
        convert(tmp_path, "gs://b/model")


def test_a_run_named_by_file_trains_where_the_path_points(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    files = fsspec.filesystem("memory")
    start = write_start(tmp_path)
    put(files, start / "start", "b/start")
    files.pipe("/b/train.jsonl", (start / "train.jsonl").read_bytes())
    base = settings(tmp_path, "plain", steps=1, export="last")
    train(base, quiet=True)
    data = dataclasses.replace(base.data, train="memory://b/train.jsonl", validation=f"file://{base.data.validation}")
    named = dataclasses.replace(base, run_dir=f"file://{tmp_path}/named", model="memory://b/start", data=data)
    outcome = train(named, quiet=True)
    assert outcome.exported == tmp_path / "named" / "model"
    assert_same_run(tmp_path / "named", tmp_path / "plain")
    with pytest.raises(RememError, match=r"is where the run exports its own model to"):
        check_export(dataclasses.replace(base, run_dir="gs://b/r", model="gs://b/r/model", export="best"))
    check_export(dataclasses.replace(base, run_dir="gs://b/r", model="gs://b/r/models", export="best"))
