"""What a person sees: the live view at 80 columns, the plain log, the answer; text that would upset a terminal."""

import io

import pytest
from rich.console import Console

from remem_jax.agent.api import answer_of
from remem_jax.agent.loop import Progress
from remem_jax.observe.terminal import Terminal
from tests.made_turns import made_episode, made_turn


def a_terminal(monkeypatch, *, live: bool, quiet: bool = False, questions: int = 1) -> Terminal:
    """A `Terminal` of 80 columns whose consoles write to memory."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal(quiet=quiet, questions=questions)
    for console in (terminal.console, terminal.out):
        console.file, console.width = io.StringIO(), 80
        console._force_terminal = live
    return terminal


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def view(terminal: Terminal) -> list[str]:
    """The lines of the live view."""
    out = Console(file=io.StringIO(), width=80, height=24)
    out.print(terminal._bar.get_renderable())
    out.print(terminal._below)
    return [line.rstrip() for line in printed(out).splitlines()]


def progress(done: int, turns: int, *episodes) -> Progress:
    return Progress(done, turns, tokens_read=1500 * done, seconds=2.0 * done, episodes=[[e] for e in episodes])


def test_the_live_view_has_chunk_rate_and_current_memory_within_80_columns(monkeypatch):
    terminal = a_terminal(monkeypatch, live=True)
    memory = "The keeper of the harbour is Ada Moss, who came from the north. " * 20
    with terminal.reading(2):
        first = view(terminal)
        terminal.turn(progress(1, 3, made_episode(made_turn(0, memory=memory))))
        second = view(terminal)
        terminal.turn(progress(2, 3, made_episode(made_turn(1, memory="short"))))
        third = view(terminal)
    assert first[0].startswith("chunk 1 of 2 ") and first[1] == "the first turn compiles"
    assert second[0].startswith("chunk 2 of 2 ") and " 33% 750 tokens/s" in second[0]
    assert second[1].startswith("memory   The keeper") and len(second) <= 5 and second[-1].endswith("…")
    assert third[0].startswith("answering ") and third[1:] == ["memory   short"]
    assert all(len(line) <= 80 for line in first + second + third)


def test_the_live_view_tells_what_was_called_recalled_and_refused(monkeypatch):
    terminal = a_terminal(monkeypatch, live=True)
    with terminal.reading(3):
        terminal.turn(progress(2, 4, made_episode(made_turn(
            1, memory="new", callback="where was Ada", recalled_step=0, recalled_score=0.5, recalled="old"
        ))))  # fmt: skip
        told = view(terminal)
        terminal.turn(progress(3, 4, made_episode(made_turn(2, valid=False, reason="two_memories", memory="new"))))
        refused = view(terminal)
    assert told[1:] == ["memory   new", "calls    where was Ada", "recalled chunk 1, score 0.50: old"]
    assert refused[1:] == ["memory   new", "invalid  reply without effect (two memories), the memory stays"]


def test_several_questions_are_counted_over_waves(monkeypatch):
    terminal = a_terminal(monkeypatch, live=True, questions=3)
    wave = [made_episode(made_turn(0)), made_episode(made_turn(0))]
    with terminal.reading(1):
        terminal.turn(progress(1, 2, *wave))
        assert view(terminal)[0].startswith("questions 1-2 of 3: answering ")
        assert view(terminal)[1:] == ["asked    Who?", "memory   (empty)"]
        terminal.turn(progress(2, 2, *wave))
        assert "next questions" in view(terminal)[0] and " 0% " in view(terminal)[0]
        terminal.turn(progress(1, 2, made_episode(made_turn(0))))
        assert view(terminal)[0].startswith("question 3 of 3: answering ")
        assert view(terminal)[1:] == ["memory   (empty)"]
        terminal.turn(progress(2, 2, made_episode(made_turn(0))))
        assert "done" in view(terminal)[0] and "100%" in view(terminal)[0]


def test_without_a_terminal_each_turn_is_a_few_whole_lines(monkeypatch):
    terminal = a_terminal(monkeypatch, live=False)
    with terminal.reading(1):
        terminal.turn(progress(1, 2, made_episode(made_turn(0, memory="A memory of many words. " * 8))))
        terminal.turn(progress(2, 2, made_episode(made_turn(0), made_turn(1, final=True))))
    log = printed(terminal.console).splitlines()
    assert log[0] == "chunk 1 of 1 read · 1,500 tokens · 750 tokens/s"
    assert log[1] == "  memory   " + ("A memory of many words. " * 8).strip()
    assert log[2:] == ["final turn done · 3,000 tokens · 750 tokens/s"]


def test_quiet_shows_nothing(monkeypatch):
    terminal = a_terminal(monkeypatch, live=True, quiet=True)
    with terminal.status("loading"), terminal.reading(1):
        terminal.turn(progress(1, 2, made_episode(made_turn(0, memory="m"))))
    assert printed(terminal.console) == ""


def test_an_answer_is_printed_with_its_counts(monkeypatch):
    terminal = a_terminal(monkeypatch, live=False)
    final = made_turn(2, final=True, reply="\\boxed{Ada Moss}")
    episode = made_episode(made_turn(0), made_turn(1, valid=False), final, chunks=2)
    terminal.answer(answer_of(episode))
    first = "Question: Who?\nAnswer:   Ada Moss\n3 turns · 1 with an invalid reply · 16 tokens read · 3.7 s\n"
    assert printed(terminal.out) == first
    terminal.answer(answer_of(episode))
    assert printed(terminal.out) == f"{first}\n{first}"


@pytest.mark.parametrize("text", ["[bold]x[/] [/nope] \\[", ":key: :smile:", "[link=x]y", "trailing \\"])
def test_text_that_looks_like_markup_is_printed_as_it_stands(monkeypatch, text):
    terminal = a_terminal(monkeypatch, live=False)
    terminal.turn(progress(1, 2, made_episode(made_turn(0, memory=text))))
    final = made_turn(0, final=True, reply=f"\\boxed{{{text.replace('{', '')}x}}")
    terminal.answer(answer_of(made_episode(final, question=text)))
    assert f"  memory   {text}\n" in printed(terminal.console)
    assert f"Question: {text}\n" in printed(terminal.out) and f"Answer:   {text}x\n" in printed(terminal.out)


def test_control_characters_of_a_model_do_not_reach_the_terminal(monkeypatch):
    terminal = a_terminal(monkeypatch, live=False)
    hostile = "a\x1b[2Jb\x07\x08\x9b31mc\rd"
    terminal.turn(progress(1, 2, made_episode(made_turn(0, memory=hostile, callback=hostile))))
    terminal.answer(answer_of(made_episode(made_turn(0, final=True, reply=f"\\boxed{{{hostile}}}"))))
    shown = printed(terminal.console) + printed(terminal.out)
    assert "a[2Jb31mcd" in shown
    assert not any(character < " " and character != "\n" for character in shown) and "\x9b" not in shown
