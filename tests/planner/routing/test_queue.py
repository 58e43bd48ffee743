"""The queue: order, rows, and queries that are settled while they wait."""

from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import Queue


def query(rows: int = 10, deadline_s: float = 1.0, priority: int = 0) -> Query:
    return Query(rows, 0.0, deadline_s, priority)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), max_size=30))
def test_pieces_are_in_order_of_priority_and_deadline(offers):
    queue = Queue()
    for priority, deadline_s in offers:
        queue.push(query(priority=priority, deadline_s=deadline_s), 0, 10)
    order = [(piece.query.priority or 99, piece.query.deadline_s) for piece in queue.pieces]
    assert order == sorted(order)
    assert queue.rows == 10 * len(offers)


def test_a_fifo_queue_is_in_order_of_arrival():
    queue = Queue()
    queue.fifo = True
    for arrival_s in (0.2, 0.1, 0.3):
        queue.push(Query(10, arrival_s, 1.0 - arrival_s), 0, 10)
    assert [piece.query.arrival_s for piece in queue.pieces] == [0.1, 0.2, 0.3]


def test_equal_deadlines_keep_their_order_of_arrival():
    queue = Queue()
    queries = [query() for _ in range(5)]
    for q in queries:
        queue.push(q, 0, 10)
    assert [piece.query for piece in queue.pieces] == queries


def test_settled_queries_are_discounted_once():
    queue = Queue()
    gone, stays = query(7), query(9)
    for q in (gone, stays):
        queue.push(q, 0, q.rows)
    gone.settled = True
    queue.discount(gone)
    queue.discount(gone)
    assert queue.rows == 9
    assert [piece.query for piece in queue.trim()] == [stays]
    assert queue.rows == 9


def test_ready_queries_are_released_in_order_for_about_one_batch():
    queue = Queue()
    queries = [query(rows=10) for _ in range(4)]
    for q in queries:
        queue.push(q, 0, q.rows)
        queue.take(q)
        queue.hold(q, 0.5)
        queue.mark_ready(q, 0.5)
    assert queue.release_ready(15) == queries[:2]
    assert queue.release_ready(1) == queries[2:3]
    assert list(queue.held) == queries[3:]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 0.1))
def test_a_sweep_removes_exactly_the_queries_that_cannot_be_in_time(deadlines, now_s, doomed_s):
    queue = Queue()
    queries = [query(deadline_s=d) for d in deadlines]
    for q in queries:
        queue.push(q, 0, 10)
    out = queue.sweep(now_s, doomed_s)
    assert set(out) == {q for q in queries if q.deadline_s - doomed_s <= now_s}
    assert all(q.settled for q in out)
    assert queue.rows == 10 * (len(queries) - len(out))
    assert queue.earliest_s == min((p.query.deadline_s for p in queue.pieces), default=float("inf"))


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_a_sweep_counts_what_is_held_and_forgets_what_was_settled_elsewhere(offers):
    queue = Queue()
    left = []
    for deadline_s, held, settled in offers:
        q = query(deadline_s=deadline_s)
        if held:
            queue.hold(q, 0.1)
        else:
            queue.push(q, 0, 10)
        q.settled = settled
        if not settled and deadline_s > 0.5:
            left.append(q)
    queue.sweep(0.5, 0.0)
    assert {p.query for p in queue.pieces} | set(queue.held) == set(left)
    assert queue.rows == 10 * len(left)
    assert queue.earliest_s == min((q.deadline_s for q in left), default=float("inf"))
