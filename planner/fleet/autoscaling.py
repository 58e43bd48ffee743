"""Decides how many replicas a fleet should have, from their backlog in seconds and the price of their time.

Request counts or CPU use indicate little for servers that trade quality for time. So arriving and waiting
work are both measured in seconds of the replicas' time on their fastest paths. The code is pure: callers pass
loads and the time. cluster/scaling.py applies it in Ray Serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

TARGET_DEMAND = 0.6
"""Share of the capacity on the fastest paths at which another replica is preferred to lower quality; as in
the Helm chart (docs/kubernetes.md)."""
CLEAR_S = 10.0
"""Target time to clear a backlog."""
CALM_S = 120.0
"""Time for which fewer replicas must be enough before one is removed."""
MIN_FALL = 0.5
"""Share of `worth` to which the price must fall before a replica is removed."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Load of one replica.

    demand: arriving rows/s divided by the rows/s that its lanes can execute on their fastest paths.
    backlog_s: seconds that all lanes need for its waiting rows. price: value of a second of its most
    expensive device, in information; 0 without prices.
    """

    demand: float
    backlog_s: float
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    """Bounds and targets. worth: price above which another replica pays; None: ignore prices."""

    least: int
    most: int
    target_demand: float = TARGET_DEMAND
    clear_s: float = CLEAR_S
    calm_s: float = CALM_S
    worth: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least {self.least} and most {self.most}: 1 <= least <= most")
        if not (0 < self.target_demand <= 1 and self.clear_s > 0 and self.calm_s >= 0):
            raise ValueError("target_demand is above 0, at most 1; clear_s is positive, calm_s not negative")


@dataclass(frozen=True, slots=True)
class Scaling:
    """A decision.

    replicas: number wanted now. enough_since_s: time since when fewer would be enough; None if they are not.
    """

    replicas: int
    enough_since_s: float | None = None


def replicas_needed(loads: Sequence[ReplicaLoad], bounds: ScalingBounds) -> int:
    """Returns the number of replicas that the load needs, ignoring the bounds."""
    work = sum(load.demand + load.backlog_s / bounds.clear_s for load in loads)
    # a sum of floats just above a whole number needs no further replica
    needed = ceil(work / bounds.target_demand - 1e-9)
    price = sum(load.price for load in loads) / len(loads) if loads else 0.0
    if bounds.worth is not None:
        if price >= bounds.worth:
            needed = max(needed, len(loads) + 1)
        elif price > MIN_FALL * bounds.worth:
            needed = max(needed, len(loads))
    return needed


def decide(
    loads: Sequence[ReplicaLoad], current: int, last: Scaling | None, now_s: float, bounds: ScalingBounds
) -> Scaling:
    """Decides the number of replicas.

    Scales up immediately, and down by one replica at a time, each after fewer were enough for `calm_s`. While
    some replicas do not report (because they start or stop), none is removed.

    loads: loads of the replicas that report. current: the target so far. last: the previous decision.
    """
    needed = min(max(replicas_needed(loads, bounds), bounds.least), bounds.most)
    current = min(max(current, bounds.least), bounds.most)
    if needed > current:
        return Scaling(needed)
    if needed == current or len(loads) < current:
        return Scaling(current)
    since_s = last.enough_since_s if last is not None else None
    if since_s is None:
        return Scaling(current, now_s)
    if now_s - since_s < bounds.calm_s:
        return Scaling(current, since_s)
    return Scaling(current - 1, now_s)
