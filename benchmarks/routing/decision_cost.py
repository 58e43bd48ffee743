"""Measures the cost of a router's decision: microseconds of `priced` on two described machines.

    chrt -r 1 python -m benchmarks.routing.decision_cost --json docs/results/routing-hot-path.json

Queries of DeepRecSys's sizes (lognormal, mean 147) arrive by a Poisson process at shares of the machine's
capacity, which is the rows/s of all lanes on their cheapest paths with the largest batches. Budget: 10 ms.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np

from benchmarks.command import command_parser, save
from benchmarks.routing.machines import MACHINES, Machine
from polyrec.models.schema.batch import F64, I64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Routing
from polyrec.planner.routing.latency.front_cost import LoopTime
from polyrec.planner.routing.query import Dispatch, Query, Rejection
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes

T = TypeVar("T")
BUDGET_S = 0.010
QUERIES = 30_000
SIZES = Sizes(kind="lognormal", mean=147)
CASES = (("cpu", 0.3), ("cpu", 0.7), ("cpu", 1.2), ("cpu+gpu", 0.3), ("cpu+gpu", 0.7))


def capacity(machine: Machine) -> float:
    """Returns the rows/s of all lanes, each on its cheapest path with the largest batch."""
    most = machine.limits.max_batch_rows
    return sum(
        max(most / p.latency.median(most) for p in machine.paths if p.device == lane.device)
        for lane in machine.lanes
    )


def trace(machine: Machine, arrivals: Arrivals, load: float, seconds: float, seed: int) -> tuple[F64, I64]:
    """Returns arrival times and rows of queries at a share of the machine's capacity."""
    rng = np.random.default_rng(seed)
    times = arrival_times(arrivals, load * capacity(machine) / SIZES.mean_rows, seconds, rng)
    return times, SIZES.sample(times.size, rng)


def decision_costs(queries: int = QUERIES) -> list[dict[str, Any]]:
    """Returns routing microseconds per query: `submit`, and its share of its batch's `next` and `done`."""
    found = []
    for name, load in CASES:
        machine = MACHINES[name]
        seconds = queries * SIZES.mean_rows / (load * capacity(machine))
        times, rows = trace(machine, Arrivals(), load, seconds, 0)
        queried = Trace(machine.paths, machine.limits, times, rows, BUDGET_S)
        simulator = Simulator(queried, machine.lanes, Routing(), np.random.default_rng(1))
        timed = simulator.router = _Timed(simulator.router.state)
        simulator.run()
        found.append({"machine": name, "load": load, "queries": int(times.size), **timed.figures(times.size)})
    return found


class _Timed(Router):
    """Router that records the durations of its calls, which are not nested."""

    def __init__(self, state: RouterState) -> None:
        super().__init__(state)
        self.spent: dict[str, list[int]] = {}
        self._share: list[float] = []
        self._submits: dict[int, int] = {}
        self._nexts: dict[int, int] = {}

    def _time(self, name: str, call: Callable[[], T]) -> T:
        began = perf_counter_ns()
        result = call()
        self.spent.setdefault(name, []).append(perf_counter_ns() - began)
        return result

    def reject_early(
        self, arrival_s: float, deadline_s: float, rows: int | None, now_s: float
    ) -> Rejection | None:
        call = partial(super().reject_early, arrival_s, deadline_s, rows, now_s)
        return self._time("reject_early", call)

    def submit(self, query: Query, now_s: float) -> Rejection | None:
        result = self._time("submit", partial(super().submit, query, now_s))
        self._submits[query.payload] = self.spent["submit"][-1]
        return result

    def next(self, lane: int, now_s: float) -> Dispatch | None:
        result = self._time("next", partial(super().next, lane, now_s))
        if result is not None:
            self._nexts[id(result)] = self.spent["next"].pop()
            self.spent.setdefault("next, a batch", []).append(self._nexts[id(result)])
        return result

    def done(self, dispatch: Dispatch, now_s: float, took_s: float, waited_s: float = 0.0) -> None:
        self._time("done", partial(super().done, dispatch, now_s, took_s, waited_s))
        each = (self._nexts.pop(id(dispatch)) + self.spent["done"][-1]) / len(dispatch.parts)
        self._share += [self._submits[part.query.payload] + each for part in dispatch.parts]

    def expire(self, now_s: float) -> list[Query]:
        return self._time("expire", partial(super().expire, now_s))

    def wake_s(self) -> float | None:
        return self._time("wake_s", super().wake_s)

    def tick(self, now_s: float, loop_time: LoopTime | None = None) -> None:
        self._time("tick", partial(super().tick, now_s, loop_time))

    def figures(self, queries: int) -> dict[str, Any]:
        total = sum(sum(v) for k, v in self.spent.items() if k != "tick")
        return {
            "query_us_p50": float(np.median(self._share)) / 1e3,
            "query_us_p99": float(np.quantile(self._share, 0.99)) / 1e3,
            "all_calls_us_a_query": total / queries / 1e3,
            "median_us": {k: float(np.median(v)) / 1e3 for k, v in self.spent.items()},
            "calls_a_query": {k: len(v) / queries for k, v in self.spent.items()},
        }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = {"python": platform.python_version(), "hot_path": decision_costs()}
    save(args.json, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
