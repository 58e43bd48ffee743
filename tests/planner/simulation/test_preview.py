"""A finished plan is simulated for its latency and highest rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, PlannedLane, PlannedPath, Routing
from polyrec.planner.simulation.preview import SLO_SHARE, preview
from polyrec.planner.traffic import Arrivals, Sizes, Traffic

FIXED_S, ROW_S, ROWS = 1e-4, 1e-5, 20
SIZES = Sizes(kind="fixed", mean=ROWS)


def plan(budget_ms: float = 20, lanes: int = 1, query_s: float = 0.0) -> Plan:
    median = (FIXED_S + ROW_S, FIXED_S + 1024 * ROW_S)
    latency = LatencyModel(rows=(1, 1024), median_s=median, tail_s=tuple(1.2 * m for m in median))
    path = PlannedPath(name="table@cpu", bundle=Path("table"), runtime="onnx", quality=0.3, latency=latency)
    return Plan(
        paths=(path,),
        lanes=tuple(PlannedLane(name=f"cpu{i}", kind="process") for i in range(lanes)),
        default_budget_ms=budget_ms,
        routing=Routing(query_s=query_s),
    )


@pytest.mark.parametrize(
    ("lanes", "tried"),
    [
        (1, 1.0),
        (1, 10.0),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, 0.1), (2, 0.1), (2, 1.0), (2, 10.0))),
    ],
)
def test_the_highest_rate_is_near_the_capacity(lanes: int, tried: float) -> None:
    capacity = lanes / (ROWS * ROW_S)  # the fixed time is shared by merged queries
    found = preview(plan(lanes=lanes), Traffic(rate=0.5 * capacity, sizes=SIZES), tried * capacity)
    assert found.in_budget == 1.0
    assert FIXED_S + ROWS * ROW_S < found.p50_ms / 1e3 < found.p99_ms / 1e3 < 0.02
    assert found.highest_rate is not None
    assert 0.75 * capacity < found.highest_rate < 1.02 * capacity
    assert found.quality_there == pytest.approx(0.3)


def test_reading_queries_counts() -> None:
    traffic = Traffic(rate=100, sizes=SIZES)
    found = preview(plan(query_s=1e-3), traffic, 100)
    assert found.highest_rate is not None
    assert 500 < found.highest_rate < 1050


def test_a_budget_that_no_query_meets_has_no_highest_rate() -> None:
    found = preview(plan(budget_ms=0.1), Traffic(rate=100, sizes=SIZES), 100)
    assert found.in_budget < SLO_SHARE
    assert found.highest_rate is None


def test_bursts_count_at_the_plans_traffic_only() -> None:
    capacity = 1 / (ROWS * ROW_S)
    bursts = Arrivals(kind="step", factor=4, start_s=0.3, burst_s=0.5)
    calm, bursty = (
        preview(plan(), Traffic(rate=0.5 * capacity, sizes=SIZES, arrivals=arrivals), capacity)
        for arrivals in (Arrivals(), bursts)
    )
    assert bursty.in_budget < SLO_SHARE < calm.in_budget
    assert bursty.highest_rate == calm.highest_rate
