"""Admission control: admitted queries are in time; a single inline lane admits what one batch executes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.plan import Routing
from polyrec.planner.routing.admission.admission import MARGIN, excess_s
from polyrec.planner.routing.admission.attempt import record_arrival
from polyrec.planner.routing.query import Query, Rejection
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from tests.planner.routing.servers import CPU, Limits, RouterDriver, cpu_lanes
from tests.planner.routing.servers import router as router_of

sizes = st.lists(st.integers(1, 200), min_size=1, max_size=80)


def inline_router(query_s: float, row_s: float) -> Router:
    routing = Routing(policy="static:table@cpu", query_s=query_s, row_s=row_s)
    return Router(RouterState(CPU, cpu_lanes(1, "inline"), routing, Limits(), 0.0))


@given(sizes, st.floats(0.002, 0.05), st.sampled_from([0.0, 5e-5]))
def test_a_query_admitted_to_a_single_inline_lane_is_in_time_without_further_arrivals(
    rows, budget_s, query_s
):
    router = inline_router(query_s, 0.0)
    admitted = [q for n in rows if router.submit(q := Query(n, 0.0, budget_s), 0.0) is None]
    now_s = 0.0
    while (dispatch := router.next(0, now_s)) is not None:
        now_s += dispatch.median_s
        router.done(dispatch, now_s, dispatch.median_s)
        for part in dispatch.parts:
            if part.query.settled:
                now_s += query_s / 2
                assert now_s <= budget_s
    if budget_s > 0.005:
        assert len(admitted) > 1 or len(rows) == 1
    assert all(q.settled for q in admitted)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("others", ["models", "programs"])
def test_an_inline_lane_admits_what_its_share_of_the_loop_executes(share, others):
    """Other models execute batches of theirs between its own, or other programs use the core."""
    budget_s = 0.03
    admitted = {}
    for of in (share, 1.0):
        router = inline_router(1e-4, 0.0)
        if others == "models":
            router.state.lanes[0].share = of
        else:
            router.state.lanes[0].correction.waiting = 1 - of
        router.tick(0.1)
        queries = [Query(20, 0.1, 0.1 + budget_s) for _ in range(2000)]
        admitted[of] = [q for q in queries if router.submit(q, 0.1) is None]
        now_s = 0.1
        while (dispatch := router.next(0, now_s)) is not None:
            took_s = router.state.paths[dispatch.path].latency.median[dispatch.rows]
            now_s += took_s / of
            router.done(dispatch, now_s, took_s)
            now_s += len(dispatch.parts) * 5e-5 / of
        assert now_s <= 0.1 + budget_s
    assert 0.5 * share < len(admitted[share]) / len(admitted[1.0]) < 1.2 * share


def test_waits_for_a_cpu_tell_how_much_of_a_core_there_is_and_not_how_fast_batches_are():
    """Each batch waits several times as long as it takes."""
    routers = {}
    for waited_s in (0.0, 0.0005):
        router = routers[waited_s] = inline_router(1e-4, 0.0)
        latency = router.state.paths[router.state.lanes[0].fastest].latency
        now_s = 0.0
        for tick in range(1, 60):
            while now_s < 0.1 * tick:
                assert router.submit(Query(20, now_s, now_s + 0.05), now_s) is None
                while (dispatch := router.next(0, now_s)) is not None:
                    took_s = latency.median[dispatch.rows]
                    now_s += took_s + waited_s
                    router.done(dispatch, now_s, took_s, waited_s)
            router.tick(now_s)
    alone, beside = routers[0.0].state, routers[0.0005].state
    lane = beside.lanes[0]
    assert alone.lanes[0].correction.waiting == 0
    assert lane.correction.waiting == pytest.approx(0.0005 / (latency.median[20] + 0.0005), rel=0.01)
    assert lane.correction.undisturbed == pytest.approx(alone.lanes[0].correction.undisturbed, rel=1e-3)
    stretched = [factor / (1 - lane.correction.waiting) for factor in alone.lanes[0].correction.tail]
    assert lane.correction.tail == pytest.approx(stretched, rel=1e-3)
    assert beside.total_rate == pytest.approx(alone.total_rate * (1 - lane.correction.waiting), rel=0.05)
    assert lane.utilization == pytest.approx(1.0, rel=0.05)


def test_a_core_that_had_nothing_to_do_is_soon_expected_to_be_free():
    router = inline_router(1e-4, 0.0)
    lane = router.state.lanes[0]
    lane.correction.waiting = 0.5
    for tick in range(1, 101):
        router.tick(0.1 * tick)
    assert lane.correction.waiting < 0.01


def test_a_single_inline_lane_admits_more_than_a_stream_at_its_rate():
    router = inline_router(1e-4, 0.0)
    budget_s = 0.008
    admitted = 0
    while router.submit(Query(20, 0.0, budget_s), 0.0) is None:
        admitted += 1
    state = router.state
    assert 20 * admitted / state.total_rate + state.service_time_s(20, 20 * admitted) > 1.1 * budget_s


@pytest.mark.parametrize("slower", [0.6, 2.0])
def test_a_single_inline_lane_is_expected_to_be_as_slow_as_its_batches_were(slower):
    """Nothing waits, so its own batch is the last one, whose tail counts."""
    router = inline_router(1e-4, 0.0)
    state, query = router.state, Query(20, 0.0, 1.0)
    latency = state.paths[state.lanes[0].fastest].latency
    end_s = [1.0 + router.policy.excess_s(state, query, 0.0)]
    for _ in range(40):
        state.lanes[0].correction.observe(state.lanes[0].fastest, 20, slower * latency.median[20])
    end_s.append(1.0 + router.policy.excess_s(state, query, 0.0))
    assert end_s[1] / end_s[0] == pytest.approx(slower, rel=0.3)


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_predicted_lateness_grows_with_the_queue(kind):
    routing = Routing(policy="static:table@cpu", query_s=1e-5)
    router = Router(RouterState(CPU, cpu_lanes(1, kind), routing, Limits(), 0.0))
    state = router.state
    over = []
    for _ in range(60):
        over.append(router.policy.excess_s(state, Query(30, 0.0, 1.0), 0.0))
        router.submit(Query(30, 0.0, 1.0), 0.0)
    assert np.all(np.diff(over) >= -1e-4)
    assert over[-1] > over[0]


def test_a_running_reading_round_leaves_less_time():
    """A loop that reads 3/4 of its time takes 3 ms for the arrivals of 4 ms; its lane is idle meanwhile."""
    admitted = {}
    for busy in (0.0, 0.75):
        router = inline_router(1e-4, 0.0)
        router.state.front.read_share = busy
        admitted[busy] = 0
        while router.submit(Query(20, 0.0, 0.010), 0.004) is None:
            admitted[busy] += 1
    assert 0 < admitted[0.75] < admitted[0.0]


def test_expire_ends_the_reading_round():
    router = inline_router(1e-4, 0.0)
    router.state.front.read_share = 0.75
    assert router.submit(Query(20, 0.0, 1.0), 0.004) is None  # so that there is something to do
    assert router.submit(Query(20, 0.0, 0.0065), 0.004) is not None  # the round is read until 7 ms
    router.expire(0.005)
    # the loop slept: nothing else is to be read
    assert router.submit(Query(20, 0.005, 0.0075), 0.005) is None


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 200), st.floats(0.003, 0.02)), min_size=1, max_size=80),
        min_size=1,
        max_size=3,
    ),
    st.floats(0.0, 0.8),
)
def test_a_query_is_rejected_unparsed_only_if_offer_would_reject_it(rounds, busy):
    looked, unparsed = inline_router(1e-4, 1e-6), inline_router(1e-4, 1e-6)
    looked.state.front.read_share = unparsed.state.front.read_share = busy
    now_s = 0.0
    for own in rounds:
        arrival_s, now_s = now_s, now_s + 0.002
        for rows, budget_s in own:
            deadline_s = arrival_s + budget_s
            admitted = looked.submit(Query(rows, arrival_s, deadline_s), now_s) is None
            away = unparsed.reject_early(arrival_s, deadline_s, rows, now_s)
            if away is None:
                away = unparsed.submit(Query(rows, arrival_s, deadline_s), now_s)
            assert (away is None) == admitted
            now_s += 4e-5
        for router in (looked, unparsed):
            router.expire(now_s)
            dispatch = router.next(0, now_s)
            if dispatch is not None:
                router.done(dispatch, now_s + dispatch.median_s, dispatch.median_s)
        now_s += 0.001


def fill(router: Router, rows: int, budget_s: float) -> Rejection:
    """Offers queries until one is rejected."""
    while (rejection := router.submit(Query(rows, 0.0, budget_s), 0.0)) is None:
        pass
    return rejection


def test_a_query_is_rejected_unparsed_in_an_overloaded_round_if_it_would_be_late():
    router = inline_router(1e-4, 0.0)
    assert router.reject_early(0.0, 0.001, 500, 0.0) is None  # nothing was rejected
    rejection = fill(router, 50, 0.008)
    assert router.reject_early(0.0, 0.008, 50, 0.0) == rejection
    assert router.reject_early(0.0, 0.008, 60, 0.0) is not None
    assert router.reject_early(0.0, 0.012, 50, 0.0) is None  # with more time
    assert router.reject_early(0.0, 0.008, 1, 0.0) is None  # with fewer rows
    assert router.reject_early(0.0, 0.008, None, 0.0) is None  # with rows that are not known
    router.expire(0.001)
    assert router.reject_early(0.0, 0.008, 50, 0.001) is None


def test_a_query_whose_deadline_has_passed_is_rejected_unparsed_and_counts_as_a_usual_one():
    router = inline_router(1e-4, 0.0)
    observed = router.state.observed
    for _ in range(20):
        record_arrival(router.state, 50, 0.008)
    router.tick(0.1)
    assert router.reject_early(0.1, 0.108, None, 0.108) is not None
    assert observed.new_queries == 1
    router.tick(0.2)
    assert observed.mean_rows == pytest.approx(50)


def test_queries_that_no_load_would_let_be_in_time_make_no_round_overloaded():
    router = inline_router(1e-4, 0.0)
    for rows in (500, 4096):
        assert router.submit(Query(rows, 0.0, 0.0005), 0.0) is not None
    assert not router.overloaded


def test_a_query_is_judged_by_its_own_rows_whatever_others_of_its_round_were_rejected():
    """Those may have as many rows in a byte as their client likes."""
    router = inline_router(1e-4, 0.0)
    just_possible_s = 1.1 * router.state.service_time_s(400, 0)
    assert router.submit(Query(100, 0.0, just_possible_s), 0.0) is None
    assert router.submit(Query(400, 0.0, just_possible_s), 0.0) is not None
    assert router.overloaded
    for rows in (1, 20, 100):
        assert router.reject_early(0.0, 0.008, rows, 0.0) is None
        assert router.submit(Query(rows, 0.0, 0.008), 0.0) is None


def test_head_of_the_queue_waits_to_be_merged_while_it_has_time():
    router = inline_router(1e-4, 0.0)
    assert not router.is_urgent(0.0)
    assert router.submit(Query(20, 0.0, 0.010), 0.0) is None
    assert not router.is_urgent(0.002)
    assert router.is_urgent(0.003)


def test_a_large_query_that_waits_keeps_out_no_others_that_lanes_execute_in_time():
    """Where the front limits the capacity, it has read the large query already."""
    router = Router(RouterState(CPU, cpu_lanes(2), Routing(query_s=2e-4), Limits(), 0.0))
    state = router.state
    for _ in range(100):
        record_arrival(state, 20, 0.01)
    router.tick(0.1)
    assert 2000 / state.total_rate > 0.01  # by queries of mean size
    assert router.submit(Query(2000, 0.1, 0.11), 0.1) is None
    assert router.submit(Query(20, 0.1, 0.11), 0.1) is None
    assert state.drain_s(2000, 100) == pytest.approx(2000 / state.total_rate)


@pytest.mark.parametrize("priority", [0, 1])
def test_a_query_goes_ahead_of_those_of_its_priority_with_later_deadlines(priority):
    """Behind them it would be late; they can wait."""
    driver = RouterDriver(router_of(lanes=cpu_lanes(1)))
    state = driver.router.state
    for _ in range(100):
        driver.submit(100, 1.0, priority)
    alone_s = state.service_time_s(100, 0)
    assert state.drain_s(state.queue.rows, len(state.queue.pieces)) > 10 * alone_s
    assert excess_s(state, Query(100, 0.0, 1.01 * alone_s, priority), 0.0) <= 0
    assert excess_s(state, Query(100, 0.0, 0.99 * alone_s, priority), 0.0) > 0


@given(st.lists(st.integers(1, 400), min_size=1, max_size=3), st.floats(0.0, 1.0), st.integers(1, 400))
def test_query_is_predicted_late_if_running_batches_make_it_late(running, passed, rows):
    """The upper bound, which is enough for most, admits nothing that the exact prediction rejects."""
    driver = RouterDriver(router_of(lanes=cpu_lanes(3)))
    for each in running:
        driver.submit(each, 1.0)
    driver.turn()
    state = driver.router.state
    assert not state.queue.pieces
    now_s = passed * max(dispatch.median_s for dispatch in driver.running.values())
    needed_s = MARGIN * state.executing_rows(now_s) / state.total_rate + state.service_time_s(rows, 0)
    for share in (0.5, 0.99, 1.01, 2.0):
        query = Query(rows, now_s, now_s + share * needed_s)
        assert (excess_s(state, query, now_s) <= 0) == (share > 1)
