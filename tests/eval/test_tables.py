"""Tables of a few questions whose means, intervals and layout are known by hand."""

import pytest

from remem_jax.errors import RememError
from remem_jax.eval.harness import Result
from remem_jax.eval.intervals import Interval
from remem_jax.eval.tables import (
    Cell,
    comparison_table,
    difference_table,
    measured,
    seed_table,
    share,
    with_interval,
)


def results(*scores: float | None, name: str = "q") -> list[Result]:
    """One question a score; None is a reply without an answer."""
    return [
        Result(
            id=f"{name}{i}", prediction=None if score is None else "x", answers=("x",), exact_match=score or 0.0,
            f1=0.0, sub_exact_match=0.0, turns=1, calls=0, hits=0, recalled_distance=None, reply_tokens=1,
            invalid_turns=0, truncated=0, seconds=0.0, lookup_seconds=0.0,
        )
        for i, score in enumerate(scores)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text", "signed"),
    [
        (0.534, ".53", "+.53"),
        (1.0, "1.00", "+1.00"),
        (0.996, "1.00", "+1.00"),
        (0.994, ".99", "+.99"),
        (0.0, ".00", ".00"),
        (-0.004, ".00", ".00"),
        (-0.09, "-.09", "-.09"),
        (-1.0, "-1.00", "-1.00"),
    ],
)
def test_a_share_has_two_decimals_and_no_leading_zero(value, text, signed):
    assert share(value) == text and share(value, sign=True) == signed


def test_a_cell_shows_the_mean_and_half_of_the_interval():
    assert with_interval(Interval(0.53, 0.47, 0.59, 9)) == ".53 ±.06"
    assert with_interval(Interval(0.09, 0.05, 0.13, 9), sign=True) == "+.09 ±.04"


CELLS = [
    Cell("oracle", "forward", 8, accuracy=1.0, n=4, scripted=True),
    Cell("callback", "forward", 16, results(0.0, 0.0, 0.0, 0.0)),
    Cell("callback", "forward", 8, results(1.0, 1.0, 1.0, 1.0)),
    Cell("callback", "distant", 8, results(1.0, 1.0, 1.0, 1.0)),
    Cell("memagent", "forward", 8, results(1.0, 1.0, 1.0, 1.0)),
    Cell("memagent", "distant", 8, results(0.0, None, 0.0, 0.0)),
]


def test_the_table_as_text_lines_up_and_names_questions_and_failures():
    assert comparison_table(CELLS, title="EM").to_text() == (
        "EM\n"
        "\n"
        "                          forward           distant\n"
        "documents                   8         16           8\n"
        "────────────────────────────────────────────────────\n"
        "callback            1.00 ±.00   .00 ±.00   1.00 ±.00\n"
        "memagent            1.00 ±.00          –    .00 ±.00\n"
        "oracle (scripted)   1.00 ±.00          –           –\n"
        "\n"
        "±: half of the 95 % bootstrap interval over questions; n = 4 questions a cell.\n"
        "1 reply without an answer, counted as wrong.\n"
    )


def test_a_narrow_terminal_gets_one_block_an_order_and_loses_no_number():
    table = comparison_table(CELLS, title="EM")
    text = table.to_text(width=45)
    assert max(map(len, text.splitlines())) <= 45 and text.count("documents ") == 2
    assert text.count("±.00") == table.to_text(width=200).count("±.00") == 6


def test_the_table_as_markdown_has_a_column_an_order_and_count():
    lines = comparison_table(CELLS, title="EM").to_markdown().splitlines()
    assert lines[0] == "**EM**"
    assert lines[2:7] == [
        "|  | forward 8 | forward 16 | distant 8 |",
        "| --- | ---: | ---: | ---: |",
        "| callback | 1.00 ±.00 | .00 ±.00 | 1.00 ±.00 |",
        "| memagent | 1.00 ±.00 | – | .00 ±.00 |",
        "| oracle (scripted) | 1.00 ±.00 | – | – |",
    ]
    assert comparison_table([Cell("a|b", "x", 1, accuracy=0.5, n=1)]).to_markdown().count("a\\|b") == 1


def test_scripted_agents_with_other_counts_of_questions_are_told_apart():
    cells = [Cell("a", "x", 8, results(1.0, 1.0)), Cell("s", "x", 8, accuracy=1.0, n=1000, scripted=True)]
    assert "n = 2 questions a cell, 1,000 of the scripted agents." in comparison_table(cells).notes[0]
    cells.append(Cell("a", "x", 16, results(1.0)))
    assert "n = 1 to 2 questions a cell, 1,000 of" in comparison_table(cells).notes[0]


def test_seeds_on_the_same_questions_are_averaged_by_question():
    cells = [Cell("a", "x", 8, results(1.0, 0.0), seed=1), Cell("a", "x", 8, results(0.0, 1.0), seed=0)]
    one = measured(cells)["a", ("x", 8)]
    assert one.scores == {"q0": 0.5, "q1": 0.5} and one.interval == Interval(0.5, 0.5, 0.5, 2)
    assert one.seeds == (0.5, 0.5)
    assert "the mean over them" in comparison_table(cells).notes[1]


def test_seeds_on_questions_of_their_own_are_put_together_and_shown_apart():
    cells = [
        Cell("a", "x", 8, results(1.0, 0.0, 0.0, name="first"), seed=0),
        Cell("a", "x", 8, results(1.0, name="second"), seed=3),
        Cell("b", "x", 8, results(1.0), seed=0),
    ]
    one = measured(cells)["a", ("x", 8)]
    assert (one.interval.mean, one.interval.n) == (0.5, 4) and one.seeds == (pytest.approx(1 / 3), 1.0)
    table = seed_table(cells)
    assert table.rows == (("a", (".33 1.00",)),) and table.notes == ("Seeds in the order 0, 3.",)


def test_known_accuracies_of_seeds_weigh_by_their_questions():
    cells = [Cell("a", "x", 8, accuracy=0.5, n=300), Cell("a", "x", 8, accuracy=0.9, n=100, seed=1)]
    interval = measured(cells)["a", ("x", 8)].interval
    assert interval.mean == pytest.approx(0.6) and interval.n == 400


def test_differences_are_paired_by_question_and_marked_where_they_leave_zero_out():
    first = [1.0] * 30 + [0.0] * 30
    second = [1.0] * 10 + [0.0] * 50
    cells = [
        Cell("callback", "distant", 8, results(*first)),
        Cell("callback", "forward", 8, results(*second)),
        Cell("memagent", "distant", 8, results(*second)[::-1]),
        Cell("memagent", "forward", 8, results(*first)),
        Cell("bound", "distant", 8, accuracy=0.5, n=1000, scripted=True),
    ]
    table = difference_table(cells, [("callback", "memagent"), ("callback", "bound")])
    (name, (distant, forward)), (_, (bound, absent)) = table.rows
    # 20 of 60 pairs differ by one: deviation sqrt(1/3 * 2/3 / 60) = .061, 1.96 of it .12.
    assert name == "callback - memagent"
    assert distant.strip() in ("+.33 ±.11*", "+.33 ±.12*") and forward.strip() in ("-.33 ±.11*", "-.33 ±.12*")
    # Unpaired: .126 of 60 questions and .031 of 1,000 make .13.
    assert bound.strip() in (".00 ±.12u", ".00 ±.13u") and absent == "–"
    assert table.notes[1].startswith("u: not paired")
    assert len(difference_table(cells, [("callback", "memagent")]).notes) == 1


def test_differences_on_other_questions_and_unknown_agents_are_refused():
    cells = [Cell("a", "x", 8, results(1.0)), Cell("b", "x", 8, results(1.0, name="other"))]
    with pytest.raises(RememError, match="a and b, x 8: expected two agents' scores on the same questions"):
        difference_table(cells, [("a", "b")])
    with pytest.raises(RememError, match=r"name of an agent in the table \(a, b\), found c"):
        difference_table(cells, [("a", "c")])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([], "at least one cell"),
        ([Cell("a", "x", 8, accuracy=0.5, n=2)] * 2, "one cell of a, x 8, seed 0, found two"),
        ([Cell("a", "x", 8)], "results or an accuracy of a, x 8, seed 0, found neither"),
        ([Cell("a", "x", 8, accuracy=0.5)], "share from 0 to 1 of at least one question, found .* of 0"),
        ([Cell("a", "x", 8, results(1.0)), Cell("a", "x", 8, accuracy=0.5, n=2, seed=1)], "results of a, x 8, seed 1"),
    ],
)
def test_cells_that_cannot_be_measured_are_refused(cells, message):
    with pytest.raises(RememError, match=message):
        measured(cells)
