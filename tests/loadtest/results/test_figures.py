from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.results.figures import figures, timeline
from tests.loadtest.runs import outcome_of

QUALITY = {"good@cpu": 0.9, "fast@cpu": 0.8}


def test_goodput_and_correct_predictions_count_rows_in_budget_by_the_path_that_answered() -> None:
    run = outcome_of(
        [0.1, 0.2, 0.3, 0.4, 0.5],
        [0.005, 0.005, 0.02, 0.001, 0.005],
        status=[200, 200, 200, 429, 200],
        rows=[10, 20, 40, 80, 30],
        path=[0, 1, 1, 0, 0],
        degraded=[False, True, True, False, False],
        seconds=2.0,
    )
    found = figures(run, QUALITY)
    assert found.goodput == (10 + 20 + 30) / 2
    assert found.information == pytest.approx((10 * 0.9 + 20 * 0.8 + 30 * 0.9) / 2)
    assert found.quality == pytest.approx((10 * 0.9 + 20 * 0.8 + 30 * 0.9) / 60)
    assert (found.ok, found.late, found.refused) == (0.6, 0.2, 0.2)
    assert found.degraded == 0.4
    assert found.mix == {"fast@cpu": pytest.approx(0.6), "good@cpu": pytest.approx(0.4)}
    # rejected requests neither have a latency nor flatter it
    assert found.max_ms == 20.0


def test_the_slo_needs_both_the_percentile_and_the_share() -> None:
    within = figures(outcome_of(np.arange(200) / 200, 0.005), QUALITY)
    assert within.meets_slo(0.01)
    assert not within.meets_slo(0.004)
    rejected = figures(outcome_of(np.arange(200) / 200, 0.005, status=[429] * 3 + [200] * 197), QUALITY)
    assert rejected.p99_ms == 5.0
    assert not rejected.meets_slo(0.01)
    assert rejected.meets_slo(0.01, share=0.98)


def test_a_path_of_unknown_quality_leaves_correct_predictions_undefined() -> None:
    found = figures(outcome_of([0.1, 0.2], path=[0, 1]), {"good@cpu": 0.9})
    assert found.information is None
    assert found.goodput > 0


def test_run_without_requests_or_answers_has_figures() -> None:
    assert figures(outcome_of([], seconds=1.0), QUALITY).ok == 0.0
    rejected = figures(outcome_of([0.1, 0.2], status=429), QUALITY)
    assert (rejected.p99_ms, rejected.goodput, rejected.refused) == (None, 0.0, 1.0)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 9.99),
            st.floats(0, 0.1),
            st.sampled_from([200, 429, 504, 503, 500, 0]),
            st.booleans(),
        ),
        min_size=1,
        max_size=400,
    )
)
def test_a_timeline_adds_up_to_the_figures(requests: list[tuple[float, float, int, bool]]) -> None:
    requests.sort(key=lambda r: r[0])
    due, latency, status, fast = zip(*requests, strict=True)
    run = outcome_of(due, latency, status=status, path=[int(f) for f in fast], seconds=10.0)
    whole, line = figures(run, QUALITY), timeline(run, QUALITY, 20)
    assert line.rate.sum() * line.slice_s == pytest.approx(len(requests))
    assert line.fates.sum() * line.slice_s == pytest.approx(len(requests))
    assert line.goodput.mean() == pytest.approx(whole.goodput)
    answered = np.isfinite(line.mix[0])
    assert np.allclose(line.mix.sum(0)[answered], 1.0)


def test_requests_in_flight_are_those_sent_and_not_answered() -> None:
    run = outcome_of(np.arange(200) / 100, 0.5, seconds=4.0)
    line = timeline(run, QUALITY, 4)
    # half a second of a hundred a second; then no more come
    assert line.in_flight.tolist() == [50.0, 50.0, 0.0, 0.0]
