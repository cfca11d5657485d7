"""What is shown while agents are evaluated: lines in a log, a bar with the time left on a terminal."""

import io

from rich.console import Console

from remem_jax.observe import evaluating
from remem_jax.observe.evaluating import EvalScreen


def test_a_log_tells_the_cell_the_questions_and_the_time_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(evaluating.time, "perf_counter", lambda: now[0])
    file = io.StringIO()
    with EvalScreen(file=file) as screen:
        screen.note("rememr1: lengths fitted")
        screen.begin(questions=20, answered=4, turns=80)
        assert screen.seconds_left() is None
        screen.wave("rememr1 on relay, 8 documents", 40)
        now[0] = 20.0
        screen.turn(2, 4)  # half of 40 turns in 20 seconds: 60 are left
        assert screen.seconds_left() == 60.0
        screen.turn(4, 4)  # told no second time within ten seconds
        screen.answered(8)
        assert screen.seconds_left() == 20.0
    assert file.getvalue().splitlines() == [
        "note: rememr1: lengths fitted",
        "20 questions, 4 answered before; 80 turns to take",
        "rememr1 on relay, 8 documents · 4 of 20 questions · about 1:00 left",
    ]


def test_a_terminal_shows_a_bar_and_quiet_shows_nothing(monkeypatch):
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, width=100)
    monkeypatch.setattr(evaluating, "Console", lambda **given: terminal)
    with EvalScreen() as screen:
        screen.preparing("counting tokens of relay, 8 documents", 1, 5)
        screen.begin(questions=5, answered=0, turns=10)
        screen.wave("memagent on relay, 8 documents", 10)
        screen.turn(1, 2)
        assert screen._bar is not None
        screen._bar.refresh()
    assert "memagent on relay, 8 documents" in file.getvalue() and "0 of 5 questions" in file.getvalue()
    monkeypatch.undo()
    silent = io.StringIO()
    with EvalScreen(quiet=True, file=silent) as screen:
        screen.note("x")
        screen.begin(questions=5, answered=0, turns=10)
    assert silent.getvalue() == ""
