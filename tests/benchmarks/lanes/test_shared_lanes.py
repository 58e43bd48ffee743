"""Models that share lanes, in virtual time: every query ends, shares hold, and sharing beats dividing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lanes.shared_lanes import SharedModel, SharedOutcomes, simulate_shared
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.planner.simulation.bound import joint_bound
from polyrec.planner.simulation.costs import BatchCost, Costs
from polyrec.planner.simulation.outcomes import Outcomes, Status
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes
from tests.planner.routing.servers import CPU, TABLE

CAPACITY = 4096 / TABLE.latency.median(4096)
"""Rows per second of a lane, in large batches on the faster path."""


def trace(load: float, budget_s: float, seed: int, seconds: float = 2.0) -> Trace:
    """load: in lanes."""
    random = np.random.default_rng(seed)
    sizes = Sizes(kind="heavy", mean=60)
    times = arrival_times(Arrivals(), load * CAPACITY / 60, seconds, random)
    return Trace(CPU, Limits(), times, sizes.sample(times.size, random), budget_s)


def model(traffic: Trace, lanes: int, share: ModelShare | None = None) -> SharedModel:
    """Returns a model with each lane on its own core, the same lanes for every model."""
    return SharedModel(
        traffic,
        tuple(LaneSpec(f"cpu{i}", "cpu", "process") for i in range(lanes)),
        tuple(LanePlace("cpu", "process", frozenset({i})) for i in range(lanes)),
        share or ModelShare(),
        Routing(),
    )


COSTS = Costs(
    query_s=1e-4, row_s=2e-7, refuse_s=5e-5, turn_s=7e-5, batches={"table@cpu": BatchCost(query_s=5e-5)}
)


def on_the_loop(traffic: Trace, costs: Costs = COSTS) -> SharedModel:
    """A model with one inline lane."""
    inline = LaneSpec("cpu0", "cpu", "inline"), LanePlace("cpu", "inline")
    return SharedModel(traffic, inline[:1], inline[1:], ModelShare(), Routing(), costs)


def simulated(models: list[SharedModel]) -> SharedOutcomes:
    return simulate_shared(models, frozenset(range(2)), np.random.default_rng(1))


def in_time(outcomes: Outcomes) -> float:
    answered = (outcomes.status == Status.ANSWERED) & (outcomes.finish_s <= outcomes.deadline_s)
    return float(answered.mean())


@settings(max_examples=10, deadline=None)
@given(
    loads=st.tuples(st.floats(0.05, 1.5), st.floats(0.05, 1.5)),
    budgets_s=st.tuples(st.floats(0.005, 0.1), st.floats(0.005, 0.1)),
    lanes=st.integers(1, 2),
    share=st.floats(0.0, 1.0),
)
def test_every_query_ends_and_no_lane_executes_two_batches(loads, budgets_s, lanes, share):
    shares = ModelShare(guaranteed=share), ModelShare(weight=3.0)
    models = [
        model(trace(load, budget_s, seed, 0.3), lanes, of)
        for seed, (load, budget_s, of) in enumerate(zip(loads, budgets_s, shares, strict=True))
    ]
    found = simulated(models)
    assert all((outcomes.status != Status.PENDING).all() for outcomes in found.outcomes)
    end_s = max(float(outcomes.finish_s.max()) for outcomes in found.outcomes)
    assert sum(found.busy_s) <= lanes * end_s + 1e-6


@settings(max_examples=15, deadline=None)
@given(load=st.floats(0.05, 2.0), budget_s=st.floats(0.005, 0.05), inline=st.booleans())
def test_a_model_alone_is_simulated_as_on_a_server_of_its_own(load, budget_s, inline):
    alone = on_the_loop(trace(load, budget_s, 3, 0.4))
    if not inline:
        process = LaneSpec("cpu0", "cpu", "process"), LanePlace("cpu", "process")
        alone = replace(alone, lanes=process[:1], places=process[1:])
    (found,) = simulated([alone]).outcomes
    rng = np.random.default_rng(1)
    server = Simulator(alone.trace, alone.lanes, alone.routing, rng, costs=COSTS).run()
    assert np.array_equal(found.status, server.status)
    np.testing.assert_allclose(found.finish_s, server.finish_s)


def test_one_core_pays_for_batches_and_for_reading_and_answering_both_models():
    traces = [trace(0.7, 0.01, 0), trace(0.7, 0.025, 1)]
    found = simulated([on_the_loop(each) for each in traces])
    end_s = max(float(outcomes.finish_s.max()) for outcomes in found.outcomes)
    answered_s = sum(
        float((COSTS.query_s + COSTS.row_s * o.rows)[o.status == Status.ANSWERED].sum())
        for o in found.outcomes
    )
    turns_s = COSTS.turn_s * sum(found.batches)
    assert answered_s + turns_s < found.front_s
    assert 0.97 * end_s < sum(found.busy_s) + found.front_s <= end_s + 1e-6
    free = simulated([on_the_loop(each, Costs()) for each in traces])
    assert free.front_s == 0
    assert all(in_time(a) < in_time(b) for a, b in zip(found.outcomes, free.outcomes, strict=True))


def test_overload_of_one_model_leaves_the_others_guaranteed_time():
    calm = trace(0.4, 0.02, 0)
    alone = in_time(simulated([model(calm, 1)]).outcomes[0])
    for share in (ModelShare(), ModelShare(guaranteed=0.6)):
        flooded = simulated([model(calm, 1, share), model(trace(3.0, 0.1, 1), 1)])
        assert in_time(flooded.outcomes[0]) > alone - 0.02
        # and the flood has what is left
        assert sum(flooded.busy_s) > 1.8


@pytest.mark.long
def test_past_capacity_time_follows_shares_then_weights():
    def busy(*shares: ModelShare) -> float:
        found = simulated([model(trace(2.0, 0.05, i), 1, share) for i, share in enumerate(shares)])
        return found.busy_s[0] / sum(found.busy_s)

    assert busy(ModelShare(), ModelShare()) == pytest.approx(0.5, abs=0.05)
    assert busy(ModelShare(guaranteed=0.2), ModelShare(guaranteed=0.8)) == pytest.approx(0.2, abs=0.05)
    assert busy(ModelShare(weight=2.0), ModelShare()) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(
    ("load", "least"),
    [
        pytest.param(0.6, 0.97, marks=pytest.mark.long),
        (0.8, 0.95),
        pytest.param(1.0, 0.92, marks=pytest.mark.long),
    ],
)
def test_sharing_comes_close_to_the_bound_and_beats_half_of_the_machine_each(load: float, least: float):
    """Two lanes; one model has three quarters of the traffic."""
    traces = [trace(1.5 * load, 0.02, 0), trace(0.5 * load, 0.1, 1)]
    most = joint_bound(traces, {"cpu": 2}).information
    shared = sum(o.information.sum() for o in simulated([model(t, 2) for t in traces]).outcomes)
    apart = sum(simulated([model(t, 1)]).outcomes[0].information.sum() for t in traces)
    assert least * most < shared <= most * (1 + 1e-9)
    assert shared > 0.999 * apart  # at 60% both answer nearly everything


def test_the_joint_bound_is_no_less_than_that_of_its_parts_and_no_more_than_their_sum():
    traces = [trace(0.8, 0.02, 0, 0.5), trace(0.8, 0.04, 1, 0.5)]
    together = joint_bound(traces, {"cpu": 1}).information
    alone = [joint_bound([one], {"cpu": 1}).information for one in traces]
    assert max(alone) <= together <= sum(alone) + 1e-6
    guaranteed = joint_bound(traces, {"cpu": 1}, guaranteed=(0.5, 0.5)).information
    assert 0.9 * together <= guaranteed <= together + 1e-6
    calm = joint_bound([trace(0.1, 0.02, 0, 0.5), traces[1]], {"cpu": 1})
    unmoved = joint_bound([trace(0.1, 0.02, 0, 0.5), traces[1]], {"cpu": 1}, guaranteed=(0.5, 0.5))
    assert unmoved.information == pytest.approx(calm.information, rel=1e-3)
