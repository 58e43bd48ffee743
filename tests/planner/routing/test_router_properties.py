"""Properties of the router under random events: every query ends exactly once, whatever lanes do."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.planner.routing.query import Query
from tests.planner.routing.servers import (
    BOTH,
    CPU,
    GPU_LANE,
    POLICIES,
    RouterDriver,
    cpu_lanes,
    router,
)

ROWS = st.sampled_from([1, 7, 23, 147, 700, 3000])
BUDGET_S = st.sampled_from([0.0, 0.001, 0.01, 0.1])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), ROWS, BUDGET_S, st.integers(0, 2), st.booleans()),
        st.tuples(st.just("pass"), st.sampled_from([1e-5, 5e-4, 2e-3, 0.05])),
        st.tuples(st.just("done"), st.integers(0, 4)),
        st.tuples(st.just("failed"), st.integers(0, 4)),
        st.tuples(st.just("killed"), st.integers(0, 4)),
        st.tuples(st.just("up"), st.integers(0, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.sampled_from(["tick", "policy"])),
    ),
    max_size=60,
)
SERVERS = [
    (CPU, cpu_lanes(1, "inline")),
    (CPU, cpu_lanes(3)),
    (BOTH, (GPU_LANE, *cpu_lanes(2))),
]


def consistent(driver: RouterDriver) -> None:
    """The queue's rows are those of the unsettled queries' pieces, and nobody is counted twice."""
    queue = driver.router.state.queue
    assert queue.rows == sum(piece.rows for piece in queue.unsettled())
    assert queue.privileged_rows == sum(piece.rows for piece in queue.unsettled() if piece.query.priority)
    waiting: dict[Query, int] = {}
    for piece in queue.unsettled():
        waiting[piece.query] = waiting.get(piece.query, 0) + piece.rows
    for query, rows in waiting.items():
        assert rows == query.rows - query.dispatched_rows


def step(driver: RouterDriver, step: tuple, policies: list[str]) -> None:
    kind, *rest = step
    lane = rest[0] % len(driver.router.lanes) if rest and isinstance(rest[0], int) else 0
    if kind == "offer":
        driver.offer(*rest)
    elif kind == "pass":
        driver.now_s += rest[0]
    elif kind == "done" and lane in driver.running:
        driver.done(lane)
    elif kind == "failed" and lane in driver.running:
        driver.failed(lane)
    elif kind == "killed":
        driver.router.lane_down(lane, driver.now_s)
        if lane in driver.running:
            driver.failed(lane)
    elif kind == "up":
        driver.router.lane_up(lane, driver.now_s)
    elif kind == "cancel" and driver.ends:
        driver.cancel(list(driver.ends)[rest[0] % len(driver.ends)])
    elif kind == "tick":
        driver.router.tick(driver.now_s)
    elif kind == "policy":
        routing = driver.router.state.routing.model_copy(update={"policy": policies[0]})
        policies.append(policies.pop(0))
        driver.router.set_policy(routing, driver.now_s)


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
        driver.offer(rows, budget_s)
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
        driver.offer(rows, budget_s)
        driver.run(driver.now_s + wait_s)
    driver.run(driver.now_s + 0.2)
    parts: dict[Query, list] = {}
    for d in driver.dispatches:
        for part in d.parts:
            parts.setdefault(part.query, []).append((part.first, part.rows, driver.router.paths[d.path].name))
    for query, own in parts.items():
        assert len({name.partition("@")[0] for _, _, name in own}) == 1
        if driver.ends[query] == ["answered"]:
            covered = sorted((first, first + rows) for first, rows, _ in own)
            assert covered[0][0] == 0
            assert covered[-1][1] == query.rows
            assert all(a[1] == b[0] for a, b in pairwise(covered))
