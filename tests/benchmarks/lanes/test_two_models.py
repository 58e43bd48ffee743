"""The benchmark of two models on one core: what its page says, and the bound that it compares with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.lanes.front_time import Front
from benchmarks.lanes.shared_bound import LaneUse, bound_of
from benchmarks.lanes.two_models import page
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Limits
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.trace import Trace

ROWS = 100
LATENCY = LatencyModel(rows=(1, 1024), median_s=(1e-4, 1e-2), tail_s=(1e-4, 1e-2))


def lane_use(pace: float) -> LaneUse:
    """100 batches of ROWS rows of either model."""
    batches = np.full(2, 100.0)
    return LaneUse(batches * pace * LATENCY.median(ROWS), batches, batches * ROWS)


def bound(rate: float, pace: float, front_s: float, answered: float = 1.0, answer_s: float = 0.0) -> float:
    due_s = np.arange(0, 1, 1 / rate)
    requests = due_s.size * 2
    front = Front(front_s, requests, round(answered * requests), answer_s)
    rows = np.full(due_s.size, ROWS, np.int64)
    trace = Trace((PathSpec("m", "cpu", 1.0, LATENCY),), Limits(), due_s, rows, 0.02)
    return bound_of([trace, trace], lane_use(pace), 1.0, front)


def test_the_bound_is_what_the_time_that_is_left_executes() -> None:
    # a hundredth of a second for 1,024 rows: 512 requests/s of either model at most
    assert bound(200, 1.0, 0.0) == pytest.approx(1.0)
    half = bound(1024, 1.0, 0.0)
    assert 0.45 < half < 0.6
    assert bound(1024, 2.0, 0.0) == pytest.approx(half / 2, rel=0.1)
    assert bound(1024, 1.0, 0.5) == pytest.approx(half / 2, rel=0.1)


def test_answers_added_by_the_bound_cost_the_difference_to_rejections() -> None:
    front = Front(0.5, 2000, 500, 8e-4)
    # 1,500 rejections took the .1 s that 500 answers of .8 ms left
    assert front.seconds(500) == 0.5
    assert front.seconds(1000) == pytest.approx(0.5 + 500 * (8e-4 - 0.1 / 1500))
    assert Front(0.5, 2000, 500, 1e-2).seconds(501) == pytest.approx(0.51)
    half, paid = (bound(1024, 1.0, 0.5, 0.1, answer_s) for answer_s in (0.0, 5e-4))
    assert 0.1 < paid < 0.9 * half


def test_a_page_has_the_medians_of_both_ways() -> None:
    def run(way: str, in_time: float) -> dict[str, Any]:
        shares = [in_time, in_time]
        found = {"load": 1.0, "way": way, "rates": [100.0, 200.0], "in_time": shares, "together": in_time}
        return found | {"bound": 0.8 if way == "shared" else None}

    models = [{"name": name, "slo_ms": 10.0, "rows": ROWS, "capacity": 200.0} for name in ("a", "b")]
    runs = [run("shared", share) for share in (0.2, 0.72, 0.9)] + [run("apart", 0.5)]
    about = {"turns": 3, "seconds": 4.0, "machine": "a core", "made": "2026-11-25T00:00", "command": "it"}
    lines = page({"models": models, "runs": runs, **about}).splitlines()
    (row,) = [line for line in lines if line.startswith("| 100%")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["100%", "100 + 200", *["72.0%"] * 3, *["50.0%"] * 3, "80.0%", "90.0%"]
