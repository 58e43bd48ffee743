from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from polyrec.models.evaluation.comparison import Interval
from polyrec.report.quality.comparison import ModelComparison
from polyrec.report.quality.wording import difference, findings, joined, mflop, number, table

Make = Callable[..., ModelComparison]


def test_numbers_are_short_and_undefined_ones_a_dash() -> None:
    assert number(0.8479123) == "0.84791"
    assert number(None) == number(math.nan) == "\N{EN DASH}"
    assert mflop(83_456) == "0.0835"


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(0.00213, 0.0012, 0.00301), "better by 0.00213 (0.00120 to 0.00301)"),
        (Interval(-0.002, -0.003, -0.001), "worse by 0.00200 (0.00100 to 0.00300)"),
        (Interval(0.001, -0.001, 0.003), "no difference shown (\N{MINUS SIGN}0.00100 to +0.00300)"),
        (Interval(3e-6, 1.2e-6, 4e-6), "better by 0.000003 (0.000001 to 0.000004)"),
        (Interval(0.0, 0.0, 0.0), "identical"),
        (Interval(math.nan, math.nan, math.nan), "not defined"),
    ],
)
def test_a_difference_in_words(interval: Interval, words: str) -> None:
    assert difference("auc", interval) == words


def test_lower_log_loss_is_better() -> None:
    assert difference("log_loss", Interval(-0.002, -0.003, -0.001)).startswith("better by 0.00200")


def test_findings_name_real_differences(comparison: ModelComparison) -> None:
    by = {line.split()[0]: line for line in findings(comparison)}
    assert by["same"] == "same predicts the same as table."
    assert by["better"].startswith("better is better than table in information, AUC and log-loss")
    assert by["worse"].startswith("worse is worse than table in information, AUC, log-loss")
    assert by["other"] == "other shows no difference to table in information, AUC, log-loss and accuracy."
    assert "table" not in by


def test_the_table_compares_only_where_there_is_something_to_compare(make: Make) -> None:
    one = table(make("a")).head
    two = table(make("a", "b")).head
    assert set(two) - set(one) == {"AUC against a", "information against a"}
    assert "MRR" in table(make("a", grouped=True)).head
    assert "MRR" not in one


def test_lists_read_as_prose() -> None:
    assert [joined(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
