from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from benchmarks.fleet.baselines import LeastOutstanding, RoundRobin, StaleTwoChoices, WeightedRandom
from benchmarks.fleet.node_model import NodeKind
from benchmarks.fleet.simulator import Chooser, FleetOutcome, simulate_fleet
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.fleet.replica_choice import ReplicaChoice
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals

BUDGET_S = 0.05


def curve(row_s: float) -> LatencyModel:
    rows = (1, 1000)
    median = (1e-4, 1e-4 + 1000 * row_s)
    return LatencyModel(rows=rows, median_s=median, tail_s=tuple(1.3 * s for s in median))


PATHS = (
    PathSpec("table@cpu", "cpu", 0.2, curve(2e-5)),
    PathSpec("hybrid@cpu", "cpu", 0.22, curve(8e-5)),
    PathSpec("dhe@gpu", "gpu", 0.21, curve(1e-5)),
)


def kind(cpu: int = 2, gpu: int = 1) -> NodeKind:
    paths = [p for p in PATHS if gpu or p.device == "cpu"]
    return NodeKind(paths, {"cpu": cpu} | ({"gpu": gpu} if gpu else {}), BUDGET_S, 100, 1000)


def predicted(weights: list[float], dispatchers: int = 1) -> ReplicaChoice[int]:
    made: ReplicaChoice[int] = ReplicaChoice(Random(0), dispatchers=dispatchers)
    made.add_all(dict(enumerate(weights)), 0.0)
    return made


def run(kinds: list[NodeKind], chooser: Chooser, load: float, n: int, report_s: float = 0.05) -> FleetOutcome:
    rate = load * sum(k.capacity for k in kinds) / 100
    at = arrival_times(Arrivals(), rate, n / rate, np.random.default_rng(0))
    return simulate_fleet(kinds, [chooser], at, np.full(at.size, 100), BUDGET_S, report_s, 1)


@pytest.mark.parametrize("load", [0.4, 0.8, 1.2])
def test_a_node_gives_about_what_the_full_simulator_does(load: float) -> None:
    node = kind()
    rate = load * node.capacity / 100
    at = arrival_times(Arrivals(), rate, 2000 / rate, np.random.default_rng(0))
    rows = np.full(at.size, 100)
    lanes = [LaneSpec(f"l{i}", device, "thread") for i, device in enumerate(("cpu", "cpu", "gpu"))]
    limits = Limits(max_batch_rows=1000, max_queued_rows=1 << 20)
    trace = Trace(PATHS, limits, at, rows, BUDGET_S)
    outcomes = Simulator(trace, lanes, Routing(), np.random.default_rng(1)).run()
    simple = simulate_fleet([node], [WeightedRandom([1.0], Random(0))], at, rows, BUDGET_S, 0.05, 1)
    assert simple.information == pytest.approx(float(outcomes.information.sum()), rel=0.06)


def test_every_query_is_in_time_late_or_rejected() -> None:
    found = run([kind(), kind(gpu=0)], predicted([2.0, 1.0]), 1.5, 2000)
    assert found.rows == 100 * found.queries
    assert found.rows_in_time // 100 + found.late + found.rejected == found.queries
    assert found.rejected > 0


def test_quality_falls_before_queries_are_rejected() -> None:
    low, high = (run([kind()], WeightedRandom([1.0], Random(0)), load, 2000) for load in (0.2, 0.9))
    assert low.information / low.rows_in_time > high.information / high.rows_in_time
    assert high.rejected < 0.1 * high.queries


MIXED = [kind(), kind(cpu=4), kind(gpu=0), kind(cpu=1, gpu=0)] * 3


def test_predicted_completion_beats_blind_policies_on_mixed_nodes() -> None:
    weights = [k.capacity for k in MIXED]
    ours = run(MIXED, predicted(weights), 0.95, 8000, report_s=0.02)
    for other in (RoundRobin(weights, Random(0)), WeightedRandom(weights, Random(0))):
        assert ours.information > run(MIXED, other, 0.95, 8000, report_s=0.02).information


@pytest.mark.parametrize("report_s", [0.02, 0.1])
def test_old_reports_cost_less_where_they_are_continued(report_s: float) -> None:
    weights = [k.capacity for k in MIXED]
    ours = run(MIXED, predicted(weights), 0.9, 8000, report_s)
    stale = run(MIXED, StaleTwoChoices(weights, Random(0)), 0.9, 8000, report_s)
    assert ours.information > stale.information


def test_least_outstanding_takes_the_emptiest() -> None:
    made = LeastOutstanding([1.0] * 3, Random(0))
    for name in (0, 0, 1):
        made.record_sent(name, 0.0, 0.0)
    assert {made.pick(0.0) for _ in range(20)} == {2}
    made.record_sent(2, 0.0, 0.0)
    assert {made.pick(0.0) for _ in range(50)} == {1, 2}
    made.finished(0)
    made.finished(0)
    assert {made.pick(0.0) for _ in range(20)} == {0}


def test_round_robin_takes_turns_and_random_draws_by_weight() -> None:
    turns = RoundRobin([1.0, 9.0], Random(0))
    assert Counter(turns.pick(0.0) for _ in range(10)) == {0: 5, 1: 5}
    by_weight = WeightedRandom([1.0, 3.0], Random(0))
    drawn = Counter(by_weight.pick(0.0) for _ in range(2000))
    assert drawn[1] == pytest.approx(1500, abs=90)


def test_two_choices_as_reported_take_the_better() -> None:
    made = StaleTwoChoices([1.0, 1.0], Random(0))
    made.report(0, 0.0, 0.5, 0.1)
    picked = Counter(made.pick(0.0) for _ in range(400))
    # both draws are the same replica half of the time
    assert picked[1] == pytest.approx(300, abs=50)
