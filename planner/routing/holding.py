"""Holds queries whose rows are still being read from a slow tier ("popular first", after FAE and Hotline).

A query with misses is held outside the queue while its rows are read, so that lanes execute hot queries
meanwhile. Even once its rows are read, its batch takes longer than a hot one, as the rows enter the cache. So
it is queued only when a lane is free and nothing else waits, or after half of its budget. If its deadline
comes close before the rows are read, it is queued anyway and its batch waits for them. A query that the reads
alone would make late is rejected.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import worth_accepting
from polyrec.planner.routing.query import Misses, Query, Rejection, RejectReason
from polyrec.planner.routing.router_state import RouterState

SERVICES_KEPT = 3.0
"""A query is held until this many times its predicted service time is left."""
PASSED_SHARE = 0.5
"""Share of its budget after which hot queries may no longer overtake a query whose rows are read."""


def hold(state: RouterState, query: Query, misses: Misses, now_s: float) -> Rejection | None:
    """Takes a query out of the queue and holds it as long as its deadline allows.

    Settles and rejects it if the reads alone make it late, whatever its path.
    """
    queue = state.queue
    queue.take(query)
    query.misses, query.reading = misses, True
    needed_s = state.service_time_s(query.rows, 0) + state.front.answering_s(query.rows)
    queue.hold(query, query.deadline_s - SERVICES_KEPT * needed_s)
    excess_s = now_s + state.reads.tail_s(misses) + needed_s - query.deadline_s
    if excess_s <= 0 or worth_accepting(state, query, now_s):
        return None
    queue.settle(query)
    return Rejection(RejectReason.OVERLOAD, excess_s, queue.rows)


def mark_ready(state: RouterState, query: Query) -> None:
    """Allows a query whose rows were read to be queued once no other waits or PASSED_SHARE has passed."""
    budget_s = query.deadline_s - query.arrival_s
    state.queue.mark_ready(query, query.arrival_s + PASSED_SHARE * budget_s)


def queue_ready(state: RouterState) -> bool:
    """Queues ready queries for one batch; returns whether there were any. Call it when nothing else waits."""
    released = state.queue.release_ready(state.max_merge_rows) if state.queue.ready else []
    for query in released:
        state.queue.push(query, 0, query.rows)
    return bool(released)
