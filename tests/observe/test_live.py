"""What a person sees of a training run: the live view at 80 columns, the plain log, the time left."""

import io

import pytest
from rich.console import Console

from remem_jax.observe import live
from remem_jax.observe.live import TrainScreen

METRICS = {
    "reward/outcome": 0.5312, "reward/memory": 0.21, "reward/callback": 0.0612, "reward/format": 1.0,
    "reward/yes_no_questions": 0.0,
    "health/call_rate": 0.41, "health/hit_rate": float("nan"), "loss/policy": -0.01,
    "time/rollout": 0.83, "time/update": 1.12, "time/tokens_per_second": 12404.4,
}  # fmt: skip


class Clock:
    """Time that passes when told to."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(live.time, "perf_counter", lambda: self.now)

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def a_screen(steps, *, terminal=False, **options):
    """A screen of 80 columns that writes to memory, and what it writes to."""
    file = io.StringIO()
    screen = TrainScreen(steps, file=file, **options)
    screen.console.width, screen.console._force_terminal = 80, terminal
    return screen, file


def view(screen):
    """The lines of the live view."""
    out = Console(file=io.StringIO(), width=80, height=24)
    out.print(screen._render())
    return [line.rstrip() for line in out.file.getvalue().splitlines()]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_log_has_one_line_a_step(clock):
    screen, file = a_screen(3)
    with screen:
        for step in (1, 2, 3):
            clock.wait(5)
            screen.step(step, METRICS)
            if step == 2:
                screen.validation(2, {"exact_match": 0.5, "f1": 0.61234})
                screen.note("best so far: step 2")
    rest = "EM 0.53 · call rate 0.41 · 12,404 tokens/s · reward memory 0.21 callback 0.0612 format 1.00 · "
    rest += "rollout 0.8 s update 1.1 s"
    assert file.getvalue().splitlines() == [
        "step 1 of 3: the first step compiles",
        f"step 1 of 3 · {rest} · time left is known after two steps",
        f"step 2 of 3 · {rest} · 5 s left",
        "validation after step 2: exact_match 0.50 f1 0.61",
        "best so far: step 2",
        f"step 3 of 3 · {rest}",
    ]


def test_a_long_step_tells_a_log_from_time_to_time_where_it_is(clock):
    screen, file = a_screen(9, done=4)
    with screen:
        for turn in range(1, 8):
            clock.wait(4)
            screen.phase("rollout turn", turn, 7, "of wave 1/2")
        clock.wait(4)
        screen.phase("update", 1, 16)
        clock.wait(60)
        screen.phase("saving")
    assert file.getvalue().splitlines() == [
        "step 5 of 9: the first step compiles",
        "step 5 of 9 · rollout turn 3/7 of wave 1/2 · 12 s in this step",
        "step 5 of 9 · rollout turn 6/7 of wave 1/2 · 24 s in this step",
        "step 5 of 9 · saving · 1:32 in this step",
    ]


def test_the_live_view_fits_80_columns_and_shows_the_step_at_work_over_the_last_one(clock):
    screen, file = a_screen(60, terminal=True)
    with screen:
        first = view(screen)
        clock.wait(30)
        screen.step(1, METRICS)
        clock.wait(2)
        screen.step(2, METRICS)
        screen.phase("rollout turn", 3, 7, "of wave 1/2")
        clock.wait(1.4)
        second = view(screen)
    assert first[0].startswith("step 1 of 60 ") and first[0].endswith(" first step compiles")
    assert first[1:] == ["now      starting · 0 s"]
    assert second[0].startswith("step 3 of 60 ━") and second[0].endswith(" 1:55 left")  # 58 * 2 s - 1.4 s
    assert second[1:] == [
        "now      rollout turn 3/7 of wave 1/2 · 1 s",
        "step 2   EM 0.53 · call rate 0.41 · 12,404 tokens/s",
        "         reward memory 0.21 callback 0.0612 format 1.00",
        "         rollout 0.8 s update 1.1 s",
    ]
    assert all(len(line) <= 80 for line in first + second)
    last = file.getvalue().splitlines()[-1]  # the view is taken away, the last step stays
    assert "step 2 of 60 · EM 0.53 · call rate 0.41" in last and last.endswith("1:55 left")


def test_long_names_are_cut_to_the_width_of_the_terminal(clock):
    screen, _ = a_screen(2, terminal=True)
    with screen:
        screen.step(1, {f"loss/part_{i}": 0.5 for i in range(9)})
        screen.phase("reading " * 20)
        lines = view(screen)
    assert len(lines) == 3 and all(len(line) <= 80 for line in lines) and all(line.endswith("…") for line in lines[1:])


def test_time_left_follows_the_median_of_recent_steps_and_leaves_out_the_one_that_compiled(clock):
    screen, _ = a_screen(100)
    with screen:
        assert screen.remaining() is None
        for step, seconds in enumerate([50, 2, 2, 40, 2], 1):  # a validation made one step long
            clock.wait(seconds)
            screen.step(step, METRICS)
            if step == 1:
                assert screen.remaining() is None
        assert screen.remaining() == 95 * 2
        clock.wait(1.5)
        assert screen.remaining() == 95 * 2 - 1.5
        clock.wait(70)
        assert screen.remaining() == 94 * 2  # the step at work takes longer than the others; they still take 2 s
        for step in range(6, 16):  # steps have become slower for good
            clock.wait(8)
            screen.step(step, METRICS)
        assert screen.remaining() == 85 * 8


def test_a_resumed_run_counts_on_and_compiles_again(clock):
    screen, _ = a_screen(10, done=8)
    with screen:
        clock.wait(30)
        screen.step(9, METRICS)
        assert screen.remaining() is None
        clock.wait(3)
        screen.step(10, METRICS)
        assert screen.remaining() == 0.0 and view(screen)[0].startswith("step 10 of 10 ")


def test_learning_from_demonstrations_shows_its_loss(clock):
    screen, file = a_screen(2)
    with screen:
        screen.step(1, {"loss/nll": 1.25, "loss/nothing": float("nan"), "time/update": 0.5})
    assert file.getvalue().splitlines()[1].startswith("step 1 of 2 · loss nll 1.25 nothing - · update 0.5 s · ")


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (3599.0, "59:59"), (7385.0, "2:03:05")]
)
def test_durations_are_read_at_a_glance(seconds, told):
    assert live.duration(seconds) == told


def test_quiet_shows_nothing(clock):
    screen, file = a_screen(2, quiet=True, terminal=True)
    with screen:
        screen.phase("rollout turn", 1, 2)
        clock.wait(100)
        screen.phase("rollout turn", 2, 2)
        screen.step(1, METRICS)
        screen.note("n")
        screen.validation(1, {"exact_match": 1.0})
    assert file.getvalue() == ""


def test_an_exception_leaves_the_last_step_and_passes_on(clock):
    screen, file = a_screen(5, terminal=True)
    with pytest.raises(KeyboardInterrupt), screen:
        screen.step(1, METRICS)
        raise KeyboardInterrupt
    assert "step 1 of 5 · EM 0.53" in file.getvalue().splitlines()[-1]


def test_notes_are_printed_as_they_stand_without_control_characters(clock):
    screen, file = a_screen(5)
    with screen:
        screen.note("[bold]a[/] :key: \x1b[2Jb " + "long " * 30)
    assert file.getvalue().splitlines()[1] == "[bold]a[/] :key: [2Jb " + "long " * 30
