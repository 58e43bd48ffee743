"""Probes: chooses the query and the path with which a lane that was slow or failed is tested.

A lane and the queue come in, a piece and a path go out. If there are other lanes, the query also stays in the
queue for them, so that a failed probe delays no query.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import path_for
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Reason
from polyrec.planner.routing.router_state import Board


def probe(board: Board, lane: LaneState, now_s: float) -> Choice | None:
    """Chooses the piece with the latest deadline, on the lane's best path if by the profile it is in time."""
    for piece in reversed(board.queue.pieces):
        query = piece[3]
        if query.settled or (path := path_for(board, lane, piece)) < 0:
            continue
        if path == lane.fastest and not (query.path >= 0 and piece[5] < query.rows):
            # The first answer to a query counts, so a recovered lane should give one of best quality.
            best = lane.order[0]
            curve = board.paths[best].curve
            rows = piece[5]
            if rows <= lane.most[best] and now_s + curve.tail[rows] <= query.deadline_s:
                path = best
        reason = Reason.BEST if board.paths[path].value >= board.best else Reason.PROBE
        return path, [piece], -1, min(piece[5], lane.most[path]), reason
    return None


def others(board: Board, lane: LaneState) -> list[LaneState]:
    """Other usable lanes."""
    return [other for other in board.lanes if other is not lane and other.usable]
