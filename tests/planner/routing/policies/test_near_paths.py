"""Quality is worth more than speed where the faster path would avoid few losses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.policies.loss_backoff import TAIL
from polyrec.planner.routing.policies.near_paths import expected_losses
from polyrec.planner.routing.query import Reason
from tests.planner.routing.servers import CPU, RouterDriver, cpu_lanes, line, router

BUDGET_S = 0.01
NEAR = (
    PathSpec("fp32@cpu", "cpu", 0.325, line(5e-4, 1.5e-5)),
    PathSpec("int8@cpu", "cpu", 0.318, line(5e-4, 1.35e-5)),
)
SHARES = st.floats(0, 1)


@given(SHARES, SHARES, st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_expected_losses_grow_with_the_time_saved(one, other, budget_s, service_s):
    little, much = sorted((one, other))
    assert (
        0 <= expected_losses(little, budget_s, service_s) <= expected_losses(much, budget_s, service_s) <= 1
    )
    assert expected_losses(0.0, budget_s, service_s) == 0


def test_expected_losses_are_those_of_a_tail_unless_much_time_is_saved():
    assert expected_losses(0.08, 0.01, 0.003) < TAIL
    assert expected_losses(0.66, 0.01, 0.003) > 0.2


def warm(lost_share: float, late_share: float = 0.05, rows_s: float = 20_000.0) -> RouterDriver:
    """A router with two paths nearly as fast, after two seconds of traffic of which a share was lost.

    late_share: share of their time by which the lost queries were too slow.
    """
    driver = RouterDriver(router(NEAR, cpu_lanes(1)))
    state = driver.router.state
    rows, a_tick = 100, round(rows_s / 1000)
    for _ in range(20):
        for _ in range(a_tick):
            driver.submit(rows, BUDGET_S)
            driver.run(driver.now_s + 0.1 / a_tick)
        if lost_share:
            state.loss_backoff.record_loss(lost_share * a_tick * rows * state.best_value, late_share)
        driver.router.tick(driver.now_s)
    driver.run(driver.now_s + 0.05)
    return driver


def answered(driver: RouterDriver) -> tuple[str, Reason]:
    """Path and reason of a query behind which others wait that fill most of its budget."""
    first = driver.submit(100, BUDGET_S)
    for _ in range(3):
        driver.submit(100, 1.5 * BUDGET_S)
    dispatch = driver.router.next(0, driver.now_s)
    assert dispatch is not None
    assert dispatch.parts[0].query is first
    return NEAR[dispatch.path].name, dispatch.reason


def test_a_path_nearly_as_fast_answers_although_the_queue_is_long():
    assert answered(warm(0.0)) == ("fp32@cpu", Reason.BEST)


def test_losses_that_speed_avoids_and_cost_more_than_quality_gains_make_the_faster_path_answer():
    assert answered(warm(0.1)) == ("int8@cpu", Reason.LOAD)
    assert answered(warm(0.01)) == ("fp32@cpu", Reason.BEST)


def test_losses_that_speed_does_not_avoid_do_not_make_the_faster_path_answer():
    assert answered(warm(0.1, late_share=0.5)) == ("fp32@cpu", Reason.BEST)


def test_past_its_capacity_the_faster_path_answers():
    capacity = 1 / NEAR[0].latency.median_s[-1] * 4096
    assert answered(warm(0.0, rows_s=1.05 * capacity))[0] == "int8@cpu"


def test_a_much_faster_path_still_protects_the_rest_of_the_queue():
    state = RouterDriver(router(CPU, cpu_lanes(1))).router.state
    state.refresh()
    assert [option.outweighs_speed for option in state.lanes[0].options] == [False, False]
