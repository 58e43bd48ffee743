"""Attempts: queries that the latency models predict to be late, but that are executed nevertheless.

After a disturbance the models may be wrong, and if they alone decided, nothing would be executed that could
correct them. So a query is rejected, or left waiting by an idle lane, only because of a real backlog, or if
no path was ever observed, here or by the profiler, to execute that many rows within its budget; even then a
query is tried once nothing has been executed for SILENT_S.
"""

from __future__ import annotations

from polyrec.planner.routing.batching import reason
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import Board

INF = float("inf")
SILENT_S = 1.0
"""If no lane has executed anything for this long, any query is tried."""


def worth_accepting(board: Board, query: Query, now_s: float) -> bool:
    """Whether to accept a query predicted late: nothing waits, and the best time observed is short enough."""
    if board.queue.pieces:
        return False
    if _silent(board, now_s):
        return True
    wait_s = INF
    for lane in board.usable:
        left_s = lane.free_s - now_s if lane.flight is not None else 0.0
        if left_s < wait_s:
            wait_s = left_s
    wait_s = max(wait_s, 0.0)
    part = -(-query.rows // max(1, len(board.usable)))
    return now_s + wait_s + _seen_s(board, query, part) + board.front_s(query) <= query.deadline_s


def attempt(board: Board, lane: LaneState, now_s: float) -> Choice | None:
    """Chooses the waiting piece with the latest deadline, on the lane's fastest path; None if all are late.

    Called when pieces wait, no lane is busy and the policy chose none.
    """
    silent = _silent(board, now_s)
    for piece in reversed(board.queue.pieces):
        query = piece[3]
        if query.settled:
            continue
        path = path_for(board, lane, piece)
        if path < 0:
            continue
        if silent or now_s + _seen_s(board, query, piece[5]) + board.front_s(query) <= query.deadline_s:
            return path, [piece], -1, min(piece[5], lane.most[path]), reason(board, path, query)
    return None


def path_for(board: Board, lane: LaneState, piece: Piece) -> int:
    """Index of the lane's fastest path for a piece, or of the path of its query's other parts; -1: none."""
    query = piece[3]
    paths = board.paths
    if query.path >= 0 and piece[5] < query.rows:
        kind = paths[query.path].representation
        return next((p for p in lane.paths if paths[p].representation == kind), -1)
    if query.required:
        return next((p for p in lane.order if paths[p].value >= board.best), -1)
    return lane.fastest


def _silent(board: Board, now_s: float) -> bool:
    """Whether no lane is busy or has reported within SILENT_S."""
    return all(lane.flight is None and now_s - lane.heard_s > SILENT_S for lane in board.lanes)


def _seen_s(board: Board, query: Query, rows: int) -> float:
    """The shortest service time ever observed on a usable lane, scaled to these rows, in seconds."""
    best_s = INF
    for lane in board.usable:
        for p in lane.order:
            path = board.paths[p]
            if query.required and path.value < board.best:
                continue
            seconds = path.curve.median[min(rows, path.curve.rows)] * lane.correction.quickest[p]
            if seconds < best_s:
                best_s = seconds
    return best_s
