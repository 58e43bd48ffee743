"""Decides what a free lane executes: a batch of the policy, a probe, an attempt, or nothing.

Called by the router, which executes the decision, and by explanations, which do not. So it changes no state
but the time at which the lane is asked again.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import attempt
from polyrec.planner.routing.lanes import probing
from polyrec.planner.routing.lanes.breaker import CLOSED
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice, Policy
from polyrec.planner.routing.router_state import Board

STALE_S = 0.05
"""If other lanes can do the work, a slow lane is probed after this long without a finished batch."""
SLOW = 1.5
"""Correction factor above which a lane counts as slow."""


def decide(board: Board, policy: Policy, lane: LaneState, now_s: float) -> tuple[Choice | None, bool]:
    """Returns (choice, whether it is a probe) for a lane that is alive and free, with a non-empty queue."""
    breaker = lane.breaker
    stale = now_s - lane.heard_s > STALE_S
    if breaker.state is not CLOSED:
        if breaker.broken or probing.others(board, lane):
            return (probing.probe(board, lane, now_s) if breaker.ready(now_s) else None), True
    elif stale and lane.correction.factor > SLOW and probing.others(board, lane):
        return probing.probe(board, lane, now_s), True
    choice = policy.choose(board, lane, now_s)
    if choice is None and not lane.faster and (stale or not policy.divides or not lane.others):
        idle = all(other.flight is None for other in board.lanes)
        choice = attempt(board, lane, now_s) if idle else None
    return choice, False
