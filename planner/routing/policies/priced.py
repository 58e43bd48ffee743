"""Policy `priced`: expected correct predictions, minus the price of device time; ties broken by slack."""

from __future__ import annotations

from polyrec.planner.routing import batching as late
from polyrec.planner.routing.admission import admission as door
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router_state import Board


class Priced:
    name = "priced"
    fifo = False
    learns = False
    binds = False
    divides = False
    admit = staticmethod(door.admit)
    choose = staticmethod(late.choose)

    def prepare(self, board: Board) -> None:
        board.allowed = frozenset(range(len(board.paths)))
        board.refresh()

    def bind(self, board: Board, query: Query, now_s: float) -> int:
        return -1

    def accepted(self, board: Board, query: Query, now_s: float) -> None:
        """It binds nothing."""

    def dispatched(self, board: Board, path: int, rows: int) -> None:
        """It binds nothing."""

    def prices(self, board: Board) -> dict[str, float]:
        assert board.prices is not None
        return dict(zip(board.devices, board.prices.device, strict=True))

    def finished(self, query: Query, now_s: float) -> None:
        """It does not learn from single queries."""
