"""Replies and boxed answers: every rule of METHOD 2 by example, and any text at all by hypothesis."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remem_jax.agent.protocol import Reply, Tags, count_boxes, parse_answer, parse_reply
from remem_jax.errors import RememError

PIECES = ["<memory>", "</memory>", "<callback>", "</callback>", "<thinking>", "</thinking>", "a", " ", "\n", "<", "\\"]
BOX_PIECES = ["\\boxed{", "\\box{", "{", "}", "\\", "x", " ", "\\{", "\\}"]


def reason(text, **options):
    reply = parse_reply(text, **options)
    assert reply == Reply(None, None, False, reply.reason)
    return reply.reason


def test_a_full_reply_gives_its_memory_and_its_query_stripped():
    text = (
        "<thinking>hm\nhm</thinking>\n<callback> who wrote it? </callback> so <memory>\nline 1\nline 2 \n</memory> bye"
    )
    assert parse_reply(text) == Reply("line 1\nline 2", "who wrote it?", True, "")


def test_a_memory_alone_is_valid_and_has_no_query():
    assert parse_reply("<memory>x</memory>") == Reply("x", None, True, "")


def test_the_callback_may_follow_the_memory():
    assert parse_reply("<memory>x</memory><callback>q</callback>") == Reply("x", "q", True, "")


def test_a_blank_callback_is_legal_and_is_the_empty_query():
    assert parse_reply("<callback> \n</callback><memory>x</memory>") == Reply("x", "", True, "")


def test_marks_inside_a_thinking_block_are_deleted_with_it():
    assert parse_reply("<thinking><memory>a</memory><callback></thinking><memory>b</memory>").memory == "b"


def test_a_thinking_block_runs_from_the_first_open_mark_to_the_first_close_mark():
    assert parse_reply("<thinking>a<thinking>b</thinking><memory>x</memory>").memory == "x"
    assert reason("<thinking>a<thinking>b</thinking>c</thinking><memory>x</memory>") == "thinking_mark"


def test_a_thinking_block_inside_the_memory_is_cut_out_of_it():
    assert parse_reply("<memory>a<thinking>t</thinking>b</memory>").memory == "ab"


@pytest.mark.parametrize("text", ["<thinking><memory>x</memory>", "<memory>x</memory></thinking>"])
def test_a_leftover_thinking_mark_makes_the_reply_invalid(text):
    assert reason(text) == "thinking_mark"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no_memory"),
        ("just text", "no_memory"),
        ("<callback>q</callback>", "no_memory"),
        ("<Memory>x</Memory>", "no_memory"),
        ("<memory >x</memory >", "no_memory"),
        ("<memory>cut off", "unclosed_memory"),
        ("x</memory>", "stray_mark"),
        ("</memory>x<memory>", "stray_mark"),
        ("<memory>x</memory></memory>", "stray_mark"),
        ("<memory>x<memory>y</memory>", "stray_mark"),
        ("<memory>x</memory><callback>", "stray_mark"),
        ("<memory>x</memory></callback>", "stray_mark"),
        ("<memory>x</memory></callback>q<callback>", "stray_mark"),
        ("<memory>x</memory><memory>y</memory>", "two_memories"),
        ("<memory><memory>x</memory></memory>", "two_memories"),
        ("<callback>q</callback><callback>q</callback><memory>x</memory>", "two_callbacks"),
        ("<memory>x<callback>q</callback></memory>", "nested"),
        ("<callback>q<memory>x</memory></callback>", "nested"),
        ("<memory>x<callback>y</memory>q</callback>", "nested"),
        ("<memory> \n\t</memory>", "blank_memory"),
        ("<memory><thinking>x</thinking></memory>", "blank_memory"),
    ],
)
def test_every_fault_makes_the_whole_reply_invalid_and_is_named(text, why):
    assert reason(text) == why


def test_callback_marks_are_plain_text_for_an_agent_without_queries():
    text = "<callback><memory>a <callback>b</callback></memory></callback></callback>"
    assert parse_reply(text, callbacks=False) == Reply("a <callback>b</callback>", None, True, "")


def test_tags_of_other_names_are_read_and_the_default_ones_are_then_plain_text():
    tags = Tags(callback="recall", memory="update")
    text = "<recall>q</recall><update>x <memory></update>"
    assert parse_reply(text, tags) == Reply("x <memory>", "q", True, "")


def test_without_memory_marks_the_whole_reply_is_the_memory():
    tags = Tags(memory=None)
    assert parse_reply(" all <memory> of it ", tags) == Reply("all <memory> of it", None, True, "")
    assert parse_reply("<thinking>t</thinking>kept", tags).memory == "kept"
    assert parse_reply("a<callback>q</callback>b", tags) == Reply("ab", "q", True, "")
    assert parse_reply("a<callback>q</callback>b", tags, callbacks=False).memory == "a<callback>q</callback>b"
    assert reason(" ", tags=tags) == "blank_memory"
    assert reason("a<callback>q", tags=tags) == "stray_mark"


def test_the_marks_of_a_tag_are_its_name_in_brackets():
    tags = Tags(memory=None)
    assert (tags.thinking_open, tags.callback_close, tags.memory_open) == ("<thinking>", "</callback>", None)
    assert (Tags().memory_open, Tags().memory_close) == ("<memory>", "</memory>")


@pytest.mark.parametrize("names", [{"memory": "callback"}, {"memory": ""}, {"thinking": "a b"}, {"callback": "</x>"}])
def test_tag_names_that_cannot_be_told_apart_are_refused(names):
    with pytest.raises(RememError, match="tag name"):
        Tags(**names)


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join), st.booleans())
def test_any_text_at_all_is_parsed_and_an_invalid_reply_changes_nothing(text, callbacks):
    for tags in (Tags(), Tags(memory=None)):
        reply = parse_reply(text, tags, callbacks=callbacks)
        if reply.valid:
            assert reply.memory and reply.memory == reply.memory.strip() and reply.reason == ""
            assert callbacks or reply.callback is None
        else:
            assert reply == Reply(None, None, False, reply.reason) and reply.reason


WITHOUT_MARKS = st.text(st.characters(exclude_characters="<"))


@settings(deadline=None)
@given(WITHOUT_MARKS, WITHOUT_MARKS)
def test_what_is_written_between_plain_marks_comes_back(memory, callback):
    reply = parse_reply(f"<callback>{callback}</callback>\n<memory>{memory}</memory>")
    assert reply.valid == bool(memory.strip())
    assert not reply.valid or (reply.memory, reply.callback) == (memory.strip(), callback.strip())


@pytest.mark.parametrize(
    ("text", "answer", "boxes"),
    [
        ("", None, 0),
        ("the answer is 7", None, 0),
        (r"so \boxed{Paris}.", "Paris", 1),
        (r"so \box{ Paris }.", "Paris", 1),
        (r"\boxed{a} then \boxed{b}", "b", 2),
        (r"\boxed{a} then \boxed{b", "a", 1),
        (r"\boxed{a \boxed{b}", "b", 1),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c", 1),
        (r"\boxed{\text{New {York}}}", r"\text{New {York}}", 1),
        (r"\boxed{a \} b \{ c}", r"a \} b \{ c", 1),
        (r"\boxed{a\}", None, 0),
        (r"\boxed{}", "", 1),
        (r"} } \boxed{x} }", "x", 1),
        (r"{ \boxed{x}", "x", 1),
        ("\\boxed{two\nlines}", "two\nlines", 1),
        (r"boxed{x} \Boxed{x} \boxed x", None, 0),
        (r"<thinking>\boxed{x}</thinking>", "x", 1),
    ],
)
def test_the_answer_is_the_last_complete_outermost_box(text, answer, boxes):
    assert (parse_answer(text), count_boxes(text)) == (answer, boxes)


def boxes_by_counting(text):
    """Independent and slow: from each open mark count braces; then keep the outermost bodies."""
    found = []
    for start in range(len(text)):
        mark = next((m for m in ("\\boxed{", "\\box{") if text.startswith(m, start)), None)
        depth, at = 1, start + len(mark or "")
        while mark and depth and at < len(text):
            plain = text[at - 1] != "\\"
            depth += (text[at] == "{" and plain) - (text[at] == "}" and plain)
            at += 1
        if mark and not depth and not any(a <= start < b for a, b, _ in found):
            found.append((start, at, text[start + len(mark) : at - 1]))
    return [body for _, _, body in found]


@settings(deadline=None)
@given(st.lists(st.sampled_from(BOX_PIECES), max_size=20).map("".join) | st.text())
def test_boxes_found_in_one_pass_are_those_found_by_counting_from_each_mark(text):
    bodies = boxes_by_counting(text)
    assert count_boxes(text) == len(bodies)
    assert parse_answer(text) == (bodies[-1].strip() if bodies else None)


@pytest.mark.parametrize("text", ["\\boxed{" * 100_000, "\\boxed{" * 100_000 + "}" * 100_000, "<thinking>" * 100_000])
def test_a_hundred_thousand_open_marks_take_no_quadratic_time(text):
    start = time.perf_counter()
    assert count_boxes(text) in (0, 1)
    assert not parse_reply(text).valid
    assert time.perf_counter() - start < 5
