"""Which losses indicate the load: only those of queries that had time to wait."""

import pytest

from polyrec.planner.routing.policies.loss_backoff import KEPT_PER_TICK
from tests.planner.routing.servers import CPU, RouterDriver, cpu_lanes, router

USUAL_S = 0.02


def level_after_losing(budget_s: float, usual_budget_s: float = USUAL_S) -> float:
    """The level of the back-off after a query of one row has expired beside usual ones of 25 rows."""
    driver = RouterDriver(router(CPU, cpu_lanes(1)))
    for _ in range(20):
        driver.submit(25, usual_budget_s)
        driver.run(driver.now_s + 0.1)
        driver.router.tick(driver.now_s)
    assert driver.router.state.loss_backoff.level == 0
    driver.submit(1, budget_s)
    driver.router.expire(driver.now_s + budget_s)
    return driver.router.state.loss_backoff.level


def test_a_query_that_had_time_to_wait_counts():
    assert level_after_losing(USUAL_S) > 0
    assert level_after_losing(USUAL_S / 8) > 0


def test_one_that_the_full_queue_has_no_room_for_counts():
    driver = RouterDriver(router(CPU, cpu_lanes(1)))
    while driver.ends[driver.submit(4096, 10.0)] != ["rejected"]:
        assert driver.router.state.loss_backoff.level == 0
    assert driver.router.state.loss_backoff.level > 0


def test_loss_of_a_query_that_nearly_fills_its_budget_is_ignored():
    assert level_after_losing(1.1e-4) == 0


def test_loss_counts_if_all_budgets_are_equally_short():
    assert level_after_losing(1.1e-4, usual_budget_s=2.2e-4) > 0


@pytest.mark.parametrize("budget_s", [1e-6, 6e-5])
def test_loss_of_a_query_with_an_impossible_budget_is_ignored(budget_s):
    assert level_after_losing(budget_s, usual_budget_s=2.2e-4) == 0


@pytest.mark.parametrize("lanes", [1, 2])
def test_loss_of_a_query_lowers_quality_by_its_share_of_the_best_paths_gain(lanes):
    driver = RouterDriver(router(CPU, cpu_lanes(lanes)))
    rows = 400
    for _ in range(100):
        driver.submit(rows, USUAL_S)
        driver.run(driver.now_s + 0.1)
        driver.router.tick(driver.now_s)
    driver.submit(3, USUAL_S)
    driver.router.expire(driver.now_s + USUAL_S)
    hybrid, table = (path.quality for path in CPU)
    at_stake = sum(rows * (hybrid - table) * KEPT_PER_TICK**ago for ago in range(100))
    assert driver.router.state.loss_backoff.level == pytest.approx(3 * hybrid / at_stake, rel=0.05)


def test_a_query_that_expires_while_it_executes_counts_once():
    driver = RouterDriver(router(CPU, cpu_lanes(1)))
    budget_s = 1.1e-3
    for _ in range(100):
        driver.submit(25, budget_s)
        driver.run(driver.now_s + 0.1)
        driver.router.tick(driver.now_s)
    query = driver.submit(25, budget_s)
    driver.turn()
    driver.now_s = query.deadline_s
    driver.turn()
    assert driver.ends[query] == ["expired"]
    lost_share = driver.router.state.loss_backoff.avoidable_share(1.0)
    assert lost_share > 0
    driver.now_s += 1e-4
    driver.done(0)
    assert driver.router.state.loss_backoff.avoidable_share(1.0) == lost_share


def test_a_query_whose_client_left_does_not_count_if_its_batch_ends_late():
    driver = RouterDriver(router(CPU, cpu_lanes(1)))
    query = driver.submit(25, USUAL_S)
    driver.turn()
    driver.cancel(query)
    driver.now_s = query.deadline_s + USUAL_S
    driver.done(0)
    driver.router.tick(driver.now_s)
    assert driver.router.state.loss_backoff.avoidable_share(1.0) == 0


def test_a_query_answered_in_time_by_a_probe_does_not_count_if_its_other_batch_ends_late():
    driver = RouterDriver(router(CPU, cpu_lanes(2)))
    driver.submit(25, USUAL_S)
    driver.turn()
    driver.now_s += USUAL_S
    driver.done(0)
    driver.router.lane_down(0)
    driver.router.lane_up(0, driver.now_s)
    query = driver.submit(25, USUAL_S)
    driver.turn()
    assert [(d.probe, d.parts[0].query) for d in driver.running.values()] == [(True, query), (False, query)]
    # as the server, which answers before it reports the batch
    query.settled = True
    driver.done(0)
    driver.now_s = query.deadline_s + USUAL_S
    driver.done(1)
    driver.router.tick(driver.now_s)
    assert driver.router.state.loss_backoff.avoidable_share(1.0) == 0
