"""Latency tables: equal to the latency model, with the efficient batch size."""

from itertools import pairwise
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import lognorm, norm

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.latency.latency_table import LatencyTable, in_batches
from tests.planner.routing.servers import line


@st.composite
def models(draw):
    rows = sorted(draw(st.sets(st.integers(1, 600), min_size=1, max_size=5)))
    median = sorted(draw(st.lists(st.floats(1e-5, 1e-2), min_size=len(rows), max_size=len(rows))))
    tail = [draw(st.floats(1.0, 3.0)) * median[-1] + m for m in median]
    return LatencyModel(rows=tuple(rows), median_s=tuple(median), tail_s=tuple(sorted(tail)))


@given(model=models(), rows=st.integers(1, 500))
def test_tables_are_the_latency_model(model, rows):
    latency = LatencyTable(model, 500)
    assert latency.median[rows] == pytest.approx(model.median(rows), rel=1e-9)
    assert latency.tail[rows] == pytest.approx(model.tail(rows), rel=1e-9)


@given(model=models())
def test_tables_never_fall_with_rows(model):
    """Batching relies on it: a path too slow for some rows is too slow for more."""
    latency = LatencyTable(model, 700)
    assert all(a <= b for a, b in pairwise(latency.median))
    assert all(a <= b for a, b in pairwise(latency.tail))
    assert latency.spread == [
        log(tail / median) for tail, median in zip(latency.tail, latency.median, strict=True)
    ]


@given(model=models(), seconds=st.floats(0, 2e-2))
def test_maximum_rows_within_a_time(model, seconds):
    latency = LatencyTable(model, 500)
    for found, table in (
        (latency.max_rows_at_tail(seconds), latency.tail),
        (latency.max_rows_at_median(seconds), latency.median),
    ):
        assert found == max((n for n in range(1, 501) if table[n] <= seconds), default=0)


@pytest.mark.parametrize("ratio", [1.05, 1.5, 4.0])
def test_mean_and_safe_time_are_those_of_a_lognormal(ratio):
    median_s = 1e-3
    latency = LatencyTable(LatencyModel(rows=(1,), median_s=(median_s,), tail_s=(ratio * median_s,)), 10)
    times = lognorm(log(ratio) / norm.ppf(0.99), scale=median_s)
    assert times.ppf(0.99) == pytest.approx(latency.tail[1])
    assert median_s * latency.mean_factor == pytest.approx(times.mean())
    assert latency.tail[1] * latency.safe_factor == pytest.approx(times.ppf(norm.cdf(3.3)), rel=0.01)


def test_batches_are_efficient_once_the_fixed_cost_is_spread():
    latency = LatencyTable(line(1e-4, 1e-6), 2000)
    least = latency.median[2000] / 2000
    assert latency.median[latency.efficient_rows] / latency.efficient_rows <= 1.02 * least
    assert latency.median[latency.efficient_rows - 1] / (latency.efficient_rows - 1) > 1.02 * least


def test_one_row_is_efficient_without_a_fixed_cost():
    model = LatencyModel(rows=(1, 2), median_s=(1e-5, 2e-5), tail_s=(1e-5, 2e-5))
    assert LatencyTable(model, 100).efficient_rows == 1


def test_rows_beyond_a_batch_take_further_ones():
    seconds = [1.0, 1.0, 1.5, 2.0]
    assert [in_batches(seconds, rows, 3) for rows in (1, 3, 4, 8)] == [1.0, 2.0, 3.0, 5.5]


@given(
    model=models(),
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=8),
    limits=st.tuples(st.integers(1, 500), st.integers(1, 500)),
)
def test_seconds_per_row_of_merged_and_single_queries(model, sizes, limits):
    batch_rows, max_rows = sorted(limits)
    latency = LatencyTable(model, 500)
    seconds = 0.0
    for rows in sizes:
        batch = batch_rows if rows <= batch_rows else min(rows, max_rows)
        seconds += rows / batch * model.median(batch)
    mean_row_s = latency.mean_row_s(sizes, batch_rows, max_rows)
    assert mean_row_s == pytest.approx(latency.mean_factor * seconds / sum(sizes))
