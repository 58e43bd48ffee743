"""Filters lost queries (not answered in time), so that only those which indicate overload reduce quality.

Relevant losses make the router back off from quality (policies/loss_backoff.py). Clients choose their
budgets. A query whose budget barely exceeds its execution time is lost to any batch that runs when it
arrives, whatever the path, so backing off would only degrade the answers to others. But if most queries have
such tight budgets, they are the usual traffic and do count.
"""

from __future__ import annotations

from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router_state import RouterState

SLACK_SHARE = 0.5
"""A loss counts if execution would leave at least this share of the query's budget for waiting."""
USUAL_SHARE = 0.25
"""A loss also counts if the query's slack is at least this share of a usual query's slack."""


def record_loss(
    state: RouterState, rows: int, budget_s: float, excess_s: float, best_only: bool = False
) -> None:
    """Records a query that was rejected, expired or answered late, if its budget allowed waiting.

    excess_s: seconds beyond its budget that it took or would have taken.
    """
    slack_s = state.slack_s(rows, budget_s, best_only)
    backoff = state.loss_backoff
    if slack_s >= 0 and slack_s >= min(SLACK_SHARE * budget_s, USUAL_SHARE * backoff.usual_slack_s):
        backoff.record_loss(rows * state.best_value, 1 - budget_s / (budget_s + excess_s))


def record_expired(state: RouterState, query: Query) -> None:
    """Records a query whose deadline passed, unless reads of its rows are to blame.

    One that waited needs at least its service time more. One that was executing may have been nearly done.
    """
    if not query.reading:
        excess_s = state.service_time_s(query.rows, 0) if query.path < 0 else 0.0
        record_loss(state, query.rows, query.deadline_s - query.arrival_s, excess_s, query.best_only)


def tick(state: RouterState, passed_s: float) -> None:
    """Updates the usual slack, and what was offered and at stake. passed_s: seconds since the last tick."""
    observed, backoff = state.observed, state.loss_backoff
    backoff.usual_slack_s = state.slack_s(int(observed.mean_rows), observed.budget_s)
    rate = gain = 0.0
    for lane in state.usable:
        rate += lane.rate
        gain += lane.rate * (state.paths[lane.order[0]].value - state.paths[lane.fastest].value)
    arrived = observed.rows_s * passed_s
    backoff.tick(arrived * gain / rate if rate else 0.0, arrived * state.best_value)
