"""Holds queries whose rows are still being read from a slow tier (popular first: FAE, Hotline).

What is hot does not wait for what is cold: a query with misses is held beside the queue while its rows are
read, and lanes execute others. It is queued when its rows are there, or while its deadline still allows to
execute it; then its batch waits for what is missing.
"""

from __future__ import annotations

from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router_state import RouterState

SERVICES_KEPT = 3.0
"""A query is held until this many of its predicted service times are left."""


def hold(state: RouterState, query: Query, now_s: float) -> bool:
    """Holds a query, as long as its deadline allows; False if there is no time for that."""
    kept_s = SERVICES_KEPT * (state.service_time_s(query.rows, 0) + state.answer_s(query))
    until_s = query.deadline_s - kept_s
    if until_s <= now_s:
        return False
    state.queue.hold(query, until_s)
    return True
