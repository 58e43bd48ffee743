"""Properties of the router under random events: every query ends exactly once, whatever lanes do."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.planner.routing.query import Query
from tests.planner.routing.random_events import ROWS, SERVERS, STEPS, consistent, step
from tests.planner.routing.servers import (
    POLICIES,
    RouterDriver,
    router,
)


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, server=st.sampled_from(SERVERS), policy=st.sampled_from(POLICIES))
def test_every_query_ends_exactly_once_whatever_happens(steps, server, policy):
    driver = RouterDriver(router(*server, policy=policy))
    policies = list(POLICIES)
    for one in steps:
        step(driver, one, policies)
        consistent(driver)
        driver.turn()
        consistent(driver)
    for lane in list(driver.running):
        driver.done(lane)
    driver.now_s += 1.0
    driver.turn()
    for lane in list(driver.running):
        driver.done(lane)
    consistent(driver)
    assert [ends for ends in driver.ends.values() if len(ends) != 1] == []
    assert driver.router.state.queue.rows == 0
    assert list(driver.router.state.queue.unsettled()) == []
    assert not driver.router.state.queue.held


@settings(max_examples=50, deadline=None)
@given(steps=STEPS, server=st.sampled_from(SERVERS), policy=st.sampled_from(POLICIES))
def test_same_events_give_same_decisions(steps, server, policy):
    def run() -> list:
        driver = RouterDriver(router(*server, policy=policy))
        for one in steps:
            step(driver, one, list(POLICIES))
            driver.turn()
        return [(d.lane, d.path, d.rows, d.started_s, d.probe) for d in driver.dispatches]

    assert run() == run()


@settings(max_examples=70, deadline=None)
@given(
    offers=st.lists(st.tuples(ROWS, st.floats(1e-3, 0.05), st.floats(0, 2e-3)), min_size=1, max_size=40),
    server=st.sampled_from(SERVERS),
    policy=st.sampled_from(["priced", "static:table@cpu", "static:hybrid@cpu"]),
)
def test_no_batch_is_dispatched_that_should_miss_a_deadline_in_it(offers, server, policy):
    driver = RouterDriver(router(*server, policy=policy))
    for rows, budget_s, wait_s in offers:
        driver.submit(rows, budget_s)
        driver.run(driver.now_s + wait_s)
    for d in driver.dispatches:
        for part in d.parts:
            assert d.started_s + d.median_s <= part.query.deadline_s + 1e-9


@settings(max_examples=70, deadline=None)
@given(
    offers=st.lists(st.tuples(ROWS, st.floats(1e-3, 0.05), st.floats(0, 2e-3)), min_size=1, max_size=40),
    server=st.sampled_from(SERVERS),
    policy=st.sampled_from(POLICIES),
)
def test_all_parts_of_a_query_run_on_one_representation_and_cover_its_rows(offers, server, policy):
    driver = RouterDriver(router(*server, policy=policy))
    for rows, budget_s, wait_s in offers:
        driver.submit(rows, budget_s)
        driver.run(driver.now_s + wait_s)
    driver.run(driver.now_s + 0.2)
    parts: dict[Query, list] = {}
    for d in driver.dispatches:
        for part in d.parts:
            parts.setdefault(part.query, []).append(
                (part.first, part.rows, driver.router.state.path_specs[d.path].name)
            )
    for query, own in parts.items():
        assert len({name.partition("@")[0] for _, _, name in own}) == 1
        if driver.ends[query] == ["answered"]:
            covered = sorted((first, first + rows) for first, rows, _ in own)
            assert covered[0][0] == 0
            assert covered[-1][1] == query.rows
            assert all(a[1] == b[0] for a, b in pairwise(covered))
