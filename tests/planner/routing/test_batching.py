"""Late binding and the door: the fast forms decide as the plain ones (reference.py), whatever happened."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.routing.machines import MACHINES
from benchmarks.routing.policies import trace
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing import batching as late
from polyrec.planner.routing.admission import admission as door
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.policies.priced import Priced
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router_state import Board
from polyrec.planner.simulation.faults import Fault
from polyrec.planner.simulation.simulator import Simulator
from tests.planner.routing import reference
from tests.planner.routing.test_router import BUDGET_S, ROWS, SERVERS, STEPS, step
from tests.planner.routing.worlds import POLICIES, Owner, router

SEVERAL = [*SERVERS[1:], *((machine.paths, machine.lanes) for machine in MACHINES.values())]
ASKING = st.tuples(ROWS, BUDGET_S, st.integers(0, 2), st.booleans())


def driven(server, steps: list[tuple], policy: str = "priced", slow: float = 1.0, tick: int = 7) -> Owner:
    """A router to which that has happened; lane 0 takes `slow` times what it should."""
    owner = Owner(router(*server, limits=Limits(max_batch_rows=1024), policy=policy))
    for i, one in enumerate(steps):
        step(owner, one, list(POLICIES))
        if i % tick == tick - 1:
            owner.router.tick(owner.now_s)
        owner.turn()
        for lane, dispatch in list(owner.running.items()):
            took_s = dispatch.median_s * (slow if lane == 0 else 1.0)
            if dispatch.started_s + took_s <= owner.now_s:
                owner.done(lane, took_s)
    return owner


@settings(max_examples=150, deadline=None)
@given(
    steps=STEPS,
    waiting=st.lists(ASKING, max_size=12),
    server=st.sampled_from([SERVERS[0], *SEVERAL]),
    slow=st.sampled_from([0.7, 1.0, 4.0]),
    later_s=st.sampled_from([0.0, 1e-4, 2e-3]),
)
def test_a_choice_is_that_of_the_plain_rule(steps, waiting, server, slow, later_s):
    owner = driven(server, steps, slow=slow)
    for wishes in waiting:
        owner.offer(*wishes)
    owner.now_s += later_s
    board = owner.router.board
    for lane in board.lanes:
        if lane.flight is None:
            plain = reference.choose(board, lane, owner.now_s)
            assert late.choose(board, lane, owner.now_s) == plain
            if plain is not None:
                dispatch = owner.router.next(lane.index, owner.now_s)
                if dispatch is not None:
                    owner.running[lane.index] = dispatch


class Compared(Priced):
    """The default, of which every decision is that of the plain rules."""

    asked = 0

    def choose(self, board: Board, lane: LaneState, now_s: float) -> Choice | None:
        self.asked += 1
        plain = reference.choose(board, lane, now_s)
        choice = late.choose(board, lane, now_s)
        assert choice == plain
        return choice

    def admit(self, board: Board, query: Query, now_s: float) -> float:
        plain = reference.admit(board, query, now_s)
        over_s = door.admit(board, query, now_s)
        assert over_s == plain if plain > 0 else over_s <= 0
        return over_s


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("load", [0.1, 0.3, 0.7, 1.2])
@pytest.mark.parametrize("faults", [(), (Fault("slow", 1, 0.05, 0.1, 5.0), Fault("stall", 2, 0.1, 0.15))])
def test_through_a_trace_every_decision_is_that_of_the_plain_rules(machine, load, faults):
    server = MACHINES[machine]
    seconds = 0.2 if machine == "cpu" else 0.08 / load
    times, rows = trace(server, "bursty", "lognormal", load, seconds, 0)
    rng = np.random.default_rng(0)
    budgets = rng.choice([0.004, 0.01, 0.01, 0.03], size=times.size)
    simulator = Simulator(
        server.paths, server.lanes, Routing(), server.limits, times, rows, budgets, rng, faults
    )
    policy = simulator.router.policy = Compared()
    simulator.run()
    assert policy.asked > 50


@settings(max_examples=150, deadline=None)
@given(
    steps=STEPS,
    waiting=st.lists(ASKING, max_size=30),
    server=st.sampled_from(SEVERAL),
    policy=st.sampled_from(["priced", "static:table@cpu"]),
    slow=st.sampled_from([0.7, 1.0, 4.0]),
    later_s=st.sampled_from([0.0, 1e-4, 2e-3]),
)
def test_whoever_is_taken_or_refused_at_the_door_is_so_by_the_plain_rule(
    steps, waiting, server, policy, slow, later_s
):
    owner = driven(server, steps, policy, slow)
    board = owner.router.board
    for rows, budget_s, priority, required in waiting:
        query = Query(rows, owner.now_s, owner.now_s + budget_s, priority, required)
        if board.usable and board.alone is None:
            plain = reference.admit(board, query, owner.now_s)
            over_s = door.admit(board, query, owner.now_s)
            assert (over_s > 0) == (plain > 0)
            if over_s > 0:
                assert over_s == plain  # it is told when to come again
        owner.offer(rows, budget_s, priority, required)
        owner.turn()
        owner.now_s += later_s


@settings(max_examples=100, deadline=None)
@given(
    steps=STEPS,
    server=st.sampled_from([SERVERS[0], *SEVERAL]),
    slow=st.sampled_from([0.7, 1.0, 4.0]),
    rows=st.lists(st.integers(1, 4096), max_size=8),
)
def test_what_is_kept_for_decisions_is_what_it_was_computed_from(steps, server, slow, rows):
    owner = driven(server, steps, slow=slow)
    board = owner.router.board
    most = board.total_rate * max(0.0, board.ends_s - owner.now_s)
    assert board.committed_rows(owner.now_s) == reference.committed(board, owner.now_s) <= most * (1 + 1e-12)
    for lane in board.lanes:
        assert lane.others == reference.others(board, lane)
        assert [option.path for option in lane.options] == lane.order
        for option in lane.options:
            assert (option.most, option.merge) == (lane.most[option.path], lane.merge[option.path])
    board.count()  # what was asked before keeps the corrections of that moment
    for n in rows:
        assert board.own_s(n, 0) == reference.own_s(board, n)
        assert board.best_own_s(n) == reference.own_s(board, n, required=True)


def test_a_querys_own_time_is_kept_until_lanes_are_counted_again():
    owner = Owner(router())
    board = owner.router.board
    before_s = board.own_s(147, 0)
    board.lanes[0].correction.tail[:] = board.lanes[1].correction.tail[:] = [2.0, 2.0]
    assert board.own_s(147, 0) == before_s
    board.count()
    assert board.own_s(147, 0) == pytest.approx(2 * before_s)
