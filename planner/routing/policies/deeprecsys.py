"""Policy `deeprecsys`: DeepRecSys's scheduler (ISCA'20), as a baseline.

One representation. Queries of at least a threshold of rows go whole to the accelerator (where they
merge), others are split into sub-batches over the CPU's lanes, in parallel. Both numbers are found by
hill climbing on the 95th percentile of the latency: a step is kept while it helps, then the other number
is tried. Two things that DeepRecSys does not have are added, because without them any policy falls to
nothing past capacity and this one would look worse than it is: early refusal, and queries that a full batch
would answer too late are left to expire.
"""

from __future__ import annotations

import numpy as np

from polyrec.planner.routing.admission import admission as door
from polyrec.planner.routing.fair_share import in_turn
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import Choice
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import Board

WINDOW = 300
"""Queries whose latencies decide a step."""
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
THRESHOLDS = (1, 25, 50, 75, 100, 125, 150, 175, 200, 250, 300, 400, 600, 1000, 1 << 30)
QUANTILE = 0.95


class DeepRecSys:
    """threshold, batch: where the climb is, in rows."""

    name = "deeprecsys"
    fifo = True
    learns = True
    binds = False
    divides = True

    def __init__(self) -> None:
        self._at = [THRESHOLDS.index(150), BATCHES.index(256)]
        self._ladders = (THRESHOLDS, BATCHES)
        self._knob = 1
        self._step = 1
        self._best_s = float("inf")
        self._latencies: list[float] = []
        self._accelerator = -1
        self._paths: list[int] = []

    @property
    def threshold(self) -> int:
        return THRESHOLDS[self._at[0]]

    @property
    def batch(self) -> int:
        return BATCHES[self._at[1]]

    def prepare(self, board: Board) -> None:
        """The representation that is on most devices, of these the one with most rows/s; devices by speed."""
        board.allowed = frozenset(range(len(board.paths)))
        board.refresh()
        kinds: dict[int, list[int]] = {}
        for path in board.paths:
            if path.value > 0:
                kinds.setdefault(path.representation, []).append(path.index)
        if not kinds:
            return
        self._paths = max(
            kinds.values(), key=lambda own: (len(own), sum(1 / board.paths[p].row_s for p in own))
        )
        board.allowed = frozenset(self._paths)
        board.refresh()
        alive = {lane.device for lane in board.usable}
        devices = [(board.paths[p].row_s, board.paths[p].device) for p in self._paths]
        devices = [d for d in devices if d[1] in alive]
        self._accelerator = min(devices)[1] if len(devices) > 1 else -1

    def admit(self, board: Board, query: Query, now_s: float) -> float:
        return door.admit(board, query, now_s)

    def choose(self, board: Board, lane: LaneState, now_s: float) -> Choice | None:
        path = next((p for p in self._paths if p in lane.paths), -1)
        if path < 0:
            return None
        if self._accelerator < 0:
            mine = (0, 1 << 62)
        elif lane.device == self._accelerator:
            mine = (self.threshold, 1 << 62)
        else:
            mine = (0, self.threshold)
        whole = lane.device == self._accelerator
        most = lane.merge[path] if whole else min(self.batch, lane.most[path])
        soonest_s = now_s + board.paths[path].curve.tail[most] * lane.correction.tail[path]
        taken: list[Piece] = []
        rows = 0
        for piece in in_turn(board, lane):
            query = piece[3]
            if query.settled or query.deadline_s < soonest_s or not mine[0] <= query.rows < mine[1]:
                continue
            if taken and rows + piece[5] > most:
                break
            taken.append(piece)
            rows += piece[5]
            if not whole or rows >= most:
                break
        if not taken:
            return None
        if len(taken) == 1:
            rows = min(rows, lane.most[path] if whole else most)
        best = board.paths[path].value >= board.best
        return path, taken, -1, rows, Reason.BEST if best else Reason.POLICY

    def bind(self, board: Board, query: Query, now_s: float) -> int:
        return -1

    def accepted(self, board: Board, query: Query, now_s: float) -> None:
        """It binds nothing."""

    def dispatched(self, board: Board, path: int, rows: int) -> None:
        """It binds nothing."""

    def prices(self, board: Board) -> dict[str, float]:
        return {}

    def finished(self, query: Query, now_s: float) -> None:
        """A step of the climb whenever a window of queries is full."""
        self._latencies.append(now_s - query.arrival_s)
        if len(self._latencies) < WINDOW:
            return
        tail_s = float(np.quantile(self._latencies, QUANTILE))
        self._latencies.clear()
        if tail_s > self._best_s:
            self._move(-self._step)
            self._step = -self._step
            if self._step > 0 and self._accelerator >= 0:
                self._knob = 1 - self._knob
            # What was best then may be out of reach now that the load is another one.
            self._best_s *= 1.1
        else:
            self._best_s = tail_s
        self._move(self._step)

    def _move(self, step: int) -> None:
        ladder = self._ladders[self._knob]
        self._at[self._knob] = min(len(ladder) - 1, max(0, self._at[self._knob] + step))
