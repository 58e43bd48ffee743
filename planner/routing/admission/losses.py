"""Losses: queries that were not answered in time, as a sign of overload.

Lost queries come in; those that say something about the load make the router back off from quality
(policies/loss_backoff.py). Clients choose their budgets. One that leaves hardly more time than execution
alone takes is lost to any batch that runs when its query comes, on any path: such losses would only
degrade the answers of others. Where most queries have as little time, it is the usual traffic, and counts.
"""

from __future__ import annotations

from polyrec.planner.routing.router_state import RouterState

SLACK_SHARE = 0.5
"""A query has time to wait if this share of its budget is left beside its execution."""
USUAL_SHARE = 0.25
"""Or if it has this share of the slack of a usual query."""


def record_loss(state: RouterState, rows: int, budget_s: float, required: bool = False) -> None:
    """Records a query that was rejected, expired or answered late, if it had time to wait."""
    slack_s = state.slack_s(rows, budget_s, required)
    backoff = state.loss_backoff
    if slack_s >= 0 and slack_s >= min(SLACK_SHARE * budget_s, USUAL_SHARE * backoff.usual_slack_s):
        backoff.record_loss(rows * state.best_value)


def tick(state: RouterState, passed_s: float) -> None:
    """Updates the usual slack and the value at stake. passed_s: since the last tick."""
    observed, backoff = state.observed, state.loss_backoff
    backoff.usual_slack_s = state.slack_s(int(observed.mean_rows), observed.budget_s)
    rate = gain = 0.0
    for lane in state.usable:
        rate += lane.rate
        gain += lane.rate * (state.paths[lane.order[0]].value - state.paths[lane.fastest].value)
    backoff.tick(observed.rows_s * passed_s * gain / rate if rate else 0.0)
