"""Batching and admission control decide as their plain reference implementations (reference.py)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.routing.decision_cost import trace
from benchmarks.routing.machines import MACHINES
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing import batching
from polyrec.planner.routing.admission import admission
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice
from polyrec.planner.routing.policies.priced import Priced
from polyrec.planner.routing.query import NO_MISSES, Query
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.simulation.faults import Fault
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals
from tests.planner.routing import reference
from tests.planner.routing.random_events import BUDGET_S, MISSES, ROWS, SERVERS, STEPS, step
from tests.planner.routing.servers import POLICIES, RouterDriver, router

BURSTY = Arrivals(kind="bursty", factor=3.0, period_s=0.1, burst_s=0.02)
SEVERAL = [*SERVERS[1:], *((machine.paths, machine.lanes) for machine in MACHINES.values())]
REQUEST = st.tuples(ROWS, BUDGET_S, st.integers(0, 2), st.booleans(), st.one_of(st.just(NO_MISSES), MISSES))


FRONTS = st.sampled_from([(0.0, 0.0), (4e-4, 4e-6)])
"""Seconds of the front's time per query and per row, of which half is for its answer."""


def driven(
    server,
    steps: list[tuple],
    policy: str = "priced",
    slow: float = 1.0,
    tick: int = 7,
    front: tuple[float, float] = (0.0, 0.0),
) -> RouterDriver:
    """A router after these steps; batches of lane 0 take `slow` times their predicted time."""
    costs = {"query_s": front[0], "row_s": front[1]}
    driver = RouterDriver(router(*server, limits=Limits(max_batch_rows=1024), policy=policy, **costs))
    for i, one in enumerate(steps):
        step(driver, one, list(POLICIES))
        if i % tick == tick - 1:
            driver.router.tick(driver.now_s)
        driver.turn()
        for lane, dispatch in list(driver.running.items()):
            took_s = dispatch.median_s * (slow if lane == 0 else 1.0)
            if dispatch.started_s + took_s <= driver.now_s:
                driver.done(lane, took_s)
    return driver


@settings(max_examples=150, deadline=None)
@given(
    steps=STEPS,
    waiting=st.lists(REQUEST, max_size=12),
    server=st.sampled_from([SERVERS[0], *SEVERAL]),
    slow=st.sampled_from([0.7, 1.0, 4.0]),
    later_s=st.sampled_from([0.0, 1e-4, 2e-3]),
    front=FRONTS,
)
def test_batches_equal_the_reference(steps, waiting, server, slow, later_s, front):
    driver = driven(server, steps, slow=slow, front=front)
    for request in waiting:
        driver.submit(*request)
    driver.now_s += later_s
    state = driver.router.state
    for lane in state.lanes:
        if lane.in_flight is None:
            plain = reference.choose(state, lane, driver.now_s)
            assert batching.choose(state, lane, driver.now_s) == plain
            if plain is not None:
                dispatch = driver.router.next(lane.index, driver.now_s)
                if dispatch is not None:
                    driver.running[lane.index] = dispatch


class Compared(Priced):
    """The default policy; checks every decision against the reference."""

    choices = 0

    def choose(self, state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
        self.choices += 1
        plain = reference.choose(state, lane, now_s)
        choice = batching.choose(state, lane, now_s)
        assert choice == plain
        return choice

    def excess_s(self, state: RouterState, query: Query, now_s: float) -> float:
        plain = reference.excess_s(state, query, now_s)
        excess_s = admission.excess_s(state, query, now_s)
        assert excess_s == pytest.approx(plain, rel=1e-9) if plain > 0 else excess_s <= 0
        return excess_s


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("load", [0.1, 0.3, 0.7, 1.2])
@pytest.mark.parametrize("faults", [(), (Fault("slow", 1, 0.05, 0.1, 5.0), Fault("stall", 2, 0.1, 0.15))])
def test_every_decision_of_a_trace_equals_the_reference(machine, load, faults):
    server = MACHINES[machine]
    seconds = 0.2 if machine == "cpu" else 0.08 / load
    times, rows = trace(server, BURSTY, load, seconds, 0)
    rng = np.random.default_rng(0)
    budgets = rng.choice([0.004, 0.01, 0.01, 0.03], size=times.size)
    queries = Trace(server.paths, server.limits, times, rows, budgets)
    simulator = Simulator(queries, server.lanes, Routing(), rng, faults)
    policy = simulator.router.policy = Compared()
    simulator.run()
    assert policy.choices > 50


@settings(max_examples=150, deadline=None)
@given(
    steps=STEPS,
    waiting=st.lists(REQUEST, max_size=30),
    server=st.sampled_from(SEVERAL),
    policy=st.sampled_from(["priced", "static:table@cpu"]),
    slow=st.sampled_from([0.7, 1.0, 4.0]),
    later_s=st.sampled_from([0.0, 1e-4, 2e-3]),
    front=FRONTS,
)
def test_admission_equals_the_reference(steps, waiting, server, policy, slow, later_s, front):
    driver = driven(server, steps, policy, slow, front=front)
    state = driver.router.state
    for rows, budget_s, priority, best_only, misses in waiting:
        query = Query(rows, driver.now_s, driver.now_s + budget_s, priority, best_only)
        if state.usable and state.sole_inline_lane is None:
            plain = reference.excess_s(state, query, driver.now_s)
            excess_s = admission.excess_s(state, query, driver.now_s)
            assert (excess_s > 0) == (plain > 0)
            if excess_s > 0:
                assert excess_s == pytest.approx(plain, rel=1e-9)  # the Retry-After
        driver.submit(rows, budget_s, priority, best_only, misses)
        driver.turn()
        driver.now_s += later_s


@settings(max_examples=100, deadline=None)
@given(
    steps=STEPS,
    server=st.sampled_from([SERVERS[0], *SEVERAL]),
    slow=st.sampled_from([0.7, 1.0, 4.0]),
    rows=st.lists(st.integers(1, 4096), max_size=8),
)
def test_derived_state_equals_the_reference(steps, server, slow, rows):
    driver = driven(server, steps, slow=slow)
    state = driver.router.state
    assert state.executing_rows(driver.now_s) == reference.executing_rows(state, driver.now_s)
    for lane in state.lanes:
        assert lane.others == reference.others(state, lane)
        assert [option.path for option in lane.options] == lane.order
        for option in lane.options:
            assert (option.max_rows, option.merge_rows) == (
                lane.max_rows[option.path],
                lane.merge_rows[option.path],
            )
    state.update_lanes()  # memoized times keep earlier corrections
    for n in rows:
        assert state.service_time_s(n, 0) == reference.service_time_s(state, n)
        assert state.best_service_time_s(n) == reference.service_time_s(state, n, best_only=True)


def test_service_times_are_memoized_until_lanes_are_updated():
    driver = RouterDriver(router())
    state = driver.router.state
    before_s = state.service_time_s(147, 0)
    state.lanes[0].correction.tail[:] = state.lanes[1].correction.tail[:] = [2.0, 2.0]
    assert state.service_time_s(147, 0) == before_s
    state.update_lanes()
    assert state.service_time_s(147, 0) == pytest.approx(2 * before_s)
