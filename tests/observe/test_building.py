"""The progress of a build: a bar on a terminal, now and then a line in a log."""

import io

import pytest

from remem_jax.observe import building
from remem_jax.observe.building import BuildScreen


def test_a_log_gets_a_line_every_ten_seconds(monkeypatch):
    clock = iter([0.0, 3.0, 11.0, 12.0, 22.0])
    monkeypatch.setattr(building.time, "perf_counter", lambda: next(clock))
    file = io.StringIO()
    with BuildScreen(file=file) as screen:
        for done in (1, 2000, 2001, 3000):
            screen("questions", done, 9000)
    assert file.getvalue() == "questions 2,000 of 9,000\nquestions 3,000 of 9,000\n"


def test_quiet_shows_nothing(monkeypatch):
    monkeypatch.setattr(building, "PLAIN_SECONDS", 0.0)
    file = io.StringIO()
    with BuildScreen(quiet=True, file=file) as screen:
        screen("questions", 1, 2)
    assert file.getvalue() == ""


@pytest.mark.parametrize("total", [1, 128])
def test_a_terminal_gets_a_bar(monkeypatch, total):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    file = io.StringIO()
    with BuildScreen(file=file) as screen:
        screen("questions", total, total)
    assert "questions" in file.getvalue() and f"{total}/{total}" in file.getvalue()
