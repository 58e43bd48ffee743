"""The router: every query ends exactly once, whatever lanes do; deadlines, splitting, merging, priorities."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.planner.plan import Limits
from polyrec.planner.routing.query import Query, Reason, Refusal
from tests.planner.routing.worlds import BOTH, CPU, GPU_LANE, POLICIES, TABLE, Owner, cpu_lanes, line, router

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


def consistent(owner: Owner) -> None:
    """The queue's rows are those of the unsettled queries' pieces, and nobody is counted twice."""
    queue = owner.router.board.queue
    assert queue.rows == sum(piece[5] for piece in queue.unsettled())
    assert queue.privileged == sum(piece[5] for piece in queue.unsettled() if piece[3].priority)
    waiting: dict[Query, int] = {}
    for piece in queue.unsettled():
        waiting[piece[3]] = waiting.get(piece[3], 0) + piece[5]
    for query, rows in waiting.items():
        assert rows == query.rows - query.taken_rows


def step(owner: Owner, step: tuple, policies: list[str]) -> None:
    kind, *rest = step
    lane = rest[0] % len(owner.router.lanes) if rest and isinstance(rest[0], int) else 0
    if kind == "offer":
        owner.offer(*rest)
    elif kind == "pass":
        owner.now_s += rest[0]
    elif kind == "done" and lane in owner.running:
        owner.done(lane)
    elif kind == "failed" and lane in owner.running:
        owner.failed(lane)
    elif kind == "killed":
        owner.router.lane_down(lane, owner.now_s)
        if lane in owner.running:
            owner.failed(lane)
    elif kind == "up":
        owner.router.lane_up(lane, owner.now_s)
    elif kind == "cancel" and owner.ends:
        owner.cancel(list(owner.ends)[rest[0] % len(owner.ends)])
    elif kind == "tick":
        owner.router.tick(owner.now_s)
    elif kind == "policy":
        routing = owner.router.board.routing.model_copy(update={"policy": policies[0]})
        policies.append(policies.pop(0))
        owner.router.set_policy(routing, owner.now_s)


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, server=st.sampled_from(SERVERS), policy=st.sampled_from(POLICIES))
def test_every_query_ends_exactly_once_whatever_happens(steps, server, policy):
    owner = Owner(router(*server, policy=policy))
    policies = list(POLICIES)
    for one in steps:
        step(owner, one, policies)
        consistent(owner)
        owner.turn()
        consistent(owner)
    for lane in list(owner.running):
        owner.done(lane)
    owner.now_s += 1.0
    owner.turn()
    for lane in list(owner.running):
        owner.done(lane)
    consistent(owner)
    assert [ends for ends in owner.ends.values() if len(ends) != 1] == []
    assert owner.router.board.queue.rows == 0
    assert list(owner.router.board.queue.unsettled()) == []


@settings(max_examples=50, deadline=None)
@given(steps=STEPS, server=st.sampled_from(SERVERS), policy=st.sampled_from(POLICIES))
def test_same_events_give_same_decisions(steps, server, policy):
    def run() -> list:
        owner = Owner(router(*server, policy=policy))
        for one in steps:
            step(owner, one, list(POLICIES))
            owner.turn()
        return [(d.lane, d.path, d.rows, d.started_s, d.probe) for d in owner.dispatches]

    assert run() == run()


@settings(max_examples=70, deadline=None)
@given(
    offers=st.lists(st.tuples(ROWS, st.floats(1e-3, 0.05), st.floats(0, 2e-3)), min_size=1, max_size=40),
    server=st.sampled_from(SERVERS),
    policy=st.sampled_from(["priced", "static:table@cpu", "static:hybrid@cpu"]),
)
def test_no_batch_is_dispatched_that_should_miss_a_deadline_in_it(offers, server, policy):
    owner = Owner(router(*server, policy=policy))
    for rows, budget_s, wait_s in offers:
        owner.offer(rows, budget_s)
        owner.run(owner.now_s + wait_s)
    for d in owner.dispatches:
        for part in d.parts:
            assert d.started_s + d.median_s <= part.query.deadline_s + 1e-9


@settings(max_examples=70, deadline=None)
@given(
    offers=st.lists(st.tuples(ROWS, st.floats(1e-3, 0.05), st.floats(0, 2e-3)), min_size=1, max_size=40),
    server=st.sampled_from(SERVERS),
    policy=st.sampled_from(POLICIES),
)
def test_all_parts_of_a_query_run_on_one_representation_and_cover_its_rows(offers, server, policy):
    owner = Owner(router(*server, policy=policy))
    for rows, budget_s, wait_s in offers:
        owner.offer(rows, budget_s)
        owner.run(owner.now_s + wait_s)
    owner.run(owner.now_s + 0.2)
    parts: dict[Query, list] = {}
    for d in owner.dispatches:
        for part in d.parts:
            parts.setdefault(part.query, []).append((part.first, part.rows, owner.router.paths[d.path].name))
    for query, own in parts.items():
        assert len({name.partition("@")[0] for _, _, name in own}) == 1
        if owner.ends[query] == ["answered"]:
            covered = sorted((first, first + rows) for first, rows, _ in own)
            assert covered[0][0] == 0
            assert covered[-1][1] == query.rows
            assert all(a[1] == b[0] for a, b in pairwise(covered))


def test_an_idle_server_answers_on_the_most_accurate_path():
    owner = Owner(router())
    query = owner.offer(23, 0.1)
    owner.run(0.05)
    assert owner.ends[query] == ["answered"]
    assert owner.router.paths[query.path].name == "hybrid@cpu"
    assert query.reason is Reason.BEST


def test_a_short_budget_gets_a_faster_path_and_says_why():
    owner = Owner(router())
    query = owner.offer(23, 0.0006)
    owner.run(0.05)
    assert owner.router.paths[query.path].name == "table@cpu"
    assert query.reason is Reason.DEADLINE


def test_load_gets_a_faster_path_and_says_why():
    owner = Owner(router(lanes=cpu_lanes(1)))
    queries = [owner.offer(147, 0.02) for _ in range(20)]
    owner.run(0.1)
    assert all(owner.ends[q] == ["answered"] for q in queries)
    assert owner.router.paths[queries[0].path].name == "table@cpu"
    assert queries[0].reason is Reason.LOAD


def test_required_quality_waits_for_the_most_accurate_path_or_is_refused():
    owner = Owner(router(lanes=cpu_lanes(1)))
    queries = [owner.offer(147, 0.02, required=True) for _ in range(20)]
    owner.run(0.1)
    answered = [q for q in queries if owner.ends[q] == ["answered"]]
    assert 0 < len(answered) < 20
    assert {owner.router.paths[q.path].name for q in answered} == {"hybrid@cpu"}


def test_required_quality_that_no_lane_can_make_in_time_is_refused_at_the_door():
    r = router(lanes=cpu_lanes(1))
    assert r.offer(Query(147, 0.0, 0.002), 0.0) is None
    assert r.offer(Query(147, 0.0, 0.002, required=True), 0.0) is not None


def test_a_query_waiting_behind_a_long_batch_is_dropped_at_its_own_deadline():
    """triton server#7512: there it was dropped when the batch in front of it had finished."""
    slow = (TABLE.__class__("table@cpu", "cpu", 0.78, line(0.5, 1e-6)),)
    owner = Owner(router(slow, cpu_lanes(1), policy="static:table@cpu"))
    owner.offer(10, 2.0)
    owner.turn()
    assert list(owner.running) == [0]
    waiting = Query(10, 0.0, 0.1)
    owner.ends[waiting] = []
    owner.router.board.queue.push(waiting, 0, 10, 0.1)  # as if the backlog had not been known
    assert owner.router.wake_s() <= 0.1
    owner.now_s = 0.1
    owner.turn()
    assert list(owner.running) == [0]
    assert owner.ends[waiting] == ["expired"]


def test_what_executes_is_given_up_at_its_deadline_too():
    owner = Owner(router(lanes=cpu_lanes(1)))
    query = owner.offer(23, 0.01)
    owner.turn()
    assert owner.running
    owner.now_s = 0.01
    owner.turn()
    assert owner.ends[query] == ["expired"]
    owner.now_s = 0.05
    owner.done(0)
    assert owner.ends[query] == ["expired"]


def test_a_backlog_refuses_early_and_says_when_it_has_drained():
    owner = Owner(router(lanes=cpu_lanes(1), policy="static:table@cpu"))
    refused = None
    while refused is None:
        query = Query(147, 0.0, 0.02)
        owner.ends[query] = []
        refused = owner.router.offer(query, 0.0)
    assert refused.why is Refusal.OVERLOAD
    assert refused.queued_rows > 1000
    assert 0 < refused.retry_after_s < 0.02
    owner.turn()
    # Tried again after that time, it is taken.
    owner.run(refused.retry_after_s)
    now_s = owner.now_s
    assert owner.router.offer(Query(147, now_s, now_s + 0.02), now_s) is None


def test_a_short_budget_goes_before_a_backlog_that_can_wait():
    owner = Owner(router(lanes=cpu_lanes(1)))
    for _ in range(40):
        owner.offer(147, 10.0)
    query = owner.offer(147, 0.004)
    owner.run(0.02)
    assert owner.ends[query] == ["answered"]


def test_a_full_queue_refuses_in_rows():
    owner = Owner(router(limits=Limits(max_queued_rows=4096)))
    assert owner.router.offer(Query(4000, 0.0, 9.0), 0.0) is None
    refused = owner.router.offer(Query(97, 0.0, 9.0), 0.0)
    assert refused is not None
    assert (refused.why, refused.queued_rows) == (Refusal.OVERLOAD, 4000)


def test_no_lane_alive_is_unavailable():
    r = router()
    r.lane_down(0, 0.0)
    r.lane_down(1, 0.0)
    refused = r.offer(Query(1, 0.0, 1.0), 0.0)
    assert refused is not None
    assert refused.why is Refusal.UNAVAILABLE


def test_higher_priority_goes_first_and_default_is_lowest():
    owner = Owner(router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=200), policy="static:table@cpu"))
    for priority in (0, 3, 1, 2):
        owner.offer(150, 0.1, priority)
    owner.run(0.05)
    assert [d.parts[0].query.priority for d in owner.dispatches] == [1, 2, 3, 0]


def test_earlier_deadlines_go_first():
    owner = Owner(router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=200), policy="static:table@cpu"))
    for budget_s in (0.09, 0.05, 0.07):
        owner.offer(150, budget_s)
    owner.run(0.05)
    assert [d.parts[0].query.deadline_s for d in owner.dispatches] == [0.05, 0.07, 0.09]


def test_small_queries_are_merged_into_one_batch():
    owner = Owner(router(lanes=cpu_lanes(1), policy="static:table@cpu"))
    for _ in range(10):
        owner.offer(5, 0.1)
    owner.turn()
    assert [len(d.parts) for d in owner.dispatches] == [10]


def test_a_large_query_is_split_over_free_lanes_when_one_would_be_late():
    owner = Owner(router(lanes=cpu_lanes(4), policy="static:hybrid@cpu"))
    query = owner.offer(1000, 0.012)
    owner.run(0.03)
    assert owner.ends[query] == ["answered"]
    assert len(owner.dispatches) >= 2
    assert {part.query for d in owner.dispatches for part in d.parts} == {query}


def test_an_inline_lane_holds_the_loop_for_five_milliseconds_at_most():
    owner = Owner(router(lanes=cpu_lanes(1, "inline"), policy="static:hybrid@cpu"))
    query = owner.offer(3000, 1.0)
    owner.run(0.5)
    assert owner.ends[query] == ["answered"]
    assert max(d.median_s for d in owner.dispatches) <= 0.005


def test_a_cancelled_query_is_not_executed_and_its_rows_count_no_more():
    owner = Owner(router(lanes=cpu_lanes(1)))
    owner.offer(700, 0.1)
    owner.turn()
    query = owner.offer(100, 0.1)
    assert owner.router.board.queue.rows == 100
    owner.cancel(query)
    assert owner.router.board.queue.rows == 0
    owner.run(0.1)
    assert all(part.query is not query for d in owner.dispatches for part in d.parts)


def test_a_lane_slow_by_its_model_leaves_work_to_a_faster_device_until_that_is_not_enough():
    owner = Owner(router(BOTH, (GPU_LANE, *cpu_lanes(2))))
    for _ in range(5):
        owner.offer(100, 0.02)
    owner.turn()
    assert list(owner.running) == [0]
    for _ in range(120):
        owner.offer(700, 0.02)
    owner.turn()
    assert set(owner.running) == {0, 1, 2}


def test_another_policy_takes_over_what_waits():
    owner = Owner(router(policy="mprec", lanes=cpu_lanes(1)))
    owner.offer(700, 0.1)
    owner.turn()
    query = owner.offer(23, 0.1)
    routing = owner.router.board.routing.model_copy(update={"policy": "static:table@cpu"})
    owner.router.set_policy(routing, owner.now_s)
    owner.run(0.09)
    assert owner.ends[query] == ["answered"]
    assert owner.router.paths[query.path].name == "table@cpu"


def test_a_weight_of_zero_takes_a_path_out():
    owner = Owner(router(weights={"hybrid@cpu": 0.0}))
    query = owner.offer(23, 0.1)
    owner.run(0.05)
    assert owner.router.paths[query.path].name == "table@cpu"
    assert query.reason is Reason.BEST


@pytest.mark.parametrize("policy", POLICIES)
def test_an_explanation_changes_nothing_and_is_json(policy):
    import json

    owner = Owner(router(policy=policy, lanes=cpu_lanes(1)))
    for _ in range(12):
        owner.offer(147, 0.02)
    owner.turn()
    before = owner.router.state(0.0)
    pieces = list(owner.router.board.queue.pieces)
    told = owner.router.explain(23, 0.02, 0.0)
    json.dumps(told.as_dict())
    json.dumps(before.as_dict())
    assert owner.router.state(0.0) == before
    assert owner.router.board.queue.pieces == pieces
    assert {c.path for c in told.candidates} == {p.name for p in owner.router.paths}


def test_an_explanation_is_what_then_happens():
    owner = Owner(router())
    told = owner.router.explain(23, 0.1, 0.0)
    query = owner.offer(23, 0.1)
    owner.turn()
    assert told.path == owner.router.paths[query.path].name == "hybrid@cpu"
    assert owner.router.explain(4000, 0.001, 0.0).path is None
