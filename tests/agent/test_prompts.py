"""Prompts: slots and their refusals, and the order of every agent's segments, with a tokenizer of one id a byte."""

import pytest

from remem_jax.agent.prompts import AGENTS, ORDERS, SLOTS, assemble, encode_blocks, layout, load_prompts, prompt_parts
from remem_jax.agent.protocol import Tags
from remem_jax.errors import RememError

TAGS = Tags()
HEAD, TAIL, SPECIAL = 300, 301, 302
SHORT = {
    "rules": "R{memory_open}",
    "rules_callback": "C{callback_open}",
    "question": "q:{question}",
    "chunk": "c:{chunk}.",
    "recalled": "r:{recalled}",
    "memory": "m:{memory}",
    "cue": "go",
    "final_rules": "F",
    "final_cue": "end \\boxed{}",
    "document_rules": "D",
    "document": "d:{document}.",
    "no_memory": "none",
    "no_recall": "nil",
}
VALUES = {name: list(name.upper().encode()) for name in ("question", "chunk", "recalled", "memory")}


class Bytes:
    """One id a byte; `<|end|>` is one special id, but only where special strings are read."""

    vocab_size = 303
    eos_ids = (SPECIAL,)
    special_ids = frozenset({HEAD, TAIL, SPECIAL})
    bos_id = None
    fingerprint = "bytes"

    def encode(self, text, *, special=False):
        if special and "<|end|>" in text:
            return [SPECIAL]
        return list(text.encode())

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode()

    def show(self, ids):
        return text_of(ids)

    def chat(self):
        return [HEAD], [TAIL]

    def cut(self, ids, limit):
        return list(ids[:limit])


def text_of(ids):
    return "".join({HEAD: "[", TAIL: "]"}.get(i) or chr(i) for i in ids)


def prompt(agent, order, final, texts=SHORT, tags=TAGS):
    """A whole prompt as text, `|` between prefix and suffix."""
    blocks = encode_blocks(load_prompts(texts), Bytes(), agent, tags)
    return "|".join(text_of(assemble(part, VALUES)) for part in prompt_parts(blocks, agent, order, final))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("section_last", "[{R}q:QUESTION\n\n|r:RECALLED\n\nm:MEMORY\n\nc:CHUNK.\n\ngo]"),
        ("section_first", "[{R}q:QUESTION\n\nc:CHUNK.\n\n|r:RECALLED\n\nm:MEMORY\n\ngo]"),
        ("document_first", "[{R}c:CHUNK.\n\n|q:QUESTION\n\nr:RECALLED\n\nm:MEMORY\n\ngo]"),
        ("question_last", "[{R}c:CHUNK.\n\n|r:RECALLED\n\nm:MEMORY\n\nq:QUESTION\n\ngo]"),
    ],
)
def test_a_memory_turn_is_in_the_order_of_its_name(order, expected):
    rules = "R<memory>\n\n"
    for agent, head, dropped in [
        ("rememr1", rules + "C<callback>\n\n", ""),
        ("memagent", rules, "r:RECALLED\n\n"),
        ("rule_callback", rules, ""),
    ]:
        assert prompt(agent, order, False) == expected.replace("{R}", head).replace(dropped, "")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("section_last", "[F\n\nq:QUESTION\n\n|r:RECALLED\n\nm:MEMORY\n\nend \\boxed{}]"),
        ("section_first", "[F\n\nq:QUESTION\n\n|r:RECALLED\n\nm:MEMORY\n\nend \\boxed{}]"),
        ("document_first", "[F\n\n|q:QUESTION\n\nr:RECALLED\n\nm:MEMORY\n\nend \\boxed{}]"),
        ("question_last", "[F\n\n|r:RECALLED\n\nm:MEMORY\n\nq:QUESTION\n\nend \\boxed{}]"),
    ],
)
def test_the_final_turn_is_the_same_without_the_chunk(order, expected):
    assert prompt("rememr1", order, True) == expected
    assert prompt("rule_callback", order, True) == expected
    assert prompt("memagent", order, True) == expected.replace("r:RECALLED\n\n", "")


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("section_last", "[D\n\nq:QUESTION\n\n|d:CHUNK.\n\nend \\boxed{}]"),
        ("section_first", "[D\n\nq:QUESTION\n\nd:CHUNK.\n\n|end \\boxed{}]"),
        ("document_first", "[D\n\nd:CHUNK.\n\n|q:QUESTION\n\nend \\boxed{}]"),
        ("question_last", "[D\n\nd:CHUNK.\n\n|q:QUESTION\n\nend \\boxed{}]"),
    ],
)
def test_agents_without_a_loop_have_one_prompt_with_the_document(order, expected):
    for agent in ("full_context", "retrieval"):
        assert prompt(agent, order, True) == expected
        with pytest.raises(RememError, match="has a final turn only"):
            layout(agent, order, False)


def test_neighbouring_constants_are_merged_and_sources_stand_alone():
    blocks = encode_blocks(load_prompts(SHORT), Bytes(), "memagent", TAGS)
    prefix, suffix = prompt_parts(blocks, "memagent", "section_last", False)
    assert [part if isinstance(part, str) else text_of(part) for part in prefix + suffix] == [
        "[R<memory>\n\nq:",
        "question",
        "\n\n",
        "m:",
        "memory",
        "\n\nc:",
        "chunk",
        ".\n\ngo]",
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("agent", AGENTS)
def test_our_own_texts_make_a_prompt_for_every_agent_and_a_suffix_that_ends_with_the_templates_tail(agent, order):
    for final in (False, True) if agent not in ("full_context", "retrieval") else (True,):
        blocks = encode_blocks(load_prompts(), Bytes(), agent, TAGS)
        prefix, suffix = prompt_parts(blocks, agent, order, final)
        assert prefix[0][0] == HEAD and suffix[-1][-1] == TAIL
        ids = assemble(prefix + suffix, VALUES)
        text = text_of(ids)
        assert not any(f"{{{slot}}}" in text for slot in SLOTS)
        assert ("<callback>" in text) == (agent == "rememr1" and not final)
        assert ("\\boxed{}" in text) == final
        assert ("RECALLED" in text) == (agent in ("rememr1", "rule_callback"))
        assert ("CHUNK" in text) == (not final or agent in ("full_context", "retrieval"))


def test_without_memory_marks_the_bare_texts_are_used():
    tags = Tags(memory=None)
    texts = SHORT | {"rules_bare": "B", "cue_bare": "write"}
    assert prompt("memagent", "section_last", False, texts, tags).startswith("[B\n\nq:")
    assert prompt("memagent", "section_last", False, texts, tags).endswith("write]")
    assert "memory>" not in prompt("rememr1", "section_last", False, None, tags)
    with pytest.raises(RememError, match=r"cue_bare.txt has the slot \{memory_open\}, but the tags have no memory"):
        prompt("memagent", "section_last", False, {"cue_bare": "{memory_open}"}, tags)


def test_tags_of_the_user_stand_in_the_prompt():
    assert "between <recall> and </recall>" in prompt("rememr1", "section_last", False, None, Tags(callback="recall"))


def test_special_strings_in_a_text_add_no_special_id():
    texts = SHORT | {"rules": "a<|end|>", "final_cue": "<|end|>", "no_memory": "<|end|>"}
    blocks = encode_blocks(load_prompts(texts), Bytes(), "rememr1", TAGS)
    for final in (False, True):
        prefix, suffix = prompt_parts(blocks, "rememr1", "section_last", final)
        assert SPECIAL not in assemble(prefix + suffix, VALUES)
    assert text_of(blocks.no_memory) == "<|end|>"


def test_placeholders_are_exposed_as_ids():
    blocks = encode_blocks(load_prompts(SHORT), Bytes(), "rememr1", TAGS)
    assert (text_of(blocks.no_memory), text_of(blocks.no_recall)) == ("none", "nil")


def test_an_empty_text_is_no_block():
    assert prompt("rememr1", "section_last", False, SHORT | {"rules": "", "rules_callback": ""}).startswith("[q:")


def test_braces_that_are_no_slot_are_plain_text():
    texts = SHORT | {"final_cue": r"\boxed{answer} {} {0} { question } {x{y}"}
    assert prompt("rememr1", "section_last", True, texts).endswith(texts["final_cue"] + "]")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"question": "no slot"}, r"question.txt must hold the slot \{question\} once, found 0"),
        ({"chunk": "{chunk}{chunk}"}, r"chunk.txt must hold the slot \{chunk\} once, found 2"),
        ({"question": "{question} {chunk}"}, r"question.txt has the slot \{chunk\}, which does not belong there"),
        ({"rules": "{memory}"}, r"rules.txt has the slot \{memory\}, which does not belong there"),
        ({"no_memory": "{memory_open}"}, r"no_memory.txt has the slot \{memory_open\}"),
        ({"rules": "{memory_opn}"}, r"rules.txt has \{memory_opn\}, which is no slot: write \{memory_open\}"),
        ({"question": "{Question}"}, r"question.txt has \{Question\}, which is no slot: write \{question\}"),
        ({"cue": " "}, "cue.txt is blank"),
        ({"rule": "x"}, "unknown text 'rule', the nearest known one is rules"),
        ({"rules": 3}, "rules must be a text, found int"),
    ],
)
def test_a_text_with_wrong_slots_is_refused_by_name(texts, message):
    with pytest.raises(RememError, match=message):
        load_prompts(texts)


def test_a_folder_replaces_some_texts_and_less_one_final_newline_they_stand_as_they_are(tmp_path):
    (tmp_path / "cue.txt").write_bytes("\ufeffé go\r\n\r\n".encode())
    (tmp_path / ".hidden").write_text("x")
    texts = load_prompts(tmp_path).texts()
    assert texts["cue"] == "é go\n"
    assert texts["memory"] == load_prompts().texts()["memory"]
    assert load_prompts(texts).texts() == texts


def test_a_bad_folder_is_refused_by_file(tmp_path):
    with pytest.raises(RememError, match="expected a folder"):
        load_prompts(tmp_path / "absent")
    (tmp_path / "rulse.txt").write_text("x")
    with pytest.raises(RememError, match=r"unknown file rulse.txt, the nearest known one is rules.txt"):
        load_prompts(tmp_path)
    (tmp_path / "rulse.txt").unlink()
    (tmp_path / "cue.txt").write_bytes(b"go \xff")
    with pytest.raises(RememError, match=r"cue.txt: not UTF-8 at byte 3"):
        load_prompts(tmp_path)


def test_unknown_agents_and_orders_are_refused_with_the_known_ones():
    with pytest.raises(RememError, match=r"agent must be one of rememr1, .* found 'x'"):
        layout("x", "section_last", True)
    with pytest.raises(RememError, match=r"prompt order must be one of section_last, .* found 'x'"):
        layout("rememr1", "x", True)


def test_our_texts_show_no_query_and_no_memory_that_could_be_copied():
    for text in load_prompts().texts().values():
        for tag in ("memory", "callback"):
            between = text.partition(f"{{{tag}_open}}")[2].partition(f"{{{tag}_close}}")[0]
            assert between in ("", " and ")
