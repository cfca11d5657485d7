"""An agent in two lines of Python: what it answers, what it accepts as documents, what it compiles."""

import json
import shutil

import pytest

import remem_jax
from remem_jax.agent.api import as_documents
from remem_jax.agent.preview import first_prompt_ids
from remem_jax.agent.protocol import Tags
from remem_jax.config import AgentConfig, write_agent_json
from remem_jax.data.documents import Document
from remem_jax.errors import RememError
from remem_jax.rollout.buckets import compilations
from tests.tiny_agent import DOCUMENT, LENGTHS, PROMPTS, QUESTION, write_model, write_prompts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model directory that holds its own settings, and the document `harbour.txt`."""
    folder = tmp_path_factory.mktemp("api")
    write_model(folder / "model")
    write_prompts(folder / "prompts")
    config = AgentConfig(tags=Tags(memory=None), prompts=PROMPTS, **LENGTHS)
    write_agent_json(folder / "model", config)
    (folder / "harbour.txt").write_text(DOCUMENT, encoding="utf-8")
    return folder


def test_two_lines_answer_a_question(folder):
    agent = remem_jax.load_agent(folder / "model")
    answer = agent.answer(QUESTION, folder / "harbour.txt")
    assert answer.question == QUESTION and str(answer) == "(no answer)"
    assert len(answer.turns) == 5 and answer.turns[-1].final and answer.cut_tokens == 0
    assert answer.tokens_read == 28
    assert 0 <= answer.lookup_seconds < answer.seconds
    assert json.loads(json.dumps(answer.summary()))["turns"] == 5


def test_a_second_question_of_the_same_size_class_compiles_nothing(folder):
    agent = remem_jax.load_agent(folder / "model")
    agent.answer(QUESTION, folder / "harbour.txt")
    before = compilations()
    other = agent.answer("Who is his sister?", Document("harbour.txt", DOCUMENT.replace("letter", "storm")), seed=5)
    assert len(other.turns) == 5
    assert compilations() == before


def test_questions_in_a_batch_get_the_answers_they_get_alone(folder):
    agent = remem_jax.load_agent(folder / "model")
    together = agent.answer_all([QUESTION, "Who?"], folder / "harbour.txt", seed=3)
    apart = agent.answer_all([QUESTION, "Who?"], folder / "harbour.txt", seed=3, questions_in_flight=1)
    assert [[t.reply for t in a.turns] for a in together] == [[t.reply for t in a.turns] for a in apart]
    assert [a.question for a in together] == [QUESTION, "Who?"]


def test_the_previewed_ids_are_those_of_a_run_for_agents_with_and_without_a_loop(folder):
    for name, document in (("rememr1", DOCUMENT), ("retrieval", DOCUMENT), ("memagent", "")):
        agent = remem_jax.load_agent(folder / "model", agent=name)
        reading = agent.readings([QUESTION], Document("a", document))[0]
        first = agent.agent.run([reading], keep_prompts=True)[0][0].turns[0]
        assert first.prefix_ids is not None and first.suffix_ids is not None
        assert first_prompt_ids(agent.agent, reading) == (first.prefix_ids.tolist(), first.suffix_ids.tolist())


def test_settings_are_the_models_own_and_a_change_is_noted_once(folder):
    assert remem_jax.load_agent(folder / "model", weights=False).notes == ()
    changed = remem_jax.load_agent(folder / "model", weights=False, chunk_tokens=16, temperature=0.0)
    assert changed.config.chunk_tokens == 16 and changed.config.sampling.temperature == 0
    assert len(changed.notes) == 1
    assert "chunk_tokens 16 (not 8)" in changed.notes[0] and "temperature 0.0 (not 0.7)" in changed.notes[0]
    with pytest.raises(RememError, match="chunk_token: expected a known setting, did you mean chunk_tokens"):
        remem_jax.load_agent(folder / "model", chunk_token=16)


def test_lengths_that_nobody_set_are_halved_until_they_fit_the_context(folder, tmp_path):
    shutil.copytree(folder / "model", tmp_path / "model")
    (tmp_path / "model" / "remem.json").unlink()
    fitted = remem_jax.load_agent(tmp_path / "model", weights=False, prompts=folder / "prompts")
    # 5000 + 3 * 2048 + 256 and the prompt's text exceed 8192 tokens; half of the lengths do not.
    assert (fitted.config.chunk_tokens, fitted.config.memory_tokens) == (2500, 1024)
    assert len(fitted.notes) == 1 and "fitted to the model's context of 8192" in fitted.notes[0]
    given = remem_jax.load_agent(tmp_path / "model", weights=False, chunk_tokens=100, memory_tokens=50)
    assert (given.config.chunk_tokens, given.config.memory_tokens) == (100, 50)


def test_documents_are_paths_documents_mappings_or_lists_of_these(folder):
    path, made = folder / "harbour.txt", Document("T", "x")
    assert as_documents(path) == as_documents(str(path)) == [Document("harbour.txt", DOCUMENT)]
    assert as_documents({"title": "T", "text": "x"}) == as_documents(made) == [made]
    assert as_documents([path, made, {"text": "y"}]) == [Document("harbour.txt", DOCUMENT), made, Document("", "y")]
    assert as_documents([]) == []
    with pytest.raises(RememError, match="a document needs the field text, found title"):
        as_documents({"title": "T"})
    with pytest.raises(RememError, match="no such file"):
        as_documents("/no/such/file.txt")


@pytest.mark.parametrize("documents", [None, 5, b"x", [None], [3.5]])
def test_what_is_no_document_is_refused_in_one_line(documents):
    with pytest.raises(RememError, match="found"):
        as_documents(documents)
