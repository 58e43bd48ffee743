"""Holds queries whose rows are still being read from a slow tier (popular first: FAE, Hotline).

What is hot does not wait for what is cold: a query with misses is held beside the queue while its rows are
read, and lanes execute others. It is queued when its rows are there, or while its deadline still allows to
execute it; then its batch waits for what is missing. One that the reads alone would make late is rejected.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import worth_accepting
from polyrec.planner.routing.query import Misses, Query, Rejection, RejectReason
from polyrec.planner.routing.router_state import RouterState

SERVICES_KEPT = 3.0
"""A query is held until this many of its predicted service times are left."""


def hold(state: RouterState, query: Query, misses: Misses, now_s: float) -> Rejection | None:
    """Takes a query out of the queue, to hold it as long as its deadline allows.

    Settles and rejects it if the reads alone make it late.
    """
    queue = state.queue
    queue.take(query)
    query.misses, query.reading = misses, True
    needed_s = state.service_time_s(query.rows, 0) + state.answer_s(query)
    queue.hold(query, query.deadline_s - SERVICES_KEPT * needed_s)
    excess_s = now_s + state.reads.tail_s(misses) + needed_s - query.deadline_s
    if excess_s <= 0 or worth_accepting(state, query, now_s):
        return None
    query.settled = True
    queue.discount(query)
    state.loss_backoff.record_loss()
    return Rejection(RejectReason.OVERLOAD, excess_s, queue.rows)
