"""Random loads are drawn by number and compared with the best static path."""

from __future__ import annotations

import math

import pytest

from benchmarks.routing.random_loads import draw, main, ratio


def test_a_number_is_always_the_same_case() -> None:
    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_the_first_path_is_the_best_and_the_last_the_fastest() -> None:
    for number in range(20):
        paths = draw(number).paths
        assert [p.quality for p in paths] == sorted((p.quality for p in paths), reverse=True)


@pytest.mark.long
def test_a_case_is_compared_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = ratio(0)
    assert math.isnan(found) or 0 <= found < 10
    main(["--cases", "2"])
    assert "2 cases: 1% below" in capsys.readouterr().out
