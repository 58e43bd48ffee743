from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.results.outcome import DriverTooSlow, Fate, Outcome, report


def outcome(latency_ms: list[float], *, lag_ms: float = 0.0, status: int = 200) -> Outcome:
    n = len(latency_ms)
    return Outcome(
        due_s=np.arange(n) / 100,
        lag_s=np.full(n, lag_ms / 1e3),
        latency_s=np.array(latency_ms) / 1e3,
        status=np.full(n, status),
        rows=np.full(n, 10),
        budget_s=np.full(n, np.inf),
        path=np.zeros(n, np.int16),
        paths=("a@cpu",),
        degraded=np.zeros(n, bool),
        errors={},
        begin_s=0.0,
        end_s=n / 100,
        connections=1,
        held_back=0,
    )


def test_percentiles_are_latencies_that_occurred() -> None:
    made = report(outcome([float(i) for i in range(1, 1001)]))
    assert (made.p50_ms, made.p90_ms, made.p99_ms, made.p99_9_ms, made.max_ms) == (501, 901, 991, 1000, 1000)
    assert made.rate == 100.0


def test_rejected_and_lost_requests_are_errors_and_do_not_improve_latency() -> None:
    mixed = outcome([5.0] * 8)
    mixed.status[:3] = 429
    mixed.latency_s[:3] = 1e-6
    mixed.status[3] = 0
    mixed.latency_s[3] = np.nan
    made = report(replace(mixed, errors={3: "connection lost"}))
    assert (made.requests, made.errors) == (8, 4)
    assert made.failures == {"HTTP 429": 3, "connection lost": 1}
    assert made.p50_ms == made.max_ms == 5.0


def test_run_without_a_good_answer_has_no_percentiles() -> None:
    made = report(outcome([1.0, 2.0], status=503))
    assert made.errors == 2
    assert made.p50_ms is made.p99_9_ms is None


def test_late_driver_is_an_error() -> None:
    late = outcome([5.0] * 200)
    late.lag_s[:3] = 0.0042
    with pytest.raises(DriverTooSlow, match=r"1% of 200 requests left 4.20 ms late or more, allowed are 1;"):
        late.require_punctual(0.001)
    late.require_punctual(0.005)
    assert report(late).lag_p99_ms == 4.2


def test_run_without_requests_is_an_error() -> None:
    with pytest.raises(LoadError, match="no request was due"):
        outcome([]).require_punctual(0.001)


@given(st.lists(st.floats(0, 10), max_size=30), st.floats(-1, 11), st.sets(st.integers(0, 29)))
def test_warm_up_is_left_out_and_the_rest_kept_as_it_was(
    due: list[float], start: float, lost: set[int]
) -> None:
    n = len(due)
    whole = replace(
        outcome([float(i) for i in range(n)]),
        due_s=np.sort(np.array(due, float)),
        errors={i: f"lost {i}" for i in lost if i < n},
    )
    rest = whole.since(start)
    kept = np.flatnonzero(whole.due_s >= start)
    assert rest.due_s.tolist() == whole.due_s[kept].tolist()
    assert rest.latency_s.tolist() == whole.latency_s[kept].tolist()
    assert {int(kept[i]): why for i, why in rest.errors.items()} == {
        i: why for i, why in whole.errors.items() if i in kept
    }


def test_fate_follows_status_and_the_requests_own_budget() -> None:
    mixed = outcome([5.0] * 8)
    mixed.status[2:] = [429, 504, 503, 500, 0, 200]
    mixed.latency_s[6] = np.nan
    mixed.budget_s[[0, 1, 7]] = [0.006, 0.004, 0.005]
    assert mixed.fate.tolist() == [
        *(Fate.OK, Fate.LATE, Fate.REJECTED, Fate.EXPIRED, Fate.UNAVAILABLE, Fate.OTHER, Fate.OTHER, Fate.OK)
    ]
