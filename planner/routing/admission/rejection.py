"""Decides whether a query is rejected, by the queue's limit, its deadline and the policy's prediction.

The router asks for each query, and explain.py for a hypothetical one.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import worth_accepting
from polyrec.planner.routing.policies.policy import Policy
from polyrec.planner.routing.query import Query, Rejection, RejectReason
from polyrec.planner.routing.router_state import RouterState


def rejection(
    state: RouterState, policy: Policy, query: Query, end_s: float, now_s: float
) -> Rejection | None:
    """Returns the rejection of a query, None if it can be accepted.

    end_s: when its execution may begin, which is the expected end of the reading round.
    """
    queue = state.queue
    if not state.usable:
        return Rejection(RejectReason.UNAVAILABLE, 1.0, queue.rows)
    excess_rows = excess_rows_of(state, query)
    if excess_rows > 0:
        return Rejection(RejectReason.OVERLOAD, excess_rows / state.total_rate, queue.rows)
    if query.deadline_s <= now_s:
        return Rejection(RejectReason.EXPIRED, 0.0, queue.rows)
    excess_s = policy.excess_s(state, query, end_s)
    if excess_s <= 0 or worth_accepting(state, query, end_s):
        return None
    return Rejection(RejectReason.OVERLOAD, excess_s, queue.rows)


def excess_rows_of(state: RouterState, query: Query) -> int:
    """Returns by how many rows a query exceeds the room that the queue has for it; at most 0: it fits."""
    return state.queue.excess_rows(query.rows, query.priority > 0, state.limits.max_queued_rows)
