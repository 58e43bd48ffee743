"""Random events of a router: queries, ends and deaths of lanes, cancellations, ticks."""

from hypothesis import strategies as st

from polyrec.planner.routing.query import Misses, Query
from tests.planner.routing.servers import (
    BOTH,
    CPU,
    GPU_LANE,
    RouterDriver,
    cpu_lanes,
)

ROWS = st.sampled_from([1, 7, 23, 147, 700, 3000])
BUDGET_S = st.sampled_from([0.0, 0.001, 0.01, 0.1])
MISSES = st.builds(Misses, st.integers(0, 40), st.integers(0, 3))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), ROWS, BUDGET_S, st.integers(0, 2), st.booleans()),
        st.tuples(st.just("submit"), ROWS, BUDGET_S, st.integers(0, 2), st.booleans(), MISSES),
        st.tuples(st.just("read"), st.integers(0, 60)),
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
    """Asserts that the queue's rows are those of the unsettled queries' pieces, each counted once."""
    queue = driver.router.state.queue
    held = [query for query in queue.held if not query.settled]
    assert queue.rows == sum(piece.rows for piece in queue.unsettled()) + sum(query.rows for query in held)
    privileged = [piece.rows for piece in queue.unsettled() if piece.query.priority]
    assert queue.privileged_rows == sum(privileged) + sum(query.rows for query in held if query.priority)
    assert all(query.dispatched_rows == 0 for query in held)
    assert not any(piece.query in queue.held for piece in queue.pieces)
    waiting: dict[Query, int] = {}
    for piece in queue.unsettled():
        waiting[piece.query] = waiting.get(piece.query, 0) + piece.rows
    for query, rows in waiting.items():
        assert rows == query.rows - query.dispatched_rows


def step(driver: RouterDriver, step: tuple, policies: list[str]) -> None:
    kind, *rest = step
    lane = rest[0] % len(driver.router.state.lane_specs) if rest and isinstance(rest[0], int) else 0
    if kind == "submit":
        driver.submit(*rest)
    elif kind == "pass":
        driver.now_s += rest[0]
    elif kind == "done" and lane in driver.running:
        driver.done(lane)
    elif kind == "failed" and lane in driver.running:
        driver.failed(lane)
    elif kind == "killed":
        driver.router.lane_down(lane)
        if lane in driver.running:
            driver.failed(lane)
    elif kind == "up":
        driver.router.lane_up(lane, driver.now_s)
    elif kind == "cancel" and driver.ends:
        driver.cancel(list(driver.ends)[rest[0] % len(driver.ends)])
    elif kind == "read" and driver.ends:
        driver.read(list(driver.ends)[rest[0] % len(driver.ends)])
    elif kind == "tick":
        driver.router.tick(driver.now_s)
    elif kind == "policy":
        routing = driver.router.state.routing.model_copy(update={"policy": policies[0]})
        policies.append(policies.pop(0))
        driver.router.set_policy(routing)
