"""Policy `static:PATH`: one path for everything; queue, merging, refusal and expiry as for any other."""

from __future__ import annotations

from polyrec.planner.routing import batching as late
from polyrec.planner.routing.admission import admission as door
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.router_state import Board

BEST, POLICY = Reason.BEST, Reason.POLICY


class Static:
    """path: index of the only path that is used."""

    fifo = False
    learns = False
    binds = False
    divides = False

    def __init__(self, path: int, name: str) -> None:
        self.name = f"static:{name}"
        self._path = path

    def prepare(self, board: Board) -> None:
        board.allowed = frozenset((self._path,))
        board.refresh()

    def admit(self, board: Board, query: Query, now_s: float) -> float:
        return door.admit(board, query, now_s)

    def choose(self, board: Board, lane: LaneState, now_s: float) -> Choice | None:
        choice = late.choose(board, lane, now_s)
        if choice is None or choice[4] is BEST:
            return choice
        return *choice[:4], POLICY

    def bind(self, board: Board, query: Query, now_s: float) -> int:
        return -1

    def accepted(self, board: Board, query: Query, now_s: float) -> None:
        """It binds nothing."""

    def dispatched(self, board: Board, path: int, rows: int) -> None:
        """It binds nothing."""

    def prices(self, board: Board) -> dict[str, float]:
        return {}

    def finished(self, query: Query, now_s: float) -> None:
        """It does not learn from single queries."""
