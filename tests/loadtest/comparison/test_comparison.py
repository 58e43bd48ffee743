"""Tests the comparison without a server; tests/polyrec/cli/measure/test_bench.py runs it on a live one."""

from __future__ import annotations

import numpy as np
import pytest

from polyrec.loadtest.comparison.comparison import Conditions, Trial
from polyrec.loadtest.comparison.policy_server import policies_of
from polyrec.loadtest.comparison.simulated import completed, simulated
from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.results.figures import figures
from polyrec.models.errors import PolyrecError
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan
from polyrec.report.load.policies import best_run, highest_rate
from tests.loadtest.runs import outcome_of

QUALITY = {"good@cpu": 0.9, "fast@cpu": 0.8}
FAST = LatencyModel(rows=(1, 100), median_s=(0.0005, 0.001), tail_s=(0.0006, 0.0012))
GOOD = LatencyModel(rows=(1, 100), median_s=(0.004, 0.02), tail_s=(0.005, 0.025))


def plan(**more: object) -> Plan:
    path = {"bundle": "b", "runtime": "onnx"}
    fast = {"name": "fast@cpu", "quality": 0.8, "latency": FAST, **path}
    good = {"name": "good@cpu", "quality": 0.9, "latency": GOOD, **path}
    return Plan.model_validate({"paths": ({**good, **more}, fast)})


def test_policies_are_named_alone_or_in_groups() -> None:
    static = ("static:good@cpu", "static:fast@cpu")
    assert policies_of(plan(), "static") == static
    assert policies_of(plan(), "all") == (*static, "mprec", "deeprecsys", "priced")
    assert policies_of(plan(), "priced, static:fast@cpu,priced") == ("priced", "static:fast@cpu")
    with pytest.raises(LoadError, match="'static:slow' is unknown; known: all, static"):
        policies_of(plan(), "static:slow")


def test_a_margin_as_large_as_the_budget_is_an_error() -> None:
    with pytest.raises(LoadError, match="leaves the server nothing"):
        Conditions(slo_s=0.01, margin_s=0.01)


def test_the_best_run_met_the_slo() -> None:
    def run(rows: int, latency_s: float) -> object:
        return figures(outcome_of(np.arange(100) / 100, latency_s, rows=rows, seconds=1.0), QUALITY)

    trial = Trial(tried=[run(10, 0.005), run(20, 0.005)], ladder={100.0: [run(50, 0.009), run(90, 0.02)]})
    best = best_run(trial, 0.01, 0.99)
    assert best is not None
    assert best.goodput == pytest.approx(50 * 100)
    assert best_run(Trial(), 0.01, 0.99) is None
    # one lucky run of three keeps nothing
    lucky = Trial(ladder={100.0: [run(50, 0.009)], 200.0: [run(60, 0.009), run(20, 0.02), run(20, 0.02)]})
    assert best_run(lucky, 0.01, 0.99) == lucky.ladder[100.0][0]
    assert highest_rate(lucky, 0.01, 0.99) == 100.0
    assert highest_rate(Trial(), 0.01, 0.99) is None
    trial.capacity = 20.0
    assert highest_rate(trial, 0.01, 0.99) == 20.0
    assert trial.at(100.0) in trial.ladder[100.0]
    assert trial.at(7.0) is None


def test_a_simulated_run_has_the_figures_of_a_measured_one() -> None:
    due = np.sort(np.random.default_rng(1).uniform(0, 4, 400))
    rows = np.full(due.size, 20)
    calm = simulated(plan(), "static:good@cpu", due, rows, 4.0, slo_s=0.05, sent_budget_s=0.05, seed=0)
    found = figures(calm, QUALITY)
    assert found.quality == pytest.approx(0.9)
    assert found.p50_ms is not None
    assert 1e3 * GOOD.median(20) * 0.8 < found.p50_ms
    # three times what the good path can do: it refuses, and what it takes is in time
    crowded = np.sort(np.random.default_rng(1).uniform(0, 4, 2000))
    rows = np.full(crowded.size, 20)
    found = figures(
        simulated(plan(), "static:good@cpu", crowded, rows, 4.0, slo_s=0.05, sent_budget_s=0.05, seed=0),
        QUALITY,
    )
    assert found.refused + found.expired > 0.2
    priced = figures(simulated(plan(), "priced", crowded, rows, 4.0, 0.05, 0.05, 0), QUALITY)
    assert priced.ok > 0.98
    assert priced.mix.get("fast@cpu", 0) > 0.3


def test_missing_figures_of_a_plan_are_taken_from_the_server() -> None:
    lacking = plan(latency=None, quality=None)
    said = [{"name": "good@cpu", "quality": 0.91, "latency": GOOD.model_dump(mode="json")}]
    whole = completed(lacking, said)
    assert whole.paths[0].latency == GOOD
    assert whole.paths[0].quality == 0.91
    assert whole.paths[1].quality == 0.8
    with pytest.raises(PolyrecError, match="good@cpu"):
        simulated(lacking, "priced", np.zeros(1), np.ones(1, np.int64), 1.0, 0.05, 0.05, 0)
