"""Probes: chooses the query and the path with which a lane that was slow or failed is tested.

A lane and the queue come in, a piece and a path go out. If there are other lanes, the query also stays in the
queue for them, so that a failed probe delays no query.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import path_for
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice
from polyrec.planner.routing.query import Reason
from polyrec.planner.routing.router_state import RouterState


def probe(state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
    """Chooses the piece with the latest deadline, on the lane's best path if by the profile it is in time."""
    for piece in reversed(state.queue.pieces):
        query = piece.query
        if query.settled or (path := path_for(state, lane, piece)) < 0:
            continue
        if path == lane.fastest and not (query.path >= 0 and piece.rows < query.rows):
            # The first answer to a query counts, so a recovered lane should give one of best quality.
            best = lane.order[0]
            latency = state.paths[best].latency
            rows = piece.rows
            if rows <= lane.max_rows[best] and now_s + latency.tail[rows] <= query.deadline_s:
                path = best
        reason = Reason.BEST if state.paths[path].value >= state.best_value else Reason.PROBE
        return BatchChoice(path, [piece], -1, min(piece.rows, lane.max_rows[path]), reason)
    return None


def other_usable_lanes(state: RouterState, lane: LaneState) -> list[LaneState]:
    """All usable lanes but this one."""
    return [other for other in state.lanes if other is not lane and other.usable]
