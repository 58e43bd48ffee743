"""The policy: which work a free lane gets, and what is refused at the door.

State in (the board), a choice out. `choose` is asked for one free lane at a time; it may leave the work to
another lane by answering None. A `Choice` names the pieces of the queue that make the batch. `admit`,
`bind` and `choose` only answer; a policy that keeps account of what it answered does so in `accepted` and
`dispatched`.
"""

from __future__ import annotations

from typing import Protocol

from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import Board

Choice = tuple[int, list[Piece], int, int, Reason]
"""(path, pieces, start, rows, reason). pieces: consecutive in the queue from `start` on, or scattered (-1).
rows: of the batch; below those of a single piece, the piece is split and the rest stays first in line.
"""


class Policy(Protocol):
    """name: as in the plan. fifo: work in order of arrival, not of deadline. learns: wants `finished`.

    binds: chooses a query's path at its arrival, and wants `accepted` and `dispatched`. divides: some work
    is for some lanes only, so that a lane may be idle although work waits.
    """

    name: str
    fifo: bool
    learns: bool
    binds: bool
    divides: bool

    def prepare(self, board: Board) -> None:
        """Off the request path: at the start, on every tick, and when lanes come or go."""
        ...

    def admit(self, board: Board, query: Query, now_s: float) -> float:
        """Seconds by which the backlog is too long for the query; 0 or less: it is taken."""
        ...

    def bind(self, board: Board, query: Query, now_s: float) -> int:
        """The path of a query that arrives now; -1: that is decided when a lane is free."""
        ...

    def accepted(self, board: Board, query: Query, now_s: float) -> None:
        """A query is about to be queued; called if the policy binds."""
        ...

    def dispatched(self, board: Board, path: int, rows: int) -> None:
        """So many rows leave the queue for a lane; called if the policy binds."""
        ...

    def choose(self, board: Board, lane: LaneState, now_s: float) -> Choice | None:
        """What a free lane does now."""
        ...

    def prices(self, board: Board) -> dict[str, float]:
        """Correct predictions that a second of one lane is worth, by device; empty if it has no prices."""
        ...

    def finished(self, query: Query, now_s: float) -> None:
        """A query was answered, or its deadline passed; called if the policy learns from that."""
        ...
