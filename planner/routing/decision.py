"""Decides what a free lane executes: the policy's batch, a probe, an attempt, or nothing.

The router executes the decision; `explain` only reports it. So nothing is changed here but the time at which
the lane is considered again.
"""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import attempt
from polyrec.planner.routing.lanes import probing
from polyrec.planner.routing.lanes.breaker import CLOSED
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice, Policy
from polyrec.planner.routing.router_state import RouterState

STALE_S = 0.05
"""If other lanes can do the work, a slow lane is probed after this long without a finished batch."""
SLOW = 1.5
"""Correction factor above which a lane counts as slow."""


def decide(
    state: RouterState, policy: Policy, lane: LaneState, now_s: float
) -> tuple[BatchChoice | None, bool]:
    """Returns (choice, is_probe) for a lane that is alive and free while the queue is not empty."""
    breaker = lane.breaker
    stale = now_s - lane.last_done_s > STALE_S
    if breaker.state is not CLOSED:
        if breaker.broken or probing.other_usable_lanes(state, lane):
            return (probing.probe(state, lane, now_s) if breaker.ready(now_s) else None), True
    elif stale and lane.correction.factor > SLOW and probing.other_usable_lanes(state, lane):
        return probing.probe(state, lane, now_s), True
    choice = policy.choose(state, lane, now_s)
    if choice is None and not lane.faster and (stale or not policy.partitions_work or not lane.others):
        idle = all(other.in_flight is None for other in state.lanes)
        choice = attempt(state, lane, now_s) if idle else None
    return choice, False
