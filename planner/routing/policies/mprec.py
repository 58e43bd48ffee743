"""Policy `mprec`: MP-Rec's greedy rule (ASPLOS'23), as a baseline.

At arrival, in order of accuracy, the first path whose predicted latency fits the budget; if none does, the
one predicted to be fastest. First come first served; nothing is refused but by a full queue. The paper
does not say whether the prediction knows the queue; here it does (what is bound to the device, what
executes there, the batch that the query will be in), which is the stronger variant. What is bound to
one path merges like anywhere else.
"""

from __future__ import annotations

from polyrec.planner.routing.batching import reason
from polyrec.planner.routing.fair_share import in_turn
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.router_state import Board


class MPRec:
    """A query's path is bound when it is accepted, in Query.path."""

    name = "mprec"
    fifo = True
    learns = False
    binds = True
    divides = True

    def __init__(self) -> None:
        self._bound_s: list[float] = []
        self._lanes: list[int] = []
        self._merge: list[int] = []

    def prepare(self, board: Board) -> None:
        board.allowed = frozenset(range(len(board.paths)))
        board.refresh()
        self._lanes = [0] * len(board.devices)
        for lane in board.usable:
            self._lanes[lane.device] += 1
        self._merge = [1] * len(board.paths)
        for lane in board.usable:
            for p in lane.paths:
                self._merge[p] = lane.merge[p]
        self._bound_s = [0.0] * len(board.devices)
        for _, _, _, query, _, rows in board.queue.unsettled():
            if query.path < 0 or (not self._lanes[board.paths[query.path].device] and rows == query.rows):
                query.path = self.bind(board, query, query.arrival_s)
            self._add(board, query.path, rows)

    def admit(self, board: Board, query: Query, now_s: float) -> float:
        return 0.0

    def accepted(self, board: Board, query: Query, now_s: float) -> None:
        if not board.queue.pieces:
            self._bound_s = [0.0] * len(self._bound_s)  # of queries that expired or were cancelled meanwhile
        query.path = self.bind(board, query, now_s)
        self._add(board, query.path, query.rows)

    def dispatched(self, board: Board, path: int, rows: int) -> None:
        self._add(board, path, -rows)

    def choose(self, board: Board, lane: LaneState, now_s: float) -> Choice | None:
        path, rows = -1, 0
        taken = []
        for piece in in_turn(board, lane):
            query = piece[3]
            if query.settled or (query.path not in lane.paths if path < 0 else query.path != path):
                continue
            if path < 0:
                path = query.path
            elif rows + piece[5] > lane.merge[path]:
                break
            taken.append(piece)
            rows += piece[5]
            if rows >= lane.most[path]:
                break
        if not taken:
            return None
        rows = min(rows, lane.most[path]) if len(taken) == 1 else rows
        why = reason(board, path, taken[0][3])
        return path, taken, -1, rows, why if why is Reason.BEST else Reason.POLICY

    def prices(self, board: Board) -> dict[str, float]:
        return {}

    def finished(self, query: Query, now_s: float) -> None:
        """It does not learn."""

    def _add(self, board: Board, path: int, rows: int) -> None:
        state = board.paths[path]
        seconds = self._bound_s[state.device] + rows * state.row_s
        self._bound_s[state.device] = max(0.0, seconds)

    def bind(self, board: Board, query: Query, now_s: float) -> int:
        left = query.deadline_s - now_s - board.front_s(query)
        waits = self._waits(board, now_s)
        fastest, fastest_s = 0, float("inf")
        for path in sorted(board.paths, key=lambda p: -p.value):
            lanes = self._lanes[path.device]
            if path.value <= 0 or not lanes or (query.required and path.value < board.best):
                continue
            behind = int(self._bound_s[path.device] / path.row_s)
            batch = max(query.rows, min(query.rows + behind, self._merge[path.index]))
            predicted = waits[path.device] + path.curve.tail[batch]
            if predicted <= left:
                return path.index
            if predicted < fastest_s:
                fastest, fastest_s = path.index, predicted
        return fastest

    def _waits(self, board: Board, now_s: float) -> list[float]:
        """Seconds until a device's lanes have done what is bound to it and what executes."""
        waits = [
            seconds / lanes if lanes else float("inf")
            for seconds, lanes in zip(self._bound_s, self._lanes, strict=True)
        ]
        for lane in board.usable:
            if lane.flight is not None:
                waits[lane.device] += max(0.0, lane.free_s - now_s) / self._lanes[lane.device]
        return waits
