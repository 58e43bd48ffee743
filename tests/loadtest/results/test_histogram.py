from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.results.histogram import STEPS, histogram, upper_edges


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=200))
def test_each_value_is_at_most_one_step_below_its_edge(values: list[float]) -> None:
    latency = np.array(values)
    edges = upper_edges(latency)
    assert (edges >= latency * (1 - 1e-9)).all()
    assert (edges <= latency * (1 + 1 / STEPS) * (1 + 1e-9)).all()


def test_a_percentile_of_the_histogram_is_that_of_the_values() -> None:
    latency = np.random.default_rng(1).lognormal(-6, 1, 20_000)
    made = histogram(latency)
    upper, count = np.array(made["upper_ms"]), np.array(made["count"])
    assert count.sum() == latency.size
    assert (np.diff(upper) > 0).all()
    p99 = upper[np.searchsorted(np.cumsum(count), 0.99 * latency.size)]
    assert 1.0 <= p99 / (1e3 * np.quantile(latency, 0.99)) <= 1 + 1.1 / STEPS
