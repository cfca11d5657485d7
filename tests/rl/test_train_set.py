"""Training on a built set: contexts of the size asked for, batches of like lengths, token ids kept in a cache."""

import json

import pytest

from remem_jax.data import load_contexts
from remem_jax.data.builder import SetOptions, build_set
from remem_jax.data.relay_task import PERSONS
from remem_jax.errors import RememError
from remem_jax.rl.setup import prepare_run
from remem_jax.rl.trainer import train
from tests.relay_run import ANSWERS, lines, settings, write_start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A starting model, and its five questions built to 12 and 16 documents."""
    folder = write_start(tmp_path_factory.mktemp("set"))
    texts = [f"home {a} {b}" for a in PERSONS[:8] for b in (*ANSWERS, "PARIS")]
    corpus = [{"title": f"other {i}", "text": text} for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in corpus))
    options = SetOptions(documents=(12, 16), split="train")
    build_set([folder / "train.jsonl"], [folder / "corpus.jsonl"], folder / "set", options)
    return folder


def run(folder, **data):
    return settings(folder, "set-run", data={"train": str(folder / "set"), **data}, steps=1, log__trajectories_every=1)


def test_a_built_set_is_trained_on_at_the_size_asked_for(folder):
    train(run(folder, documents=16, like_lengths=2), quiet=True)
    (file,) = (folder / "set-run" / "trajectories").glob("*.jsonl")
    records = {record.id: record for record in load_contexts(folder / "set", 16)}
    chunks: dict[str, dict[int, str]] = {}
    for line in lines(file):
        if not line["final"]:
            chunks.setdefault(line["question_id"], {})[line["turn"]] = line["chunk"]
    assert len(chunks) == 2
    for name, of_turn in chunks.items():
        read = " ".join(of_turn[turn] for turn in sorted(of_turn)).split()
        texts = [document.text for document in records[name].paragraphs]
        assert len(texts) == 16 and read == " ".join(texts).split()


def test_a_set_needs_a_size_that_it_has(folder):
    with pytest.raises(RememError, match=r"data.documents: expected one of the sizes of .*set, found None"):
        prepare_run(run(folder))
    with pytest.raises(RememError, match=r"no contexts of 13 documents: it has 12, 16"):
        prepare_run(run(folder, documents=13))
    with pytest.raises(RememError, match=r"^data.documents: expected none with files of questions, found 12"):
        prepare_run(run(folder, train=str(folder / "train.jsonl"), documents=12))
