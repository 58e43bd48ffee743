"""Queries whose rows are still being read: held beside the queue, and never in the way of hot ones."""

import pytest

from polyrec.planner.routing.latency.read_times import ReadSeconds
from polyrec.planner.routing.query import Misses
from tests.planner.routing.servers import RouterDriver, cpu_lanes, router

COLD = Misses(disk=20)


def one_lane() -> RouterDriver:
    return RouterDriver(router(lanes=cpu_lanes(1), policy="static:table@cpu"))


def observed(driver: RouterDriver, seconds: float, times: int = 50) -> None:
    for _ in range(times):
        driver.router.state.reads.observe(COLD, ReadSeconds(disk=seconds))


def test_a_hot_query_is_dispatched_before_a_cold_one_with_an_earlier_deadline():
    driver = one_lane()
    cold = driver.submit(10, 0.05, misses=COLD)
    hot = driver.submit(10, 0.1)
    driver.turn()
    assert [part.query for part in driver.dispatches[0].parts] == [hot]
    driver.done(0)
    driver.turn()
    assert len(driver.dispatches) == 1
    driver.read(cold)
    driver.turn()
    assert [part.query for part in driver.dispatches[1].parts] == [cold]
    assert not driver.dispatches[1].waits


def test_hot_queries_pass_ready_ones_which_follow_together_when_nothing_else_waits():
    driver = one_lane()
    cold = [driver.submit(10, 0.05 + 0.01 * i, misses=COLD) for i in range(3)]
    hot = [driver.submit(10, 0.2) for _ in range(2)]
    for query in cold:
        driver.read(query)
    batches = []
    for _ in range(2):
        driver.turn()
        batches.append([part.query for part in driver.dispatches[-1].parts])
        driver.done(0)
    assert batches == [hot, cold]


def test_a_ready_query_is_passed_for_half_its_budget_only():
    driver = one_lane()
    cold = driver.submit(10, 0.05, misses=COLD)
    driver.read(cold)
    driver.submit(10, 0.2)
    driver.now_s = 0.025
    assert driver.router.wake_s() == driver.now_s
    driver.turn()
    assert driver.dispatches[0].parts[0].query is cold


def test_a_query_is_queued_while_its_deadline_still_allows_to_execute_it():
    driver = one_lane()
    cold = driver.submit(10, 0.05, misses=COLD)
    wake_s = driver.router.wake_s()
    assert wake_s is not None
    service_s = driver.router.state.service_time_s(10, 0)
    assert cold.deadline_s - 10 * service_s < wake_s < cold.deadline_s - 2 * service_s
    driver.now_s = wake_s
    driver.turn()
    (dispatch,) = driver.dispatches
    assert dispatch.waits
    assert cold.reading
    driver.done(0)
    assert driver.ends[cold] == ["answered"]


def test_queries_that_wait_for_rows_are_merged_with_each_other_only():
    driver = one_lane()
    cold = [driver.submit(10, 0.001 + i * 1e-6, misses=COLD) for i in range(2)]
    hot = driver.submit(10, 0.1)
    driver.now_s = driver.router.state.queue.release_s + 3e-6
    driver.router.expire(driver.now_s)
    batches = []
    for _ in range(2):
        driver.turn()
        batches.append([part.query for part in driver.dispatches[-1].parts])
        driver.done(0)
    assert batches == [cold, [hot]]


def test_predicted_read_times_reject_what_they_make_late_and_nothing_else():
    driver = one_lane()
    observed(driver, 0.03)
    for lane_busy in (False, True):
        if lane_busy:
            driver.submit(500, 0.1)
            driver.turn()
            driver.submit(500, 0.1)
        late = driver.submit(10, 0.02, misses=COLD)
        assert (driver.ends[late] == ["rejected"]) == lane_busy  # an idle server tries it
        assert driver.ends[driver.submit(10, 0.2, misses=COLD)] == []
        assert driver.ends[driver.submit(10, 0.02)] == []


def test_a_batch_that_waits_for_rows_is_predicted_to_do_so_and_corrects_no_latency():
    driver = one_lane()
    driver.submit(10, 1.0)
    driver.turn()
    plain = driver.dispatches[0].tail_s
    driver.done(0)
    observed(driver, 0.03)
    driver.submit(10, 1.0, misses=COLD)
    driver.now_s = driver.router.state.queue.release_s
    driver.turn()
    waits = driver.dispatches[1]
    assert waits.tail_s - plain == pytest.approx(driver.router.state.reads.tail_s(COLD), rel=0.01)
    factor = driver.router.state.lanes[0].correction.tail[waits.path]
    driver.done(0, 0.5)
    assert driver.router.state.lanes[0].correction.tail[waits.path] == factor


def test_a_canceled_query_is_not_queued_when_its_rows_are_there():
    driver = one_lane()
    cold = driver.submit(10, 0.05, misses=COLD)
    driver.cancel(cold)
    driver.read(cold)
    driver.turn()
    assert not driver.dispatches
    assert driver.router.state.queue.rows == 0


def test_a_held_query_survives_a_change_of_policy():
    driver = one_lane()
    cold = driver.submit(10, 0.05, misses=COLD)
    driver.router.set_policy(driver.router.state.routing.model_copy(update={"policy": "priced"}))
    assert driver.router.state.queue.rows == 10
    driver.read(cold)
    driver.turn()
    assert [part.query for part in driver.dispatches[0].parts] == [cold]


def test_a_query_lost_to_its_reads_lowers_no_quality():
    driver = one_lane()
    observed(driver, 0.01)
    driver.submit(10, 10.0)
    driver.turn()  # or it would be tried, as nothing waits
    driver.submit(10, 10.0)
    query = driver.submit(10, 0.008, misses=COLD)
    assert driver.ends[query] == ["rejected"]
    held = driver.submit(10, 0.05, misses=COLD)
    driver.now_s = 0.06
    driver.turn()
    assert "expired" in driver.ends[held]
    assert driver.router.state.loss_backoff.level == 0


def test_a_canceled_query_is_held_no_longer():
    driver = one_lane()
    canceled, other = (driver.submit(10, 0.1, misses=COLD) for _ in range(2))
    driver.cancel(canceled)
    assert list(driver.router.state.queue.held) == [other]
    assert driver.router.snapshot().queued_queries == 1
    driver.read(canceled)
    driver.read(other)
    driver.turn()
    assert [part.query for part in driver.dispatches[0].parts] == [other]
