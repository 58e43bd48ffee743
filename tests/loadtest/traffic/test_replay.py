from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.traffic.replay import read_times, replay
from polyrec.models.schema.schema import load_schema


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.floats(0.1, 1000))
def test_requests_leave_in_the_order_and_rhythm_of_their_times(seconds: list[int], speed: float) -> None:
    times = np.repeat(np.array(seconds, np.float64), 3)
    made = replay(times, np.arange(0, times.size, 3), speed=speed)
    assert sorted(made.query.tolist()) == list(range(len(seconds)))
    assert made.due_s[0] == 0
    assert (np.diff(made.due_s) >= 0).all()
    # whole seconds are spread over the second that they name
    then = np.array(seconds)[made.query]
    assert (np.diff(then) >= 0).all()
    assert np.abs(made.due_s * speed - (then - then[0])).max() <= 1


def test_a_rate_sets_the_speed() -> None:
    times = np.arange(0.0, 600.0, 0.5) + 0.25
    made = replay(times, np.arange(times.size), rate=100)
    assert times.size / made.due_s[-1] == pytest.approx(100)
    assert made.first(2.0).due_s.size == pytest.approx(200, abs=1)


def test_times_that_cannot_be_replayed_are_an_error() -> None:
    with pytest.raises(LoadError, match="no requests"):
        replay(np.empty(0), np.empty(0, np.int64))
    with pytest.raises(LoadError, match="all requests have the same time"):
        replay(np.full(3, 7.5), np.arange(3), rate=10)


def test_times_come_from_a_column_of_the_data(clicks: Path) -> None:
    schema = load_schema("trivago")
    assert read_times(clicks, schema, "request_id", 100).size == 100
    with pytest.raises(LoadError, match="has no column 'when' to replay by; it has request_id"):
        read_times(clicks, schema, "when", 100)


def test_trivago_is_replayed_by_its_own_timestamps(shared_data: Path) -> None:
    schema, file = load_schema("trivago"), shared_data / "trivago" / "impressions.parquet"
    times = read_times(file, schema, "timestamp", 5000)
    made = replay(times, np.arange(0, 5000, 25), rate=50)
    assert made.recorded_s > 60
    assert made.due_s[-1] == pytest.approx(4.0)
