"""The front's cost: as planned until it is observed, then as observed."""

import pytest

from polyrec.planner.plan import Routing
from polyrec.planner.routing.latency.front_cost import FrontCost, LoopTime

MEAN_ROWS = 20.0


def front(query_s: float = 1e-4, row_s: float = 1e-6) -> FrontCost:
    return FrontCost(Routing(query_s=query_s, row_s=row_s))


def test_the_plan_counts_until_something_is_observed():
    cost = front()
    assert (cost.query_s, cost.answer_s, cost.row_s, cost.answer_row_s) == (1e-4, 5e-5, 1e-6, 5e-7)
    assert cost.read_share == 0


@pytest.mark.parametrize("planned_s", [0.0, 1e-5, 5e-4])
def test_observed_loop_time_is_learned(planned_s):
    """100 of 400 queries were answered; the others were rejected, which takes less time."""
    cost = front(planned_s)
    reading_s = 400 * (3e-5 + MEAN_ROWS * 5e-7)
    answering_s = 100 * (4e-5 + MEAN_ROWS * 5e-7)
    for _ in range(40):
        cost.observe(LoopTime(reading_s + answering_s, answering_s, 100), queries=400, mean_rows=MEAN_ROWS)
    assert cost.read_s == pytest.approx(3e-5, rel=0.01)
    assert cost.answer_s == pytest.approx(4e-5, rel=0.01)
    assert cost.query_s == pytest.approx(7e-5, rel=0.01)


def test_a_tick_with_few_queries_says_nothing():
    cost = front()
    cost.observe(LoopTime(0.05, 0.04, 3), queries=3, mean_rows=MEAN_ROWS)
    assert (cost.query_s, cost.read_s, cost.answer_s) == (1e-4, 5e-5, 5e-5)


def test_read_share_follows_the_arrival_rate():
    cost = front(query_s=8e-5, row_s=0.0)
    cost.update_read_share(queries_s=5000, mean_rows=MEAN_ROWS)
    assert cost.read_share == pytest.approx(0.2)
    cost.update_read_share(queries_s=1e6, mean_rows=MEAN_ROWS)
    assert cost.read_share < 1
