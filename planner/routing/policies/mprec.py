"""Policy `mprec`: MP-Rec's greedy rule (ASPLOS'23), as a baseline.

At arrival, a query is bound to the first path in order of quality whose predicted latency fits its budget, or
else to the fastest path. The order is first come, first served, and only a full queue rejects. The paper does
not say whether the prediction includes the queue. Here it does (queries bound to the device, running batches,
and the batch that the query will join), which is the stronger variant. Queries bound to the same path are
merged.
"""

from __future__ import annotations

from polyrec.planner.routing.fair_share import pieces_from_head
from polyrec.planner.routing.feasibility import degraded_reason
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency.latency_table import in_batches
from polyrec.planner.routing.policies.policy import BatchChoice, Policy
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.router_state import RouterState


class MPRec(Policy):
    """Binds each query to a path (Query.path) when it is accepted."""

    name = "mprec"
    fifo = True
    binds_at_arrival = True
    partitions_work = True

    def __init__(self) -> None:
        self._bound_s: list[float] = []
        self._lanes: list[int] = []
        self._merge: list[int] = []

    def prepare(self, state: RouterState) -> None:
        super().prepare(state)
        self._lanes = [0] * len(state.devices)
        for lane in state.usable:
            self._lanes[lane.device] += 1
        self._merge = [1] * len(state.paths)
        for lane in state.usable:
            for p in lane.paths:
                self._merge[p] = lane.merge_rows[p]
        self._bound_s = [0.0] * len(state.devices)
        for piece in state.queue.unsettled():
            query, rows = piece.query, piece.rows
            if query.path < 0 or (not self._lanes[state.paths[query.path].device] and rows == query.rows):
                query.path = self.bind(state, query, query.arrival_s)
            self._add(state, query.path, rows)

    def accepted(self, state: RouterState, query: Query, now_s: float) -> None:
        if not state.queue.pieces:
            # drops queries that expired or were canceled meanwhile
            self._bound_s = [0.0] * len(self._bound_s)
        query.path = self.bind(state, query, now_s)
        self._add(state, query.path, query.rows)

    def dispatched(self, state: RouterState, path: int, rows: int) -> None:
        self._add(state, path, -rows)

    def choose(self, state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
        path, rows = -1, 0
        batch = []
        for piece in pieces_from_head(state, lane):
            query = piece.query
            if query.settled or (query.path not in lane.paths if path < 0 else query.path != path):
                continue
            if path < 0:
                path = query.path
            elif rows + piece.rows > lane.merge_rows[path]:
                break
            batch.append(piece)
            rows += piece.rows
            if rows >= lane.max_rows[path]:
                break
        if not batch:
            return None
        rows = min(rows, lane.max_rows[path]) if len(batch) == 1 else rows
        reason = degraded_reason(state, path, batch[0].query)
        return BatchChoice(path, batch, -1, rows, reason if reason is Reason.BEST else Reason.POLICY)

    def _add(self, state: RouterState, path: int, rows: int) -> None:
        path_state = state.paths[path]
        seconds = self._bound_s[path_state.device] + rows * path_state.row_s
        self._bound_s[path_state.device] = max(0.0, seconds)

    def bind(self, state: RouterState, query: Query, now_s: float) -> int:
        left = query.deadline_s - now_s - state.front.answering_s(query.rows)
        waits = self._waits(state, now_s)
        fastest, fastest_s = 0, float("inf")
        for path in sorted(state.paths, key=lambda p: -p.value):
            lanes = self._lanes[path.device]
            if path.value <= 0 or not lanes or (query.best_only and path.value < state.best_value):
                continue
            behind = int(self._bound_s[path.device] / path.row_s)
            rows = max(query.rows, min(query.rows + behind, self._merge[path.index]))
            tail = path.latency.tail
            # a hypothetical request may have more rows than real ones
            predicted = waits[path.device] + in_batches(tail, rows, len(tail) - 1)
            if predicted <= left:
                return path.index
            # as if alone, since the batch it would join is largest on the paths that gain most from merging
            alone_s = waits[path.device] + in_batches(tail, query.rows, len(tail) - 1)
            if alone_s < fastest_s:
                fastest, fastest_s = path.index, alone_s
        return fastest

    def _waits(self, state: RouterState, now_s: float) -> list[float]:
        """Returns, by device, the seconds until its lanes have executed all bound and running queries."""
        waits = [
            seconds / lanes if lanes else float("inf")
            for seconds, lanes in zip(self._bound_s, self._lanes, strict=True)
        ]
        for lane in state.usable:
            if lane.in_flight is not None:
                waits[lane.device] += max(0.0, lane.free_s - now_s) / self._lanes[lane.device]
        return waits
