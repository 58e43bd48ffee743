"""Attempts: executes queries although the latency models predict that they will be late.

After a disturbance the models may be wrong, and if they alone decided, nothing would execute that could
correct them. So a query is rejected, or left waiting by an idle lane, only if there is a real backlog, or if
no path was ever observed (here or by the profiler) to execute that many rows within the budget. Even in the
latter case, a query is tried once nothing has executed for SILENT_S.

Attempts use lane time, so queries that are attempted on an idle server count as demand, on which autoscaling
is based. They count for nothing else (observed_traffic.py), since such small budgets do not indicate load.
"""

from __future__ import annotations

from polyrec.planner.routing.feasibility import degraded_reason
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import RouterState

INF = float("inf")
SILENT_S = 1.0
"""Time without any execution after which any query is tried."""


def record_arrival(state: RouterState, rows: int, budget_s: float, best_only: bool = False) -> bool:
    """Counts a query in the observed traffic; returns whether its budget could be met on an idle server."""
    possible = state.is_possible(rows, budget_s, best_only)
    attempted = possible or budget_s >= _alone_s(state, rows, best_only)
    state.observed.record_arrival(rows, budget_s, possible, attempted)
    return possible


def worth_accepting(state: RouterState, query: Query, now_s: float) -> bool:
    """Whether to accept a query predicted to be late: nothing waits, and the best observed time suffices."""
    if state.queue.pieces:
        return False
    if _silent(state, now_s):
        return True
    wait_s = INF
    for lane in state.usable:
        left_s = lane.free_s - now_s if lane.in_flight is not None else 0.0
        if left_s < wait_s:
            wait_s = left_s
    wait_s = max(wait_s, 0.0)
    return now_s + wait_s + _alone_s(state, query.rows, query.best_only) <= query.deadline_s


def attempt(state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
    """Chooses the waiting piece with the latest deadline on the lane's fastest path; None if all are
    hopeless.

    Called when pieces wait, no lane is busy and the policy chose nothing.
    """
    silent = _silent(state, now_s)
    for piece in reversed(state.queue.pieces):
        query = piece.query
        if query.settled:
            continue
        path = path_for(state, lane, piece)
        if path < 0:
            continue
        quickest_s = _quickest_s(state, piece.rows, query.best_only) + state.front.answering_s(query.rows)
        if silent or now_s + quickest_s <= query.deadline_s:
            rows = min(piece.rows, lane.max_rows[path])
            return BatchChoice(path, [piece], -1, rows, degraded_reason(state, path, query))
    return None


def path_for(state: RouterState, lane: LaneState, piece: Piece) -> int:
    """Returns the path of the query's other parts, else the lane's fastest for the piece; -1 if none."""
    query = piece.query
    paths = state.paths
    if query.path >= 0 and piece.rows < query.rows:
        kind = paths[query.path].representation
        return next((p for p in lane.paths if paths[p].representation == kind), -1)
    if query.best_only:
        return next((p for p in lane.order if paths[p].value >= state.best_value), -1)
    options = lane.options_for(piece.rows)
    return options[-1].path if options else -1


def _silent(state: RouterState, now_s: float) -> bool:
    """Whether no lane is busy or has reported within SILENT_S."""
    return all(lane.in_flight is None and now_s - lane.last_done_s > SILENT_S for lane in state.lanes)


def _alone_s(state: RouterState, rows: int, best_only: bool) -> float:
    """Returns the shortest possible time to an answer, by best observed times, with the query split over all
    lanes of an idle server.
    """
    part = -(-rows // max(1, len(state.usable)))
    return _quickest_s(state, part, best_only) + state.front.answering_s(rows)


def _quickest_s(state: RouterState, rows: int, best_only: bool) -> float:
    """Returns the shortest service time observed on a usable lane, scaled to `rows`, in seconds."""
    best_s = INF
    for lane in state.usable:
        for option in (*lane.options, *lane.large_options):
            p = option.path
            path = state.paths[p]
            if best_only and path.value < state.best_value:
                continue
            seconds = path.latency.median[min(rows, path.latency.rows)] * lane.correction.quickest[p]
            if seconds < best_s:
                best_s = seconds
    return best_s
