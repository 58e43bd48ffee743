"""Tables of latency: the latency model's own numbers, and the batches that pay."""

from itertools import pairwise
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.latency.latency_table import Curve, in_batches
from tests.planner.routing.worlds import line


@st.composite
def models(draw):
    rows = sorted(draw(st.sets(st.integers(1, 600), min_size=1, max_size=5)))
    median = sorted(draw(st.lists(st.floats(1e-5, 1e-2), min_size=len(rows), max_size=len(rows))))
    tail = [draw(st.floats(1.0, 3.0)) * median[-1] + m for m in median]
    return LatencyModel(rows=tuple(rows), median_s=tuple(median), tail_s=tuple(sorted(tail)))


@given(model=models(), rows=st.integers(1, 500))
def test_tables_are_the_latency_model(model, rows):
    curve = Curve(model, 500)
    assert curve.median[rows] == pytest.approx(model.median(rows), rel=1e-9)
    assert curve.tail[rows] == pytest.approx(model.tail(rows), rel=1e-9)


@given(model=models())
def test_tables_never_fall_with_rows_and_spread_is_between_them(model):
    """Who is too slow for some rows is for more of them: late binding counts on it."""
    curve = Curve(model, 700)
    assert all(a <= b for a, b in pairwise(curve.median))
    assert all(a <= b for a, b in pairwise(curve.tail))
    assert curve.spread == [log(tail / median) for tail, median in zip(curve.tail, curve.median, strict=True)]


@given(model=models(), seconds=st.floats(0, 2e-2))
def test_most_rows_within_a_time(model, seconds):
    curve = Curve(model, 500)
    rows = curve.rows_safe_within(seconds)
    assert rows == 0 or curve.tail[rows] <= seconds
    assert rows == 500 or curve.tail[rows + 1] > seconds


def test_merging_pays_until_the_fixed_cost_is_spread():
    curve = Curve(line(1e-4, 1e-6), 2000)
    least = curve.median[2000] / 2000
    assert curve.median[curve.efficient_rows] / curve.efficient_rows <= 1.02 * least
    assert curve.median[curve.efficient_rows - 1] / (curve.efficient_rows - 1) > 1.02 * least


def test_merging_does_not_pay_where_cost_is_by_the_row():
    model = LatencyModel(rows=(1, 2), median_s=(1e-5, 2e-5), tail_s=(1e-5, 2e-5))
    assert Curve(model, 100).efficient_rows == 1


def test_rows_beyond_a_batch_take_further_ones():
    seconds = [1.0, 1.0, 1.5, 2.0]
    assert [in_batches(seconds, rows, 3) for rows in (1, 3, 4, 8)] == [1.0, 2.0, 3.0, 5.5]
