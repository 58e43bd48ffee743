"""Computes weights of replicas, for a balancer that compares two random replicas by requests over weight.

Requests in progress over capacity approximates the time to completion, which a balancer can compute from its
own count and which is never outdated. Only the replica knows its capacity and the requests of other
balancers, and reports both as its weight.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_WEIGHT = 100
"""Weight of the largest replica; HAProxy allows 256."""


def capacity_weights(rows_s: Sequence[float]) -> list[int]:
    """Returns weights from 1 to MAX_WEIGHT in proportion to capacities; equal ones if none is known (0)."""
    largest = max(rows_s, default=0.0)
    return [max(round(MAX_WEIGHT * one / largest), 1) if largest > 0 else MAX_WEIGHT for one in rows_s]


def weight_percent(lane_share: float, backlog_s: float, budget_s: float) -> int:
    """Returns the percentage of its weight, 1 to 100, that a replica should get now.

    lane_share: speed of its lanes relative to the plan; some may be lost or slower. A backlog as long as the
    budget halves the weight.
    """
    share = min(lane_share, 1.0)
    if budget_s > 0:
        share /= 1.0 + backlog_s / budget_s
    return min(max(round(100 * share), 1), 100)
