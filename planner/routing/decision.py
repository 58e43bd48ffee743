"""Decides what a free lane executes: the policy's batch, a probe, an attempt, or nothing.

The router executes the decision, whereas `explain` only reports it. So this module changes nothing except for
the time at which the lane is considered again. A probe tests a lane that was slow or failed. If there are
other lanes, the probe's query also stays in the queue for them, so that a failed probe delays no query.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import attempt, path_for
from polyrec.planner.routing.lanes.breaker import CLOSED
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice, Policy
from polyrec.planner.routing.query import Reason
from polyrec.planner.routing.router_state import RouterState

STALE_S = 0.05
"""Time without a finished batch after which a slow lane is probed, if other lanes can do the work."""
SLOW = 1.5
"""Correction factor above which a lane counts as slow."""


def decide(
    state: RouterState, policy: Policy, lane: LaneState, now_s: float
) -> tuple[BatchChoice | None, bool]:
    """Returns (choice, is_probe) for a lane that is alive and free while the queue is not empty."""
    breaker = lane.breaker
    stale = now_s - lane.last_done_s > STALE_S
    if breaker.state is not CLOSED:
        if breaker.broken or other_usable_lanes(state, lane):
            return (probe(state, lane, now_s) if breaker.ready(now_s) else None), True
    elif stale and lane.correction.factor > SLOW and other_usable_lanes(state, lane):
        return probe(state, lane, now_s), True
    choice = policy.choose(state, lane, now_s)
    if choice is None and not lane.faster and (stale or not policy.partitions_work or not lane.others):
        idle = all(other.in_flight is None for other in state.lanes)
        choice = attempt(state, lane, now_s) if idle else None
    return choice, False


def probe(state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
    """Chooses the piece with the latest deadline, on the lane's best path if by profile in time."""
    for piece in reversed(state.queue.pieces):
        query = piece.query
        if query.settled or (path := path_for(state, lane, piece)) < 0:
            continue
        if path == lane.fastest and not (query.path >= 0 and piece.rows < query.rows):
            # the first answer to a query wins, so if the lane has recovered, it should be of best quality
            best = lane.order[0]
            latency = state.paths[best].latency
            rows = piece.rows
            if rows <= lane.max_rows[best] and now_s + latency.tail[rows] <= query.deadline_s:
                path = best
        reason = Reason.BEST if state.paths[path].value >= state.best_value else Reason.PROBE
        return BatchChoice(path, [piece], -1, min(piece.rows, lane.max_rows[path]), reason)
    return None


def other_usable_lanes(state: RouterState, lane: LaneState) -> list[LaneState]:
    """Returns all usable lanes except this one."""
    return [other for other in state.lanes if other is not lane and other.usable]
