"""Policy `deeprecsys`: DeepRecSys's scheduler (ISCA'20), as a baseline.

It uses one representation. Queries of at least `threshold` rows go unsplit to the accelerator, where they are
merged; others are split into sub-batches over the CPU's lanes. Both sizes are tuned by hill climbing on the
95th percentile of latency: steps of one size are repeated while they help, then the other size is tried.

Two features are added to the paper, since without them any policy's goodput collapses past capacity:
admission control, and letting queries expire that a full batch would answer too late.
"""

from __future__ import annotations

import numpy as np

from polyrec.planner.routing.admission import admission
from polyrec.planner.routing.fair_share import pieces_from_head
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice, Policy
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.queue import Piece
from polyrec.planner.routing.router_state import RouterState

WINDOW = 300
"""Number of queries whose latencies decide about a step."""
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
THRESHOLDS = (1, 25, 50, 75, 100, 125, 150, 175, 200, 250, 300, 400, 600, 1000, 1 << 30)
QUANTILE = 0.95


class DeepRecSys(Policy):
    """DeepRecSys's threshold on query sizes, tuned online.

    threshold, batch: the current sizes in rows.
    """

    name = "deeprecsys"
    fifo = True
    learns = True
    partitions_work = True

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

    def prepare(self, state: RouterState) -> None:
        """Selects the representation on most devices (the fastest of equals) and its fastest device."""
        super().prepare(state)
        by_representation: dict[int, list[int]] = {}
        for path in state.paths:
            if path.value > 0:
                by_representation.setdefault(path.representation, []).append(path.index)
        if not by_representation:
            return
        self._paths = max(
            by_representation.values(), key=lambda ps: (len(ps), sum(1 / state.paths[p].row_s for p in ps))
        )
        state.allowed_paths = frozenset(self._paths)
        state.refresh()
        alive = {lane.device for lane in state.usable}
        devices = [(state.paths[p].row_s, state.paths[p].device) for p in self._paths]
        devices = [d for d in devices if d[1] in alive]
        self._accelerator = min(devices)[1] if len(devices) > 1 else -1

    def excess_s(self, state: RouterState, query: Query, now_s: float) -> float:
        return admission.excess_s(state, query, now_s)

    def choose(self, state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
        path = next((p for p in self._paths if p in lane.paths), -1)
        if path < 0:
            return None
        if self._accelerator < 0:
            rows_range = (0, 1 << 62)
        elif lane.device == self._accelerator:
            rows_range = (self.threshold, 1 << 62)
        else:
            rows_range = (0, self.threshold)
        whole = lane.device == self._accelerator
        max_rows = lane.merge_rows[path] if whole else min(self.batch, lane.max_rows[path])
        completion_s = now_s + state.paths[path].latency.tail[max_rows] * lane.correction.tail[path]
        batch: list[Piece] = []
        rows = 0
        for piece in pieces_from_head(state, lane):
            query = piece.query
            if (
                query.settled
                or query.deadline_s < completion_s
                or not rows_range[0] <= query.rows < rows_range[1]
            ):
                continue
            if batch and rows + piece.rows > max_rows:
                break
            batch.append(piece)
            rows += piece.rows
            if not whole:
                break
        if not batch:
            return None
        if len(batch) == 1:
            rows = min(rows, lane.max_rows[path] if whole else max_rows)
        best = state.paths[path].value >= state.best_value
        return BatchChoice(path, batch, -1, rows, Reason.BEST if best else Reason.POLICY)

    def finished(self, query: Query, now_s: float) -> None:
        """Takes a step whenever WINDOW queries have finished."""
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
            # the best latency so far may be out of reach at the current load
            self._best_s *= 1.1
        else:
            self._best_s = tail_s
        self._move(self._step)

    def _move(self, step: int) -> None:
        ladder = self._ladders[self._knob]
        self._at[self._knob] = min(len(ladder) - 1, max(0, self._at[self._knob] + step))
