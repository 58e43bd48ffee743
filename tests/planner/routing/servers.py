"""Small example servers for tests of routing, and a driver that steps a router by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.latency.read_times import ReadSeconds
from polyrec.planner.routing.query import NO_MISSES, Dispatch, Misses, Query
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState


def line(fixed_s: float, row_s: float, tail: float = 1.3) -> LatencyModel:
    rows = (1, 4096)
    median = tuple(fixed_s + row_s * n for n in rows)
    return LatencyModel(rows=rows, median_s=median, tail_s=tuple(tail * m for m in median))


HYBRID = PathSpec("hybrid@cpu", "cpu", 0.79, line(2e-4, 2e-5))
TABLE = PathSpec("table@cpu", "cpu", 0.78, line(5e-5, 4e-6))
GPU_HYBRID = PathSpec("hybrid@cuda:0", "cuda:0", 0.79, line(5e-4, 4e-7))
GPU_TABLE = PathSpec("table@cuda:0", "cuda:0", 0.78, line(3e-4, 1e-7))
CPU = (HYBRID, TABLE)
BOTH = (GPU_HYBRID, GPU_TABLE, HYBRID, TABLE)
POLICIES = ("priced", "mprec", "deeprecsys", "static:table@cpu", "static:hybrid@cpu")


def cpu_lanes(n: int, kind: LaneKind = "process") -> tuple[LaneSpec, ...]:
    return tuple(LaneSpec(f"cpu{i}", "cpu", kind) for i in range(n))


GPU_LANE = LaneSpec("gpu0", "cuda:0", "thread")


def router(
    paths: tuple[PathSpec, ...] = CPU,
    lanes: tuple[LaneSpec, ...] | None = None,
    limits: Limits | None = None,
    **routing: object,
) -> Router:
    lanes = cpu_lanes(2) if lanes is None else lanes
    return Router(RouterState(paths, lanes, Routing.model_validate(routing), limits or Limits(), 0.0))


@dataclass
class RouterDriver:
    """Steps a router and records how each query ends. Every query must end exactly once."""

    router: Router
    now_s: float = 0.0
    ends: dict[Query, list[str]] = field(default_factory=dict)
    running: dict[int, Dispatch] = field(default_factory=dict)
    dispatches: list[Dispatch] = field(default_factory=list)

    def submit(
        self,
        rows: int,
        budget_s: float,
        priority: int = 0,
        best_only: bool = False,
        misses: Misses = NO_MISSES,
    ) -> Query:
        query = Query(rows, self.now_s, self.now_s + budget_s, priority, best_only)
        self.ends[query] = []
        if self.router.submit(query, self.now_s) is not None or (
            any(misses) and self.router.hold(query, misses, self.now_s) is not None
        ):
            self.ends[query].append("rejected")
        return query

    def read(self, query: Query) -> None:
        """Ends the reads of a query, if it has any, whatever became of it meanwhile."""
        if query.reading:
            took_s = self.now_s - query.arrival_s
            self.router.rows_read(query, ReadSeconds(took_s, took_s))

    def turn(self) -> None:
        """One turn of the dispatcher: expires queries, then dispatches to every free lane."""
        for query in self.router.expire(self.now_s):
            assert query.settled
            self.ends[query].append("expired")
        for lane in range(len(self.router.state.lane_specs)):
            if lane not in self.running:
                dispatch = self.router.next(lane, self.now_s)
                if dispatch is not None:
                    assert dispatch.lane == lane
                    assert dispatch.rows == sum(part.rows for part in dispatch.parts)
                    self.running[lane] = dispatch
                    self.dispatches.append(dispatch)

    def done(self, lane: int, took_s: float | None = None) -> None:
        dispatch = self.running.pop(lane)
        before = {part.query for part in dispatch.parts if not part.query.settled}
        took_s = self.now_s - dispatch.started_s if took_s is None else took_s
        self.router.done(dispatch, self.now_s, max(took_s, 1e-6))
        for query in before:
            if query.settled:
                assert query.done_rows == query.rows
                self.ends[query].append("answered")

    def failed(self, lane: int) -> None:
        for query in self.router.failed(self.running.pop(lane), self.now_s):
            self.ends[query].append("failed")

    def cancel(self, query: Query) -> None:
        if not query.settled and not self.ends[query]:
            self.router.cancel(query)
            self.ends[query].append("canceled")

    def run(self, until_s: float) -> None:
        """Runs until a time; batches take their predicted median."""
        while self.now_s < until_s:
            self.turn()
            ends = [d.started_s + d.median_s for d in self.running.values()]
            wake_s = self.router.wake_s()
            soonest = min([*ends, until_s, *([wake_s] if wake_s is not None else [])])
            self.now_s = max(self.now_s + 1e-6, soonest)
            for lane, dispatch in list(self.running.items()):
                if dispatch.started_s + dispatch.median_s <= self.now_s + 1e-12:
                    self.done(lane, dispatch.median_s)
        self.turn()
