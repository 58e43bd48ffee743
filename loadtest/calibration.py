"""What a live server takes beside its profile, measured in some seconds: the costs that a simulation adds.

A plan's server and requests of one size go in, `planner.simulation.costs.Costs` come out. Each path is asked
in several ways, in turn: alone (one request, its answer, the next at once: every batch has one query), full
(several connections that never rest: batches of several queries), and alone with rests of some milliseconds.

    lane's own clock - profile, alone                  = batch_s of the path
    lane's own clock - profile - batch_s, full         = query_s of the path, for each query beyond the first
    (server's processor time - lane's clock) / queries = turn_s * batches / queries + query_s + row_s * rows
    processor time of a request with a hopeless budget = refuse_s
    round trip alone - all of these                    = wake_s, or, where the server was still busy after
                                                         its answer had come, -after_s
    round trip after a rest - round trip alone         = cooled

    python -m loadtest.calibration runs/plan.json --data clicks.parquet --out runs/costs.json
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from pathlib import Path
from time import perf_counter

import numpy as np
from scipy.optimize import nnls

from loadtest.client import RANK
from loadtest.closedloop import closed_loop
from loadtest.connection import Target
from loadtest.load import BUDGET, Load
from loadtest.machine import core_seconds, times_held_off
from loadtest.openloop import Limits, run
from loadtest.pacer import Pacer
from loadtest.pages import ask, samples
from loadtest.simulated import completed
from loadtest.source import Source, open_source
from loadtest.subjects import Subjects
from models.bundle import load_bundle
from models.errors import PolyrecError
from planner.latency import LatencyModel
from planner.plan import Plan, PlannedPath, load_plan
from planner.routing.curve import TAIL_DEVIATIONS
from planner.simulation.costs import BatchCost, Costs
from server.http.rounds import TICK_S

CONNECTIONS = 16
CROWD = 256
"""Connections of those who are refused: past capacity everybody opens another."""
ROUNDS = 6
ROUND_S = 0.2
AT_ONCE_S = 0.0001
RESTS_S = (0.0016, 0.0064)
LEAST_TRIP_S = 0.0003
REQUESTS = 256
LONG, SHORT = (f"{BUDGET}: {ms}".encode() for ms in ("600000", "0.001"))
ENDLESS = {"Content-Type": "application/json", BUDGET: "600000"}
"""Headers of a request that no deadline ends: refusing is cheaper than answering."""
NOT_IN_TIME = frozenset({429, 504})


@dataclass(frozen=True, slots=True)
class Counted:
    """A server's counters at one moment. busy_s: of its lanes; tick_s: of the control loop."""

    busy_s: float
    batches: float
    queries: float
    tick_s: float
    ticks: float


@dataclass(frozen=True, slots=True)
class Round:
    """Of one path asked in one way for a moment. batch_s: mean time of a batch; queries: in a batch, mean.

    front_s: the server's processor time beside, a query. trip_s: median round trip, rest_s: between two of
    them; NaN where full. unit_s: what the piece of work took (pacer.py); 1 where none was measured.
    """

    batch_s: float
    queries: float
    front_s: float
    trip_s: float
    rest_s: float
    unit_s: float

    def at_pace(self, unit_s: float) -> Round:
        """As it would have been if the piece of work had taken so long."""
        by = unit_s / self.unit_s
        return replace(
            self, batch_s=self.batch_s * by, front_s=self.front_s * by, trip_s=self.trip_s * by, unit_s=unit_s
        )


@dataclass(slots=True)
class Asked:
    """The rounds of one path, by how it was asked."""

    path: PlannedPath
    alone: list[Round]
    full: list[Round]
    rested: list[list[Round]]

    def at_pace(self, unit_s: float) -> Asked:
        """As they would have been if the piece of work had always taken so long."""
        alone, full, *rested = (
            [r.at_pace(unit_s) for r in rounds] for rounds in (self.alone, self.full, *self.rested)
        )
        return Asked(self.path, alone, full, rested)


def calibrate(
    plan: Plan,
    subjects: Subjects,
    source: Source,
    rows: int,
    tell: Callable[[str], object] = lambda _: None,
    pacer: Pacer | None = None,
) -> Costs:
    """rows: candidates of every request, the mean of the traffic. pacer: of the server's core; with it, all
    is of the core's median pace. Takes 6 s a path. Raises LoadError.
    """
    whole = completed(plan, ask(subjects.url, "/v1/paths")["paths"])
    target = Target(subjects.url + RANK, ENDLESS)
    _, body = source.drawn(np.full(REQUESTS, rows, np.int64), 0)
    requests = [target.request(body(i)) for i in range(REQUESTS)]
    found: list[Asked] = []
    core_s, waited_s = core_seconds(subjects.pid)
    before, held, begun_s = counted(subjects.url), times_held_off(subjects.pid), perf_counter()
    for path in whole.paths:
        tell(f"calibrating {path.name}")
        subjects.follow(f"static:{path.name}")
        found.append(_ask(subjects, target, requests, path, rows, whole, pacer))
    core_s, waited_s = (b - a for a, b in zip((core_s, waited_s), core_seconds(subjects.pid), strict=True))
    after, held = counted(subjects.url), times_held_off(subjects.pid) - held
    tell("calibrating refusals")
    refuse_s, refusing_unit_s = _refusing(subjects, requests, pacer)
    unit_s = None
    if pacer is not None:
        unit_s = pacer.unit_s(begun_s, perf_counter())
        found = [asked.at_pace(unit_s) for asked in found]
        refuse_s *= unit_s / refusing_unit_s
    row_s = plan.routing.row_s
    batches, trips, cooled = {}, [], []
    fronts: list[tuple[float, float]] = []
    for asked in found:
        latency = asked.path.latency
        assert latency is not None
        one, many = _middle(asked.alone), _middle(asked.full)
        batch_s = one.batch_s - _mean_s(latency, round(one.queries * rows))
        further_s = many.batch_s - batch_s - _mean_s(latency, round(many.queries * rows))
        batches[asked.path.name] = BatchCost(batch_s=batch_s, query_s=further_s / max(many.queries - 1, 1))
        fronts += [(r.queries, r.front_s - row_s * rows) for r in (*asked.alone, *asked.full)]
        usual_s = one.batch_s * latency.median(rows) / _mean_s(latency, rows)
        trips.append(one.trip_s - usual_s - one.front_s)
        cooled.append([(m.rest_s, m.trip_s - one.trip_s) for m in map(_middle, asked.rested)])
    turn_s, query_s = front(fronts)
    left_s = float(np.median(trips))
    knots = np.maximum.accumulate(np.maximum(np.median(cooled, axis=0), 0.0), axis=0)
    return Costs(
        wake_s=max(0.0, left_s),
        cooled=tuple((float(rest_s), float(more_s)) for rest_s, more_s in knots),
        turn_s=turn_s,
        after_s=min(max(0.0, -left_s), turn_s),
        query_s=query_s,
        row_s=row_s,
        refuse_s=refuse_s,
        tick_s=(after.tick_s - before.tick_s) / max(after.ticks - before.ticks, 1),
        kernel_tick_s=TICK_S if inf > TICK_S else 0.0,
        held_rate=held / core_s,
        held_s=waited_s / max(held, 1),
        unit_s=unit_s,
        batches=batches,
    )


def _ask(
    subjects: Subjects,
    target: Target,
    requests: list[bytes],
    path: PlannedPath,
    rows: int,
    plan: Plan,
    pacer: Pacer | None,
) -> Asked:
    assert path.latency is not None
    inside = all(lane.kind != "process" for lane in plan.all_lanes() if lane.device == path.device)
    spacing_s = path.latency.median(rows) + LEAST_TRIP_S
    asked = Asked(path, [], [], [[] for _ in RESTS_S])
    for _ in range(ROUNDS):
        asked.alone.append(_round(subjects, target, requests, spacing_s + AT_ONCE_S, inside, pacer))
        asked.full.append(_round(subjects, target, requests, None, inside, pacer))
        for rest_s, rounds in zip(RESTS_S, asked.rested, strict=True):
            rounds.append(_round(subjects, target, requests, spacing_s + rest_s, inside, pacer))
    return asked


def front(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(queries in a batch, seconds a query) of each round -> turn_s, query_s."""
    queries, seconds = zip(*found, strict=True)
    query_s, turn_s = relative_line([1 / n for n in queries], seconds)
    return turn_s, query_s


def relative_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """(a, b), neither negative: of all lines a + b * x the one with the least relative error at y."""
    # a cost of nothing has no relative error
    scale = np.maximum(np.array(y, np.float64), 1e-9)
    scaled = np.stack((1 / scale, np.array(x, np.float64) / scale), axis=1)
    (a, b), _ = nnls(scaled, np.ones_like(scale))
    return float(a), float(b)


def _round(
    subjects: Subjects,
    target: Target,
    requests: list[bytes],
    spacing_s: float | None,
    inside: bool,
    pacer: Pacer | None,
) -> Round:
    """One request every spacing_s; or full, where that is None."""
    begun_s = perf_counter()
    before = counted(subjects.url)
    # the processor time within the scrapes: they are dearer than a request
    core_s, waited_s = core_seconds(subjects.pid)
    trip_s = float("nan")
    if spacing_s is None:
        closed_loop(subjects.url, requests, CONNECTIONS, ROUND_S)
    else:
        due_s = np.arange(0.0, ROUND_S, spacing_s)
        n = due_s.size
        load = Load(
            due_s, ROUND_S, np.ones(n, np.int64), np.full(n, np.inf), lambda i: requests[i % len(requests)]
        )
        trip_s = float(np.nanmedian(run(target, load, Limits(connections=1)).latency_s))
    core_s, waited_s = (b - a for a, b in zip((core_s, waited_s), core_seconds(subjects.pid), strict=True))
    after = counted(subjects.url)
    busy_s, batches, queries = (
        after.busy_s - before.busy_s,
        after.batches - before.batches,
        after.queries - before.queries,
    )
    # the lane's clock went on while the process waited for a core, its processor time did not
    lane_s = busy_s * core_s / (core_s + waited_s) if inside else 0.0
    front_s = max(core_s - lane_s - (after.tick_s - before.tick_s), 0.0) / queries
    rest_s = max((spacing_s or float("nan")) - trip_s, 0.0)
    unit_s = 1.0 if pacer is None else pacer.unit_s(begun_s, perf_counter())
    return Round(busy_s / batches, queries / batches, front_s, trip_s, rest_s, unit_s)


def _refusing(subjects: Subjects, requests: Sequence[bytes], pacer: Pacer | None) -> tuple[float, float]:
    """Processor seconds of a request that nothing can answer in time, one of a crowd; and of the piece of
    work meanwhile.
    """
    hopeless = [request.replace(LONG, SHORT, 1) for request in requests]
    found = []
    begun_s = perf_counter()
    for _ in range(ROUNDS):
        core_s, _ = core_seconds(subjects.pid)
        n = closed_loop(subjects.url, hopeless, CROWD, ROUND_S, NOT_IN_TIME)
        found.append((core_seconds(subjects.pid)[0] - core_s) / n)
    return float(np.median(found)), 1.0 if pacer is None else pacer.unit_s(begun_s, perf_counter())


def _middle(rounds: Sequence[Round]) -> Round:
    """The medians: a neighbour that takes the machine for a round is forgotten."""
    return Round(*(float(np.median([getattr(r, f) for r in rounds])) for f in Round.__slots__))


def _mean_s(latency: LatencyModel, rows: int) -> float:
    """The mean of a lognormal with the profile's median and tail."""
    median_s = latency.median(rows)
    spread = log(latency.tail(rows) / median_s) / TAIL_DEVIATIONS
    return median_s * exp(spread * spread / 2)


def counted(url: str) -> Counted:
    """Of the server as it is now."""
    total = samples(url).total
    return Counted(
        busy_s=total("polyrec_lane_busy_seconds_total"),
        batches=total("polyrec_batch_rows_count"),
        queries=total("polyrec_batch_queries_total"),
        tick_s=total("polyrec_control_tick_seconds_sum"),
        ticks=total("polyrec_control_tick_seconds_count"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.calibration",
        description="Measure what serving a plan takes beside its profile.",
    )
    parser.add_argument("plan")
    parser.add_argument("--data", help="Parquet file whose requests are sent (default: invented rows)")
    parser.add_argument("--rows", type=int, help="candidates of a request (default: the mean of the data's)")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))
    try:
        plan = load_plan(args.plan)
        source = open_source(args.data, load_bundle(plan.paths[0].bundle), 0)
        os.sched_setaffinity(0, {cores[-1]})
        with Subjects(plan, (), set(cores[:-1]) or {cores[-1]}, {}) as subjects:
            rows = args.rows or max(1, round(float(source.sizes.mean())))
            costs = calibrate(plan, subjects, source, rows, lambda text: print(text, file=sys.stderr))
    except PolyrecError as e:
        print(f"calibration: {e}", file=sys.stderr)
        return 2
    text = costs.model_dump_json(indent=2)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
