"""Base class of routing policies, which decide what to admit and which batch a free lane executes.

The router calls `choose` for one free lane at a time; None leaves the work to another lane. `excess_s`,
`bind` and `choose` must not change state, as they also serve explanations. A policy with state updates it in
`accepted`, `dispatched` and `finished`.
"""

from __future__ import annotations

from typing import NamedTuple

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import RouterState


class BatchChoice(NamedTuple):
    """A batch to dispatch.

    pieces, start: pieces of the queue, consecutive from index `start` on, or scattered if start is -1.
    rows: rows of the batch. If a single piece has more, it is split and the remainder stays in the queue.
    """

    path: int
    pieces: list[Piece]
    start: int
    rows: int
    reason: Reason


class Policy:
    """Base class of routing policies, which admits everything and has neither prices nor state.

    name: the policy's name in a plan.
    fifo: whether the queue is ordered by arrival instead of deadline.
    learns: whether to call `finished`.
    binds_at_arrival: whether a query's path is chosen at arrival; `accepted` and `dispatched` are then
        called.
    partitions_work: whether some work is only for certain lanes, so that a lane may idle although work waits.
    """

    name: str
    fifo = False
    learns = False
    binds_at_arrival = False
    partitions_work = False

    def prepare(self, state: RouterState) -> None:
        """Prepares for decisions. Called at the start, on every tick and when lanes come or go."""
        state.allowed_paths = frozenset(range(len(state.paths)))
        state.refresh()

    def excess_s(self, state: RouterState, query: Query, now_s: float) -> float:
        """Returns the seconds by which the backlog is too long for the query; at most 0: admit it."""
        return 0.0

    def bind(self, state: RouterState, query: Query, now_s: float) -> int:
        """Returns the path of a query that arrives now, -1 to decide when a lane is free."""
        return -1

    def accepted(self, state: RouterState, query: Query, now_s: float) -> None:
        """Records a query that is about to be queued. Called if `binds_at_arrival`."""

    def dispatched(self, state: RouterState, path: int, rows: int) -> None:
        """Records rows that leave the queue for a lane. Called if `binds_at_arrival`."""

    def choose(self, state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
        """Returns the batch for a free lane, or None."""
        raise NotImplementedError

    def prices(self, state: RouterState) -> dict[str, float]:
        """Returns the information per second of lane time, by device; empty without prices."""
        return {}

    def finished(self, query: Query, now_s: float) -> None:
        """Records a query that was answered or whose deadline passed. Called if `learns`."""
