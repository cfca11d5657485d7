"""`remem answer` on good input: every kind of document, agent and output, in this process with a random tiny model."""

import json
import shutil

import pytest

from remem_jax.agent.api import load_agent
from remem_jax.agent.protocol import Tags
from remem_jax.config import AGENTS, PROMPT_ORDERS, AgentConfig, Sampling, write_agent_json
from remem_jax.model import load as loading
from tests.tiny_agent import (
    DOCUMENT,
    LENGTHS,
    PROMPTS,
    QUESTION,
    answer_options,
    remem,
    write_model,
    write_prompts,
)

TRACE_KEYS = {
    "question_id", "question", "rollout", "turn", "final", "prompt_tokens", "chunk", "memory_before", "recalled_step",
    "recalled_score", "recalled", "reply", "reply_tokens", "ended", "valid", "reason", "callback", "memory",
    "memory_cut", "dropped_words", "seconds", "lookup_seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `model`, `prompts` and the document `harbour.txt`: 28 tokens, so 4 chunks."""
    folder = tmp_path_factory.mktemp("cli")
    write_model(folder / "model")
    write_prompts(folder / "prompts")
    (folder / "harbour.txt").write_text(DOCUMENT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def options(folder):
    return answer_options(folder / "model", folder / "prompts")


def trace_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(record):
    return {name: value for name, value in record.items() if name not in ("seconds", "lookup_seconds")}


def test_the_command_alone_prints_its_help():
    ran = remem()
    assert ran.status == 0 and ran.err == ""
    assert ran.out.startswith("Usage: remem") and "\n  answer" in ran.out


def test_the_version_is_printed():
    ran = remem("--version")
    assert (ran.status, ran.err) == (0, "") and ran.out.startswith("remem_jax ")


def test_a_person_reads_question_answer_and_progress(folder, options):
    ran = remem(*options, "--question", QUESTION, "--documents", folder / "harbour.txt")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[:2] == [f"Question: {QUESTION}", "Answer:   (no answer)"]
    assert lines[2].startswith("without a box: ")
    assert lines[3].startswith("5 turns · ") and " tokens read · " in lines[3] and len(lines) == 4
    for expected in ("chunk 1 of 4 read", "chunk 4 of 4 read", "final turn done", "tokens/s", "  memory   "):
        assert expected in ran.err
    assert "remem:" not in ran.err


def test_json_is_one_object_a_question_and_nothing_else(folder, options):
    trace = folder / "json.jsonl"
    ran = remem(*options, "--question", QUESTION, "--documents", folder / "harbour.txt", "--json", "--trace", trace)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("\n") == 1
    found, turns = json.loads(ran.out), trace_of(trace)
    assert found["question"] == QUESTION and found["agent"] == "rememr1" and found["answer"] is None
    assert found["turns"] == len(turns) == 5 and found["cut_tokens"] == 0
    assert found["tokens_read"] == 28
    assert found["reply_tokens"] == sum(turn["reply_tokens"] for turn in turns)
    assert found["invalid_turns"] == sum(not turn["valid"] for turn in turns if not turn["final"])
    assert found["seconds"] == pytest.approx(sum(turn["seconds"] for turn in turns), abs=0.002)
    assert found["memory"] == turns[-1]["memory"]


def test_a_trace_holds_every_turn_in_order_and_follows_the_memory(folder, options):
    trace = folder / "trace.jsonl"
    assert remem(
        *options, "--question", QUESTION, "--documents", folder / "harbour.txt", "--trace", trace
    ).status == 0  # fmt: skip
    turns = trace_of(trace)
    assert [turn["turn"] for turn in turns] == [0, 1, 2, 3, 4]
    assert [turn["final"] for turn in turns] == [False] * 4 + [True]
    memory = None
    for turn in turns:
        assert set(turn) == (TRACE_KEYS | {"answer"} if turn["final"] else TRACE_KEYS)
        assert 0 < turn["reply_tokens"] <= LENGTHS["max_reply_tokens"] and turn["prompt_tokens"] > 0
        if turn["final"] or not turn["valid"]:
            assert turn["memory"] == memory
        memory = turn["memory"]
    assert memory  # some turn has written one
    assert [turn["memory_before"] for turn in turns] == [None, *(turn["memory"] for turn in turns[:-1])]
    assert turns[-1]["chunk"] is None
    assert "".join(turn["chunk"] for turn in turns[:-1]).endswith(DOCUMENT.strip())


def test_the_same_seed_gives_the_same_run_in_the_shell_and_in_python_and_another_seed_another(folder, options):
    replies = {}
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        trace = folder / f"seed_{name}.jsonl"
        remem(
            *options, "--question", QUESTION, "--documents", folder / "harbour.txt", "--seed", str(seed),
            "--trace", trace,
        )  # fmt: skip
        replies[name] = [without_times(record) for record in trace_of(trace)]
    assert replies["a"] == replies["b"]
    assert [r["reply"] for r in replies["a"]] != [r["reply"] for r in replies["c"]]
    agent = load_agent(folder / "model", prompts=folder / "prompts", tags=Tags(memory=None), **LENGTHS)
    found = agent.answer(QUESTION, folder / "harbour.txt", seed=7)
    assert [turn.reply for turn in found.turns] == [record["reply"] for record in replies["a"]]


def test_several_questions_come_from_options_and_files_and_share_one_batch(folder, options):
    (folder / "one.txt").write_text("\nWho?\n\n", encoding="utf-8")
    (folder / "two.jsonl").write_text(
        f'{{"question": "{QUESTION}", "answers": ["x"]}}\n{{"question": "Who?"}}\n', encoding="utf-8"
    )
    common = [*options, "--documents", folder / "harbour.txt", "--json"]
    runs = {
        "txt": remem(*common, "--question", QUESTION, "--questions", folder / "one.txt"),
        "jsonl": remem(*common, "--questions", folder / "two.jsonl", "--trace", folder / "two_trace.jsonl"),
        "options": remem(*common, "--question", QUESTION, "--question", "Who?", "--questions-in-flight", "1"),
    }
    answers = {name: [json.loads(line) for line in ran.out.splitlines()] for name, ran in runs.items()}
    for name, found in answers.items():
        assert runs[name].status == 0 and [one["question"] for one in found] == [QUESTION, "Who?"], name
        assert [one["memory"] for one in found] == [one["memory"] for one in answers["txt"]], name
    turns = trace_of(folder / "two_trace.jsonl")
    assert [(turn["turn"], turn["question"]) for turn in turns] == [
        (turn, question) for turn in range(5) for question in (QUESTION, "Who?")
    ]


def shown_document(options, *documents, stdin=b""):
    """The document part of the first prompt, the whole document in one chunk."""
    asked = ("--chunk-tokens", "500", "--prompt-order", "section_last", "--question", "Q?", "--dry-run")
    ran = remem(*options, *asked, "--documents", *documents, stdin=stdin)
    assert ran.status == 0, ran.err
    suffix = ran.out.split("\n⟪ prefix ends, suffix begins ⟫\n")[1]
    return suffix.split("-\n\n-\n\n")[1].split("\n\nto:")[0]


def test_documents_are_text_markdown_json_lines_records_directories_and_standard_input(tmp_path, options):
    (tmp_path / "a.txt").write_text("one", encoding="utf-8")
    (tmp_path / "b.md").write_text("# two\n", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"title": "T", "text": "three"}\n{"title": "U", "text": "four"}\n')
    record = {
        "id": "x", "question": "Q?", "answers": ["A"], "supporting_titles": ["V"], "type": "t", "level": None,
        "paragraphs": [{"title": "V", "text": "five"}, {"title": "W", "text": "six"}],
    }  # fmt: skip
    (tmp_path / "d.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e.txt").write_text("seven", encoding="utf-8")
    (tmp_path / "notes.pdf").write_bytes(b"\xff")
    assert shown_document(options, tmp_path / "a.txt") == "Document 1:\na.txt\none"
    assert shown_document(options, tmp_path / "b.md") == "Document 1:\nb.md\n# two"
    assert shown_document(options, tmp_path / "c.jsonl") == "Document 1:\nT\nthree\n\nDocument 2:\nU\nfour"
    assert shown_document(options, tmp_path / "d.jsonl") == "Document 1:\nV\nfive\n\nDocument 2:\nW\nsix"
    texts = ["one", "# two", "three", "four", "five", "six", "seven"]
    assert [line for line in shown_document(options, tmp_path).splitlines() if line in texts] == texts
    assert shown_document(options, "-", stdin=b"piped") == "Document 1:\nstandard input\npiped"
    several = shown_document(options, tmp_path / "b.md", tmp_path / "a.txt")
    assert several == "Document 1:\nb.md\n# two\n\nDocument 2:\na.txt\none"


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_answers(folder, options, agent):
    trace = folder / f"{agent}.jsonl"
    ran = remem(
        *options, "--question", QUESTION, "--documents", folder / "harbour.txt", "--agent", agent, "--json",
        "--trace", trace,
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    found, turns = json.loads(ran.out), trace_of(trace)
    assert found["agent"] == agent and found["cut_tokens"] == 0 and found["tokens_read"] == 28
    assert len(turns) == (1 if agent in ("full_context", "retrieval") else 5) and turns[-1]["final"]
    if agent == "memagent":
        assert all(turn["recalled_step"] is None and turn["callback"] is None for turn in turns)


@pytest.mark.parametrize("order", PROMPT_ORDERS)
def test_a_dry_run_shows_the_very_prompt_that_a_run_gives_the_model_and_loads_no_weights(
    folder, options, order, monkeypatch
):
    agent = load_agent(
        folder / "model", prompts=folder / "prompts", tags=Tags(memory=None), prompt_order=order, **LENGTHS
    )
    readings = agent.readings([QUESTION], folder / "harbour.txt")
    first = agent.agent.run(readings, keep_prompts=True)[0][0].turns[0]
    show = agent.agent.model.tokenizer.show
    monkeypatch.setattr(loading, "load_params", lambda *_, **__: pytest.fail("weights were loaded"))
    ran = remem(
        *options, "--question", QUESTION, "--documents", folder / "harbour.txt", "--prompt-order", order, "--dry-run"
    )
    assert (ran.status, ran.err) == (0, "")
    assert first.prefix_ids is not None and first.suffix_ids is not None
    prefix, suffix = first.prefix_ids.tolist(), first.suffix_ids.tolist()
    assert ran.out.startswith(f"{show(prefix)}\n⟪ prefix ends, suffix begins ⟫\n{show(suffix)}\n\n")
    total = len(prefix) + len(suffix)
    assert total == first.prompt_tokens
    counts = ran.out.splitlines()[-1]
    assert counts.startswith(f"prefix {len(prefix)} tokens + suffix {len(suffix)} tokens = {total}; reply up to 6; ")
    assert "in 4 chunks" in counts and show(prefix).startswith("<|begin|>")


def test_remem_json_sets_the_defaults_and_an_override_is_one_warning(folder, tmp_path):
    trained = AgentConfig(
        agent="memagent", tags=Tags(memory=None), prompts=PROMPTS, sampling=Sampling(temperature=0.7), **LENGTHS
    )
    shutil.copytree(folder / "model", tmp_path / "model")
    write_agent_json(tmp_path / "model", trained)
    common = [
        "answer", "--model", tmp_path / "model", "--question", QUESTION, "--documents", folder / "harbour.txt",
        "--json",
    ]  # fmt: skip
    own = remem(*common)
    assert (own.status, own.err) == (0, "")
    assert json.loads(own.out)["agent"] == "memagent" and json.loads(own.out)["turns"] == 5
    same = remem(*common, "--chunk-tokens", "8")
    assert same.err == ""
    other = remem(*common, "--chunk-tokens", "16", "--agent", "rememr1")
    assert other.status == 0 and json.loads(other.out)["turns"] == 3
    assert other.err.count("\n") == 1 and other.err.startswith("remem: warning: ")
    assert "chunk_tokens 16 (not 8)" in other.err and "agent rememr1 (not memagent)" in other.err


def test_an_empty_document_has_a_final_turn_a_warning_and_status_0(tmp_path, options):
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    (tmp_path / "none.jsonl").write_text("", encoding="utf-8")
    for name, warning in (("empty.txt", "document 'empty.txt' is empty"), ("none.jsonl", "the documents are empty")):
        trace = tmp_path / f"{name}.trace"
        ran = remem(*options, "--question", QUESTION, "--documents", tmp_path / name, "--json", "--trace", trace)
        assert (ran.status, ran.err) == (0, f"remem: warning: {warning}\n")
        assert json.loads(ran.out)["turns"] == 1 and json.loads(ran.out)["tokens_read"] == 0
        assert [(turn["turn"], turn["final"], turn["memory"]) for turn in trace_of(trace)] == [(0, True, None)]


def test_chunks_beyond_the_cap_are_reported(folder, options):
    ran = remem(*options, "--question", QUESTION, "--documents", folder / "harbour.txt", "--max-chunks", "2", "--json")
    found = json.loads(ran.out)
    assert found["turns"] == 3 and found["tokens_read"] == 16 and found["cut_tokens"] == 12
    whole = found["cut_tokens"] + found["tokens_read"]
    assert ran.err == f"remem: warning: {found['cut_tokens']} of {whole} document tokens will not be read\n"


def test_a_terminal_without_unicode_gets_valid_json(folder, options):
    common = [*options, "--question", "Où?", "--documents", folder / "harbour.txt"]
    ran = remem(*common, "--json", encoding="ascii")
    assert ran.status == 0 and json.loads(ran.out)["question"] == "Où?"
    assert remem(*common, encoding="ascii").out.startswith("Question: O\\xf9?\n")


def test_the_small_real_model_reads_a_document_and_answers(tmp_path, smollm2_path):
    """Short prompts, so that the memory turn and the final turn are of one size class."""
    prompts = {"rules_bare": "Note the facts.", "final_rules": "Answer briefly.", "cue_bare": "Write the facts."}
    (tmp_path / "prompts").mkdir()
    for name, text in prompts.items():
        (tmp_path / "prompts" / f"{name}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "harbour.txt").write_text("The keeper of the lighthouse is Ada Moss.", encoding="utf-8")
    ran = remem(
        "answer", "--model", smollm2_path, "--prompts", tmp_path / "prompts", "--memory-tag", "none",
        "--agent", "memagent", "--temperature", "0", "--chunk-tokens", "40", "--memory-tokens", "20",
        "--max-reply-tokens", "20", "--question", "Who is the keeper?", "--documents", tmp_path / "harbour.txt",
        "--json", "--trace", tmp_path / "trace.jsonl",
    )  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    found, turns = json.loads(ran.out), trace_of(tmp_path / "trace.jsonl")
    assert found["turns"] == 2 and found["invalid_turns"] == 0
    assert "Ada Moss" in turns[0]["memory"] and turns[1]["memory"] == turns[0]["memory"]
