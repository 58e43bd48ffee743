"""Tests which share of its time a lane is reported to be used."""

import pytest

from polyrec.planner.routing.lanes.path import PathSpec
from tests.planner.routing.servers import RouterDriver, cpu_lanes, line, router

TICK_S = 0.1


@pytest.mark.parametrize("batch_s", [0.02, 0.15, 1.0])
def test_a_lane_that_always_executes_is_used_all_the_time_however_long_its_batches_are(batch_s):
    path = PathSpec("table@cpu", "cpu", 0.78, line(batch_s, 1e-7))
    driver = RouterDriver(router((path,), cpu_lanes(1)))
    for tick in range(1, 101):
        while driver.now_s < tick * TICK_S:
            if not driver.running:
                driver.submit(1, 60.0)
                driver.turn()
            end_s = driver.running[0].started_s + batch_s
            driver.now_s = min(end_s, tick * TICK_S)
            if driver.now_s == end_s:
                driver.done(0, batch_s)
        driver.router.tick(driver.now_s)
    assert driver.router.snapshot().lanes[0].used > 0.95
