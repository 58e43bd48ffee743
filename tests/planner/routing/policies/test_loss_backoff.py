"""Loss backoff: losses lower the fill share at once, ticks without losses raise it slowly."""

import pytest

from polyrec.planner.routing.policies.loss_backoff import BUSY, MAX_FILL_SHARE, TAIL, LossBackoff
from tests.planner.routing.servers import CPU, RouterDriver, cpu_lanes, router


def test_several_losses_in_one_tick_count_once():
    one, many = LossBackoff(), LossBackoff()
    one.record_loss(1.0)
    for _ in range(50):
        many.record_loss(1.0)
    assert one.fill_share == many.fill_share < MAX_FILL_SHARE


def test_losses_in_consecutive_ticks_leave_no_room_for_quality():
    loss_backoff = LossBackoff()
    for _ in range(10):
        loss_backoff.record_loss(1.0)
        loss_backoff.tick(0.0)
    assert loss_backoff.fill_share == 0


def test_losses_lower_quality_at_most_by_their_share_of_the_stakes():
    backoff = LossBackoff()
    for _ in range(100):
        backoff.tick(10.0)
        backoff.record_loss(1.0)
    assert 0 < backoff.level < 0.11
    assert backoff.fill_share == MAX_FILL_SHARE * (1 - backoff.level)
    for _ in range(20):
        backoff.tick(10.0)
        backoff.record_loss(100.0)
    assert backoff.fill_share == 0


def test_it_recovers_within_seconds():
    loss_backoff = LossBackoff()
    loss_backoff.record_loss(1.0)
    loss_backoff.tick(0.0)
    levels = []
    for _ in range(50):
        loss_backoff.tick(0.0)
        levels.append(loss_backoff.level)
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] < 0.1 * levels[0]


def test_at_rest_an_expected_backlog_may_fill_all_of_the_time_if_quality_gains_more_than_a_tail_loses():
    backoff = LossBackoff()

    def share(utilization: float, gain: float) -> float:
        backoff.set_load(utilization, gain)
        assert backoff.fill_share == MAX_FILL_SHARE * (1 - backoff.level)
        return backoff.expected_share

    between = (1 + MAX_FILL_SHARE) / 2
    assert [share(0.0, gain) for gain in (0.0, TAIL / 2, TAIL, 0.2)] == pytest.approx(
        [MAX_FILL_SHARE, between, 1.0, 1.0]
    )
    assert [share(BUSY / 2, 0.2), share(BUSY, 0.2), share(1.5, 0.2)] == pytest.approx(
        [between, MAX_FILL_SHARE, MAX_FILL_SHARE]
    )
    backoff.record_loss(1.0)
    assert share(0.0, 0.2) == 1 - backoff.level < 1


def chosen(with_losses: bool) -> str:
    driver = RouterDriver(router(CPU, cpu_lanes(1)))
    if with_losses:
        for _ in range(4):
            driver.router.state.loss_backoff.record_loss(1.0)
            driver.router.state.loss_backoff.tick(0.0)
    query = driver.submit(20, 0.1)
    driver.submit(20, 0.1)
    dispatch = driver.router.next(0, 0.0)
    assert dispatch is not None
    assert query.path == dispatch.path
    return driver.router.state.path_specs[dispatch.path].name


def test_recent_losses_make_it_take_the_fastest_path():
    assert chosen(with_losses=False) == "hybrid@cpu"
    assert chosen(with_losses=True) == "table@cpu"


def test_a_new_policy_does_not_pay_for_the_losses_of_the_one_before():
    driver = RouterDriver(router(CPU, cpu_lanes(1), policy="static:table@cpu"))
    backoff = driver.router.state.loss_backoff
    for _ in range(4):
        backoff.record_loss(1.0)
        backoff.tick(0.0)
    driver.router.set_policy(driver.router.state.routing.model_copy(update={"policy": "priced"}))
    assert (backoff.level, backoff.fill_share) == (0.0, MAX_FILL_SHARE)
