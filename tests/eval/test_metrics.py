"""Metrics against the official HotpotQA scorer's behaviour, by hand-made cases, and against their own properties."""

import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remem_jax.errors import RememError
from remem_jax.eval.metrics import (
    accuracy,
    bootstrap_interval,
    exact_match,
    f1,
    normalise,
    paired_difference,
    sub_exact_match,
    sub_exact_match_published,
)
from remem_jax.eval.normalise import fold, unwrap

METRICS = [exact_match, f1, sub_exact_match, sub_exact_match_published]
SHORT = st.lists(st.sampled_from(["a", "the", "yes", "no", "paris", "new", "york", "York,", "?", " "]), max_size=6)
TEXT = SHORT.map(" ".join) | st.text(max_size=12)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel\tTower!", "eiffel tower"),
        ("An apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("Jean-Paul", "jeanpaul"),
        ("$1,000", "1000"),
        ("theatre", "theatre"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("\uff21\uff22\uff23 \ufb01n", "abc fin"),
        ("\u201cYes\u201d\u2014indeed", "yesindeed"),
        ("\\text{New York}", "new york"),
        ("\\textbf{\\text{The} Beatles}", "beatles"),
        ("x_1 \\mathrm{ kg}", "x1 kg"),
        ("The", "the"),
        ("The A!", "the a"),
        (" ?! ", "?!"),
        ("", ""),
    ],
)
def test_an_answer_has_this_normal_form(text, normal):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("\\text{a{b}c}", "a{b}c"),
        ("\\text {a}", "a"),
        ("\\text{a \\} b}", "a \\} b"),
        ("\\text{open", "\\text{open"),
        ("a} \\text{b}", "a} b"),
        ("\\textit{a}", "\\textit{a}"),
        ("\\text{\\text{open}", "\\text{open"),
    ],
)
def test_wrappers_are_removed_only_where_their_braces_close(text, bare):
    assert unwrap(text) == bare


def test_a_decomposed_accent_equals_the_composed_one_also_in_capitals():
    assert normalise("Cafe\u0301") == normalise("CAF\u00c9") == "caf\u00e9"
    assert normalise("\u03aa\u0301") == normalise("\u0390")


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("the Eiffel Tower.", "Eiffel Tower", 1),
        ("Eiffel", "Eiffel Tower", 0),
        ("Yes.", "yes", 1),
        ("yes it is", "yes", 0),
        ("10,000", "10000", 1),
        ("?!", " ?! ", 1),
        ("?", "?!", 0),
        ("", "?!", 0),
        ("\\text{?!}", "?!", 0),
        ("The The", "the the", 1),
        ("The", "The The", 0),
    ],
)
def test_exact_match_is_equality_of_normal_forms(prediction, gold, expected):
    assert exact_match(prediction, [gold]) == expected


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("New York City", "New York", 0.8),  # precision 2/3, recall 1
        ("the city of New York", "New York", 2 * 0.5 * 1 / 1.5),  # 'the' is dropped: 2 of 4 words
        ("no no maybe", "no maybe", 0.8),  # repeats count as often as both sides have them
        ("yes", "yes", 1.0),
        ("yes it is", "yes", 0.0),
        ("yes", "yes it is", 0.0),
        ("noanswer", "no answer", 0.0),
        ("London", "Paris", 0.0),
        ("? !", "?", 0.0),
        ("?", "?", 1.0),
    ],
)
def test_f1_counts_common_words_and_is_all_or_nothing_for_yes_and_no(prediction, gold, expected):
    assert f1(prediction, [gold]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "gold", "words", "characters"),
    [
        ("It is the Eiffel Tower in Paris", "Eiffel Tower", 1, 1),
        ("Eiffel", "Eiffel Tower", 0, 1),
        ("Norway", "no", 0, 1),
        ("York New", "New York", 0, 0),
        ("New old York", "New York", 0, 0),
        ("New, York", "New York", 1, 1),
        ("? ! ?", "! ?", 0, 1),
        ("! ?", "! ?", 1, 1),
        ("", "Paris", 0, 1),
        ("", "", 0, 1),
    ],
)
def test_sub_exact_match_needs_whole_words_and_the_published_one_only_characters(prediction, gold, words, characters):
    assert sub_exact_match(prediction, [gold]) == words
    assert sub_exact_match_published(prediction, [gold]) == characters


@pytest.mark.parametrize("metric", METRICS)
def test_a_bare_string_is_one_answer_none_scores_zero_and_no_answer_is_an_error(metric):
    assert metric("Paris", "Paris") == 1
    assert metric("P", "Paris") == (metric is sub_exact_match_published)
    assert metric(None, ["Paris"]) == 0
    with pytest.raises(RememError, match="at least one gold answer"):
        metric(None, [])


@pytest.mark.parametrize("metric", METRICS)
@given(prediction=TEXT, answers=st.lists(TEXT, min_size=1, max_size=3))
def test_a_metric_is_the_best_over_its_answers_and_stays_between_zero_and_one(metric, prediction, answers):
    each = [metric(prediction, [answer]) for answer in answers]
    assert metric(prediction, answers) == max(each)
    assert all(0 <= score <= 1 for score in each)


@given(left=TEXT, right=TEXT)
def test_f1_is_symmetric_and_exact_match_implies_all_the_others(left, right):
    assert f1(left, [right]) == f1(right, [left])
    if exact_match(left, [right]) and right.strip():
        assert f1(left, [right]) == sub_exact_match(left, [right]) == sub_exact_match_published(left, [right]) == 1


def hotpot_words(text: str) -> list[str]:
    """Words as the official HotpotQA scorer sees them: lower case, ASCII punctuation deleted, articles dropped."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return [word for word in bare.split() if word not in {"a", "an", "the"}]


def hotpot_scores(prediction: str, gold: str) -> tuple[float, float]:
    """Exact match and F1 by the official scorer's rules: yes, no and noanswer are all or nothing."""
    left, right = hotpot_words(prediction), hotpot_words(gold)
    same = float(left == right)
    closed = {"yes", "no", "noanswer"}
    if " ".join(left) in closed or " ".join(right) in closed:
        return same, same
    shared = sum(min(left.count(word), right.count(word)) for word in set(left))
    if not shared:
        return same, 0.0
    precision, recall = shared / len(left), shared / len(right)
    return same, 2 * precision * recall / (precision + recall)


PLAIN = st.lists(
    st.sampled_from(
        ["The", "a", "an", "yes", "no", "No.", "noanswer", "New", "york", "York,", "U.S.", "(1,000)", "it's"]
    ),
    min_size=1,
    max_size=5,
).map(" ".join)


@given(prediction=PLAIN, gold=PLAIN)
def test_plain_texts_score_as_by_the_official_hotpotqa_rules(prediction, gold):
    if hotpot_words(prediction) and hotpot_words(gold):  # articles alone stay words here, and vanish there
        expected = hotpot_scores(prediction, gold)
        assert (exact_match(prediction, gold), f1(prediction, gold)) == pytest.approx(expected, abs=1e-12)


@given(text=TEXT)
def test_normalising_twice_is_normalising_once_and_leaves_no_punctuation_in_a_normal_form(text):
    assert normalise(normalise(text)) == normalise(text)
    assert not any(unicodedata.category(char)[0] in "PS" for char in fold(text))


@given(gold=st.lists(st.sampled_from(["new", "York", "Paris,"]), min_size=1, max_size=3), left=SHORT, right=SHORT)
def test_words_put_around_an_answer_keep_its_sub_exact_match_and_letters_put_on_it_do_not(gold, left, right):
    answer = " ".join(gold)
    assert sub_exact_match(" ".join(["x", *left, answer, *right, "x"]), answer) == 1
    assert sub_exact_match(f"x{answer}", answer) == 0


def test_eighty_of_128_with_one_failure_is_62_50_and_the_failure_is_told():
    summary = accuracy([1.0] * 80 + [0.0] * 47 + [None])
    assert (summary.percent, summary.n, summary.failed) == (62.5, 128, 1)
    assert str(summary).startswith("62.50 [") and "n=128; 1 failed, counted as wrong" in str(summary)
    assert "failed" not in str(accuracy([1.0, 0.0]))


def test_the_bootstrap_interval_has_the_width_of_theory_and_repeats_with_its_seed():
    scores = [1.0] * 80 + [0.0] * 48
    low, high = bootstrap_interval(scores)
    # Standard error sqrt(.625 * .375 / 128) = .0428, so 1.96 of them on either side of .625.
    assert low == pytest.approx(0.625 - 0.0839, abs=0.012) and high == pytest.approx(0.625 + 0.0839, abs=0.012)
    assert bootstrap_interval(scores) == (low, high) != bootstrap_interval(scores, seed=1)
    assert bootstrap_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)
    narrow = bootstrap_interval(scores, level=0.5)
    assert low < narrow[0] < narrow[1] < high
    with pytest.raises(RememError, match="at least one question"):
        bootstrap_interval([])


def test_paired_differences_cancel_what_both_agents_share():
    hard = [0.0, 1.0] * 32
    difference = paired_difference([1.0, *hard], [0.0, *hard])
    assert difference.percent == pytest.approx(100 / 65)
    assert difference.low == 0.0 and difference.high < 6
    always = paired_difference([1.0, 1.0, None], [0.5, 0.5, None])
    assert always.percent == pytest.approx(100 / 3) and always.failed == 1
    with pytest.raises(RememError, match="found 1 and 2"):
        paired_difference([1.0], [1.0, 0.0])
