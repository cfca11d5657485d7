"""What an answer and a trajectory look like in a notebook: escaped, without scripts, changes and gold words marked."""

import re
from html.parser import HTMLParser

from remem_jax.agent.api import answer_of
from remem_jax.observe.marking import changes, gold_words, marked, shortened, visible
from remem_jax.observe.stories import Trajectory
from remem_jax.observe.trajectories import turn_record
from tests.made_turns import made_episode, made_turn


class _Page(HTMLParser):
    """Tags, attributes and the text of a piece of HTML, as a browser would read it."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def test_gold_words_are_those_of_the_method_without_small_ones():
    assert gold_words(["The Ada of York"]) == {"ada", "york"}
    assert gold_words(["The Who"]) == {"who"} and gold_words("the") == {"the"}
    assert gold_words(["no"]) == gold_words(None) == frozenset()


def test_marks_stand_at_whole_words_whatever_their_case_and_form():
    gold = gold_words("New York 東京")
    assert marked("A new-York, yorks; ＹＯＲＫ", gold) == ["A ", "new", "-", "York", ", yorks; ", "ＹＯＲＫ"]
    assert marked("大東京都", gold) == ["大", "東京", "都"]
    assert marked("yo\u0301rk", gold) == ["yo\u0301rk"] and marked("", gold) == [""]
    text = "x_york_y New\n\nYork."
    assert "".join(marked(text, gold)) == text


def test_a_long_text_keeps_its_ends_and_what_stands_around_marks():
    text = "start " + "a " * 4000 + "in York city " + "b " * 4000 + "end"
    short = "".join(shortened(marked(text, gold_words("York")), 400))
    assert len(short) < 600 and short.startswith("start a") and short.endswith("b end")
    assert "a in York city b" in short
    left_out = [int(number.replace(",", "")) for number in re.findall(r"\[… ([\d,]+) characters left out …\]", short)]
    told = sum(len(f" [… {number:,} characters left out …] ") for number in left_out)
    assert len(left_out) == 2 and len(short) - told + sum(left_out) == len(text)
    assert shortened(["short"], 400) == ["short"]


def test_changes_tell_what_was_dropped_and_added_by_words():
    assert changes("Ada lives in York", "Ada lives in old Rome") == [
        ("same", "Ada lives in"),
        ("dropped", " York"),
        ("added", " old Rome"),
    ]
    assert changes("", "a b") == [("added", "a b")] and changes("a\nb", "a b") == [("same", "a b")]


def test_characters_that_cannot_be_seen_are_written_out():
    assert visible("a\u202eb\x00\x1b[31m\ud800\r\n\tc\u200b") == "a[U+202E]b[U+0000][U+001B][31m[U+D800]\n\tc[U+200B]"


def test_an_answer_shows_its_turns_with_changes_calls_and_faults():
    first = made_turn(0, memory="Ada lives in York", callback="where Ada lives")
    second = made_turn(
        1, memory="Ada lives in Rome", recalled_step=0, recalled_score=0.5, recalled="Ada lives in York", ended=False
    )
    third = made_turn(2, memory="Ada lives in Rome", valid=False, reason="no_memory")
    final = made_turn(3, final=True, reply=r"\boxed{Rome}", memory="Ada lives in Rome")
    page = answer_of(made_episode(first, second, third, final, chunks=3))._repr_html_()
    for shown in (
        "<del> York</del>", "<ins> Rome</ins>", "asks: where Ada lives", "recalled: memory of chunk 1, score 0.50",
        "! reply cut at its limit", "! invalid reply (no memory): the memory stays", "4 turns · calls 1 · hits 1",
    ):  # fmt: skip
        assert shown in page, shown
    assert "Gold" not in page


def test_hostile_texts_are_shown_as_text():
    bad = "</div><script>alert(1)</script><img src=x onerror=alert(1)>\x00\ud800\u202e{{ 7*7 }}"
    turn = made_turn(0, final=True, reply=bad, memory=bad, recalled=bad)
    episode = made_episode(turn, question=bad, chunks=0)
    record = turn_record(episode, turn, bad) | {"answers": (bad,), "step": None}
    names = ("recalled_by_query", "outcome", "memory_gain", "callback_gain", "format", "state_reward", "advantage")
    html = Trajectory("t", ({**dict.fromkeys(names), **record, "answer": bad},))._repr_html_()
    page = _Page(html)
    assert not {"script", "img"} & set(page.tags) and page.attributes <= {"class", "scope"}
    assert page.text.count("<script>alert(1)</script>") >= 4 and "{{ 7*7 }}" in page.text
    html.encode("utf-8")
    assert "[U+202E]" in page.text and "[U+D800]" in page.text
