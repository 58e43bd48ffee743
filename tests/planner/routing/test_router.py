"""The router: deadlines, splitting, merging, priorities, rejections."""

import pytest

from polyrec.planner.plan import Limits
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.query import Query, Reason, RejectReason
from polyrec.planner.routing.router import STALLED_S
from tests.planner.routing.servers import (
    BOTH,
    GPU_LANE,
    HYBRID,
    TABLE,
    RouterDriver,
    cpu_lanes,
    line,
    router,
)


def test_an_idle_server_answers_on_the_most_accurate_path():
    driver = RouterDriver(router())
    query = driver.submit(23, 0.1)
    driver.run(0.05)
    assert driver.ends[query] == ["answered"]
    assert driver.router.state.path_specs[query.path].name == "hybrid@cpu"
    assert query.reason is Reason.BEST


def test_a_short_budget_gets_a_faster_path_with_reason_deadline():
    driver = RouterDriver(router())
    query = driver.submit(23, 0.0006)
    driver.run(0.05)
    assert driver.router.state.path_specs[query.path].name == "table@cpu"
    assert query.reason is Reason.DEADLINE


def test_load_gets_a_faster_path_with_reason_load():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    queries = [driver.submit(147, 0.02) for _ in range(20)]
    driver.run(0.1)
    assert all(driver.ends[q] == ["answered"] for q in queries)
    assert driver.router.state.path_specs[queries[0].path].name == "table@cpu"
    assert queries[0].reason is Reason.LOAD


def test_required_quality_waits_for_the_most_accurate_path_or_is_rejected():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    queries = [driver.submit(147, 0.02, best_only=True) for _ in range(20)]
    driver.run(0.1)
    answered = [q for q in queries if driver.ends[q] == ["answered"]]
    assert 0 < len(answered) < 20
    assert {driver.router.state.path_specs[q.path].name for q in answered} == {"hybrid@cpu"}


def test_required_quality_that_no_lane_reaches_in_time_is_rejected():
    r = router(lanes=cpu_lanes(1))
    assert r.submit(Query(147, 0.0, 0.002), 0.0) is None
    assert r.submit(Query(147, 0.0, 0.002, best_only=True), 0.0) is not None


def test_a_query_waiting_behind_a_long_batch_is_dropped_at_its_own_deadline():
    """triton server#7512: there it was dropped when the batch in front of it had finished."""
    slow = (TABLE.__class__("table@cpu", "cpu", 0.78, line(0.5, 1e-6)),)
    driver = RouterDriver(router(slow, cpu_lanes(1), policy="static:table@cpu"))
    driver.submit(10, 2.0)
    driver.turn()
    assert list(driver.running) == [0]
    waiting = Query(10, 0.0, 0.1)
    driver.ends[waiting] = []
    driver.router.state.queue.push(waiting, 0, 10)  # as if the backlog had not been known
    assert driver.router.wake_s() <= 0.1
    driver.now_s = 0.1
    driver.turn()
    assert list(driver.running) == [0]
    assert driver.ends[waiting] == ["expired"]


def test_an_executing_query_expires_at_its_deadline():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    query = driver.submit(23, 0.01)
    driver.turn()
    assert driver.running
    driver.now_s = 0.01
    driver.turn()
    assert driver.ends[query] == ["expired"]
    driver.now_s = 0.05
    driver.done(0)
    assert driver.ends[query] == ["expired"]


def test_a_backlog_rejects_with_the_time_until_it_has_drained():
    driver = RouterDriver(router(lanes=cpu_lanes(1), policy="static:table@cpu"))
    rejection = None
    while rejection is None:
        query = Query(147, 0.0, 0.02)
        driver.ends[query] = []
        rejection = driver.router.submit(query, 0.0)
    assert rejection.reason is RejectReason.OVERLOAD
    assert rejection.queued_rows > 1000
    assert 0 < rejection.retry_after_s < 0.02
    driver.turn()
    # Tried again after that time, it is taken.
    driver.run(rejection.retry_after_s)
    now_s = driver.now_s
    assert driver.router.submit(Query(147, now_s, now_s + 0.02), now_s) is None


def test_a_short_budget_goes_before_a_backlog_that_can_wait():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    for _ in range(40):
        driver.submit(147, 10.0)
    query = driver.submit(147, 0.004)
    driver.run(0.02)
    assert driver.ends[query] == ["answered"]


def test_a_full_queue_rejects_by_rows():
    driver = RouterDriver(router(limits=Limits(max_queued_rows=4096)))
    assert driver.router.submit(Query(4000, 0.0, 9.0), 0.0) is None
    rejection = driver.router.submit(Query(97, 0.0, 9.0), 0.0)
    assert rejection is not None
    assert (rejection.reason, rejection.queued_rows) == (RejectReason.OVERLOAD, 4000)


def test_no_lane_alive_is_unavailable():
    r = router()
    r.lane_down(0)
    r.lane_down(1)
    rejection = r.submit(Query(1, 0.0, 1.0), 0.0)
    assert rejection is not None
    assert rejection.reason is RejectReason.UNAVAILABLE


def test_higher_priority_goes_first_and_default_is_lowest():
    driver = RouterDriver(
        router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=200), policy="static:table@cpu")
    )
    for priority in (0, 3, 1, 2):
        driver.submit(150, 0.1, priority)
    driver.run(0.05)
    assert [d.parts[0].query.priority for d in driver.dispatches] == [1, 2, 3, 0]


def test_earlier_deadlines_go_first():
    driver = RouterDriver(
        router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=200), policy="static:table@cpu")
    )
    for budget_s in (0.09, 0.05, 0.07):
        driver.submit(150, budget_s)
    driver.run(0.05)
    assert [d.parts[0].query.deadline_s for d in driver.dispatches] == [0.05, 0.07, 0.09]


def test_small_queries_are_merged_into_one_batch():
    driver = RouterDriver(router(lanes=cpu_lanes(1), policy="static:table@cpu"))
    for _ in range(10):
        driver.submit(5, 0.1)
    driver.turn()
    assert [len(d.parts) for d in driver.dispatches] == [10]


def test_a_large_query_is_split_over_free_lanes_when_one_would_be_late():
    driver = RouterDriver(router(lanes=cpu_lanes(4), policy="static:hybrid@cpu"))
    query = driver.submit(1000, 0.012)
    driver.run(0.03)
    assert driver.ends[query] == ["answered"]
    assert len(driver.dispatches) >= 2
    assert {part.query for d in driver.dispatches for part in d.parts} == {query}


@pytest.mark.parametrize(("budget_s", "limit_s"), [(0.01, 0.005), (0.03, 0.012), (1.0, 0.02)])
def test_an_inline_lane_holds_the_loop_for_a_share_of_the_usual_budget(budget_s: float, limit_s: float):
    driver = RouterDriver(router(lanes=cpu_lanes(1, "inline"), policy="static:hybrid@cpu"))
    for i in range(1, 51):
        driver.submit(1, budget_s)
        driver.run(0.02 * i)
        if i % 5 == 0:
            driver.router.tick(driver.now_s)
    driver.dispatches.clear()
    query = driver.submit(3000, 1.0)
    driver.run(1.5)
    assert driver.ends[query] == ["answered"]
    assert 0.7 * limit_s <= max(d.median_s for d in driver.dispatches) <= limit_s


def test_delays_just_before_a_tick_change_neither_capacity_nor_batch_sizes_until_the_next():
    """Four batches of a busy tick are held up for 20 ms; the budget is 10 ms."""
    driver = RouterDriver(router(lanes=cpu_lanes(1, "inline")))
    state, lane = driver.router.state, driver.router.state.lanes[0]

    def execute(batches: int, more_s: float) -> None:
        for _ in range(batches):
            driver.submit(23, 0.010)
            driver.turn()
            took_s = driver.running[0].median_s + more_s
            driver.now_s += took_s
            driver.done(0, took_s)

    def derived() -> list[float]:
        return [state.total_rate, state.max_merge_rows, *lane.max_rows, *lane.merge_rows]

    execute(50, 0.0)
    driver.router.tick(driver.now_s)
    before = derived()
    execute(50, 0.0)
    execute(4, 0.020)
    assert lane.correction.factor > 5
    driver.router.tick(driver.now_s)
    assert derived() == pytest.approx(before, rel=0.1)
    assert driver.ends[driver.submit(23, 0.010)] == driver.ends[driver.submit(23, 0.010)] == []


def test_a_canceled_query_is_not_executed_and_not_counted():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    driver.submit(700, 0.1)
    driver.turn()
    query = driver.submit(100, 0.1)
    assert driver.router.state.queue.rows == 100
    driver.cancel(query)
    assert driver.router.state.queue.rows == 0
    driver.run(0.1)
    assert all(part.query is not query for d in driver.dispatches for part in d.parts)


def test_a_lane_slow_by_its_model_leaves_work_to_a_faster_device_until_that_is_not_enough():
    driver = RouterDriver(router(BOTH, (GPU_LANE, *cpu_lanes(2))))
    for _ in range(5):
        driver.submit(100, 0.02)
    driver.turn()
    assert list(driver.running) == [0]
    for _ in range(120):
        driver.submit(700, 0.02)
    driver.turn()
    assert set(driver.running) == {0, 1, 2}


def test_a_new_policy_routes_waiting_queries():
    driver = RouterDriver(router(policy="mprec", lanes=cpu_lanes(1)))
    driver.submit(700, 0.1)
    driver.turn()
    query = driver.submit(23, 0.1)
    routing = driver.router.state.routing.model_copy(update={"policy": "static:table@cpu"})
    driver.router.set_policy(routing)
    driver.run(0.09)
    assert driver.ends[query] == ["answered"]
    assert driver.router.state.path_specs[query.path].name == "table@cpu"


def test_other_base_values_of_paths_count_from_the_next_decision_on():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    first = driver.submit(23, 0.1)
    driver.run(0.05)
    assert driver.router.state.path_specs[first.path].name == "hybrid@cpu"
    values = {path.name: 0.2 if path.name == "table@cpu" else 0.1 for path in driver.router.state.path_specs}
    driver.router.set_base_values(values)
    second = driver.submit(23, driver.now_s + 0.1)
    driver.run(driver.now_s + 0.05)
    assert driver.router.state.path_specs[second.path].name == "table@cpu"


def test_a_weight_of_zero_disables_a_path():
    driver = RouterDriver(router(weights={"hybrid@cpu": 0.0}))
    query = driver.submit(23, 0.1)
    driver.run(0.05)
    assert driver.router.state.path_specs[query.path].name == "table@cpu"
    assert query.reason is Reason.BEST


@pytest.mark.parametrize("budget_s", [1.5e-4, 0.02])
def test_required_quality_that_no_load_would_allow_lowers_that_of_no_other(budget_s):
    """As its budget is enough for other paths only, or the lane of the best path is dead."""
    driver = RouterDriver(router(BOTH, (GPU_LANE, *cpu_lanes(1)), weights={HYBRID.name: 0.5}))
    if budget_s == 0.02:
        driver.router.lane_down(0)
    query = driver.submit(1, budget_s, best_only=True)
    driver.submit(1, 0.02)
    driver.now_s = 0.1
    driver.router.tick(0.1)
    state = driver.router.state
    assert driver.ends[query] == ["rejected"]
    assert state.loss_backoff.level == 0
    assert (state.observed.queries_s, state.observed.possible_s) == pytest.approx((20, 10))


def test_demand_is_known_while_no_lane_is_alive():
    driver = RouterDriver(router(lanes=cpu_lanes(1)))
    driver.router.lane_down(0)
    driver.submit(25, 0.02)
    driver.submit(25, 1e-5)
    driver.now_s = 0.1
    driver.router.tick(0.1)
    assert driver.router.state.observed.rows_s == pytest.approx(250)


@pytest.mark.parametrize("rows", [1, 23])
def test_attempted_queries_count_as_demand_and_change_nothing_else(rows):
    """A tail is 1.3 medians: queries with less than a tail and more than a median mostly are in time."""
    driver, without = (RouterDriver(router(lanes=cpu_lanes(1))) for _ in range(2))
    median_s = TABLE.latency.median(rows)
    for _ in range(20):
        for each in (driver, without):
            each.submit(25, 0.02)
            each.run(each.now_s + 0.05)
        query = driver.submit(rows, 1.1 * median_s)
        driver.run(driver.now_s + 0.05)
        without.run(without.now_s + 0.05)
        assert driver.ends[query] == ["answered"]
        assert driver.submit(rows, 0.9 * median_s).rows == rows
        driver.turn()
        for each in (driver, without):
            each.router.tick(each.now_s)
    observed, usual = driver.router.state.observed, without.router.state.observed
    assert usual.demand_rows_s == usual.rows_s == pytest.approx(250)
    assert observed.demand_rows_s == pytest.approx(10 * (25 + rows))
    for name in ("rows_s", "possible_s", "mean_rows", "budget_s", "urgent_s", "high_rows_s", "variance_s"):
        assert getattr(observed, name) == getattr(usual, name), name
    assert driver.router.state.prices == without.router.state.prices


@pytest.mark.parametrize("lanes", [1, 2])
def test_all_lanes_are_stalled_once_none_has_returned_its_batch_for_seconds(lanes):
    driver = RouterDriver(router(lanes=cpu_lanes(lanes)))
    for _ in range(lanes):  # the one after the other, when the lane before has stalled
        assert not driver.router.all_stalled(driver.now_s)
        driver.submit(23, 0.1)
        driver.turn()
        driver.now_s += STALLED_S
        driver.turn()
    assert len(driver.running) == lanes
    assert driver.router.all_stalled(driver.now_s)
    assert not driver.router.all_stalled(driver.now_s - STALLED_S / 2)
    driver.done(0)
    assert not driver.router.all_stalled(2 * driver.now_s)


def test_a_long_batch_that_is_not_overdue_is_no_stall():
    slow = PathSpec("slow@cpu", "cpu", 0.8, line(2 * STALLED_S, 0))
    driver = RouterDriver(router((slow,), cpu_lanes(1)))
    driver.submit(1, 100)
    for driver.now_s in (0.0, 2 * STALLED_S):
        driver.turn()
    assert len(driver.running) == 1
    assert not driver.router.all_stalled(driver.now_s)
    driver.now_s *= 10
    driver.turn()
    assert driver.router.all_stalled(driver.now_s)
