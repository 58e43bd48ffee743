"""Base of routing policies: what to admit, and which batch a free lane executes.

`choose` is called for one free lane at a time and returns a batch, or None to leave the work to another lane.
`admit`, `bind` and `choose` only answer; a policy that keeps accounts updates them in `accepted`,
`dispatched` and `finished`.
"""

from __future__ import annotations

from typing import NamedTuple

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import RouterState


class BatchChoice(NamedTuple):
    """A batch to dispatch.

    pieces: consecutive in the queue from index `start` on, or scattered (start -1). rows: of the batch; fewer
    than those of a single piece split it, and the rest stays in the queue.
    """

    path: int
    pieces: list[Piece]
    start: int
    rows: int
    reason: Reason


class Policy:
    """Base of the routing policies: one that admits everything, has no prices and keeps no accounts.

    name: as in the plan. fifo: the queue is in order of arrival, not of deadline. learns: needs `finished`.
    binds_at_arrival: chooses a query's path when it arrives, and needs `accepted` and `dispatched`.
    partitions_work: some work is only for some lanes, so a lane may be idle although work waits.
    """

    name: str
    fifo = False
    learns = False
    binds_at_arrival = False
    partitions_work = False

    def prepare(self, state: RouterState) -> None:
        """Prepares for decisions: called at the start, on every tick and when lanes come or go."""
        state.allowed_paths = frozenset(range(len(state.paths)))
        state.refresh()

    def admit(self, state: RouterState, query: Query, now_s: float) -> float:
        """Returns the seconds by which the backlog is too long for the query; 0 or less: admit it."""
        return 0.0

    def bind(self, state: RouterState, query: Query, now_s: float) -> int:
        """Returns the path of a query that arrives now; -1: decided when a lane is free."""
        return -1

    def accepted(self, state: RouterState, query: Query, now_s: float) -> None:
        """Records a query that is about to be queued. Called if `binds_at_arrival`."""

    def dispatched(self, state: RouterState, path: int, rows: int) -> None:
        """Records rows that leave the queue for a lane. Called if `binds_at_arrival`."""

    def choose(self, state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
        """Returns the batch of a free lane, or None."""
        raise NotImplementedError

    def prices(self, state: RouterState) -> dict[str, float]:
        """Returns the information that a second of one lane is worth, by device; empty without prices."""
        return {}

    def finished(self, query: Query, now_s: float) -> None:
        """Records a query that was answered or whose deadline passed. Called if `learns`."""
