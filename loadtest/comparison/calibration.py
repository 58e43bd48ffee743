"""Measures the costs of serving that a profile lacks and a simulation adds.

`calibrate` takes a plan's server and requests of one size, and returns
`polyrec.planner.simulation.costs.Costs`. Each path serves three loads in turn: alone (one request at a time,
so that every batch has one query), full (several connections without pause, so that batches have several
queries), and alone with pauses of some milliseconds.

    lane's own clock - profile, alone                  = batch_s of the path
    lane's own clock - profile - batch_s, full         = query_s of the path, for each query beyond the first
    (server's processor time - lane's clock) / queries = turn_s * batches / queries + query_s + row_s * rows
    processor time of a request with an expired budget = refuse_s
    round trip alone - all of these                    = wake_s, or, if the server was still busy after
                                                         its answer had arrived, -after_s
    round trip after a pause - round trip alone        = cooled

    python -m polyrec.loadtest.comparison.calibration runs/plan.json --data clicks.parquet \
        --out runs/costs.json
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.comparison.simulated import completed
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import BUDGET, Load
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import get_json, read_metrics
from polyrec.loadtest.machine import core_seconds, involuntary_switches
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import Bodies, Source, open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.errors import PolyrecError
from polyrec.models.files import require_target_file
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, PlannedPath, load_plan
from polyrec.planner.routing.latency.latency_table import TAIL_DEVIATIONS
from polyrec.planner.simulation.costs import BatchCost, Costs

CONNECTIONS = 16
MANY_CONNECTIONS = 256
"""Connections while requests are rejected: beyond capacity clients open more of them."""
ROUNDS = 6
ROUND_S = 0.2
AT_ONCE_S = 0.0001
RESTS_S = (0.0016, 0.0064)
MIN_TRIP_S = 0.0003
REQUESTS = 256
LONG, SHORT = (f"{BUDGET}: {ms}".encode() for ms in ("600000", "0.001"))
ENDLESS = {"Content-Type": "application/json", BUDGET: "600000"}
"""Headers of a request that does not expire: rejecting is cheaper than answering."""
NOT_IN_TIME = frozenset({429, 504})


@dataclass(frozen=True, slots=True)
class Counters:
    """A server's counters at one moment. busy_s: of its lanes. tick_s: of the control loop."""

    busy_s: float
    batches: float
    queries: float
    tick_s: float
    ticks: float


@dataclass(frozen=True, slots=True)
class Round:
    """One path under one load for a short time.

    batch_s: mean time of a batch. queries: mean number of queries per batch.
    front_s: the server's processor time outside lanes, per query.
    trip_s: median round trip; NaN under full load. rest_s: pause between two round trips; NaN under full
    load.
    """

    batch_s: float
    queries: float
    front_s: float
    trip_s: float
    rest_s: float


@dataclass(frozen=True, slots=True)
class PathRounds:
    """The rounds of one path with requests of `rows` rows, by load."""

    path: PlannedPath
    rows: int
    alone: list[Round]
    full: list[Round]
    rested: list[list[Round]]

    @property
    def latency(self) -> LatencyModel:
        """The latency model of the profile."""
        assert self.path.latency is not None
        return self.path.latency

    def batch(self) -> BatchCost:
        """Returns the cost of batches beyond the profile."""
        one, many = _median_round(self.alone), _median_round(self.full)
        batch_s = one.batch_s - _mean_s(self.latency, round(one.queries * self.rows))
        further_s = many.batch_s - batch_s - _mean_s(self.latency, round(many.queries * self.rows))
        return BatchCost(batch_s=batch_s, query_s=further_s / max(many.queries - 1, 1))

    def left_s(self) -> float:
        """Returns the seconds of a round trip that no counter of the server explains."""
        one = _median_round(self.alone)
        usual_s = one.batch_s * self.latency.median(self.rows) / _mean_s(self.latency, self.rows)
        return one.trip_s - usual_s - one.front_s

    def cooled(self) -> list[tuple[float, float]]:
        """Returns pairs of a pause and the extra seconds of a round trip after it."""
        one = _median_round(self.alone)
        return [(m.rest_s, m.trip_s - one.trip_s) for m in map(_median_round, self.rested)]


def calibrate(
    plan: Plan,
    server: PolicyServer,
    source: Source,
    rows: int,
    progress: Callable[[str], object] = lambda _: None,
) -> Costs:
    """Measures all costs, at 6 s per path. Raises LoadError.

    rows: candidates of every request, the mean of the traffic.
    """
    whole = completed(plan, get_json(server.url, "/v1/paths")["paths"])
    _, body = source.sampled(np.full(REQUESTS, rows, np.int64), 0)
    prober = _Prober(server, whole, body)
    found: list[PathRounds] = []
    core_s, waited_s = core_seconds(server.pid)
    before, held = read_counters(server.url), involuntary_switches(server.pid)
    for path in whole.paths:
        progress(f"calibrating {path.name}")
        found.append(prober.path(path, rows))
    core_s, waited_s = (b - a for a, b in zip((core_s, waited_s), core_seconds(server.pid), strict=True))
    after, held = read_counters(server.url), involuntary_switches(server.pid) - held
    progress("calibrating rejections")
    refuse_s = prober.rejections()
    row_s = plan.routing.row_s
    turn_s, query_s = front(
        [
            (r.queries, r.front_s - row_s * rows)
            for measured in found
            for r in (*measured.alone, *measured.full)
        ]
    )
    left_s = float(np.median([measured.left_s() for measured in found]))
    cooled = np.median([measured.cooled() for measured in found], axis=0)
    knots = np.maximum.accumulate(np.maximum(cooled, 0.0), axis=0)
    return Costs(
        wake_s=max(0.0, left_s),
        cooled=tuple((float(rest_s), float(more_s)) for rest_s, more_s in knots),
        turn_s=turn_s,
        after_s=min(max(0.0, -left_s), turn_s),
        query_s=query_s,
        row_s=row_s,
        refuse_s=refuse_s,
        tick_s=(after.tick_s - before.tick_s) / max(after.ticks - before.ticks, 1),
        held_rate=held / core_s,
        held_s=waited_s / max(held, 1),
        batches={measured.path.name: measured.batch() for measured in found},
    )


def front(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits turn_s and query_s to (queries per batch, seconds per query) of each round."""
    queries, seconds = zip(*found, strict=True)
    query_s, turn_s = relative_line([1 / n for n in queries], seconds)
    return turn_s, query_s


def relative_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fits y = a + b * x with the least relative error, with a and b non-negative; returns (a, b)."""
    # a cost of zero has no relative error
    scale = np.maximum(np.array(y, np.float64), 1e-9)
    scaled = np.stack((1 / scale, np.array(x, np.float64) / scale), axis=1)
    (a, b), _ = nnls(scaled, np.ones_like(scale))
    return float(a), float(b)


class _Prober:
    """Sends the loads to a server."""

    def __init__(self, server: PolicyServer, plan: Plan, body: Bodies) -> None:
        self._server = server
        self._plan = plan
        self._target = Target(server.url + RANK, ENDLESS)
        self._requests = [self._target.request(body(i)) for i in range(REQUESTS)]

    def path(self, path: PlannedPath, rows: int) -> PathRounds:
        """Measures a path under every load in turn. Raises LoadError."""
        self._server.set_policy(f"static:{path.name}")
        inside = all(lane.kind != "process" for lane in self._plan.all_lanes() if lane.device == path.device)
        measured = PathRounds(path, rows, [], [], [[] for _ in RESTS_S])
        spacing_s = measured.latency.median(rows) + MIN_TRIP_S
        for _ in range(ROUNDS):
            measured.alone.append(self._round(spacing_s + AT_ONCE_S, inside))
            measured.full.append(self._round(None, inside))
            for rest_s, rounds in zip(RESTS_S, measured.rested, strict=True):
                rounds.append(self._round(spacing_s + rest_s, inside))
        return measured

    def rejections(self) -> float:
        """Returns the processor seconds of a rejected request among many connections."""
        server = self._server
        expiring = [request.replace(LONG, SHORT, 1) for request in self._requests]
        found = []
        for _ in range(ROUNDS):
            core_s, _ = core_seconds(server.pid)
            n = closed_loop(server.url, expiring, MANY_CONNECTIONS, ROUND_S, NOT_IN_TIME)
            found.append((core_seconds(server.pid)[0] - core_s) / n)
        return float(np.median(found))

    def _round(self, spacing_s: float | None, inside: bool) -> Round:
        """Measures one request every spacing_s, or full load if that is None."""
        server, requests = self._server, self._requests
        before = read_counters(server.url)
        # read processor time between the scrapes, which cost more than a request
        core_s, waited_s = core_seconds(server.pid)
        trip_s = float("nan")
        if spacing_s is None:
            closed_loop(server.url, requests, CONNECTIONS, ROUND_S)
        else:
            due_s = np.arange(0.0, ROUND_S, spacing_s)
            n = due_s.size
            ones, endless = np.ones(n, np.int64), np.full(n, np.inf)
            load = Load(due_s, ROUND_S, ones, endless, lambda i: requests[i % len(requests)])
            trip_s = float(np.nanmedian(run(self._target, load, Limits(connections=1)).latency_s))
        now = core_seconds(server.pid)
        core_s, waited_s = (b - a for a, b in zip((core_s, waited_s), now, strict=True))
        after = read_counters(server.url)
        busy_s, batches, queries = (
            after.busy_s - before.busy_s,
            after.batches - before.batches,
            after.queries - before.queries,
        )
        # the lane's clock includes time in which the process waited for a core; its processor time does not
        lane_s = busy_s * core_s / (core_s + waited_s) if inside else 0.0
        front_s = max(core_s - lane_s - (after.tick_s - before.tick_s), 0.0) / queries
        rest_s = max((spacing_s or float("nan")) - trip_s, 0.0)
        return Round(busy_s / batches, queries / batches, front_s, trip_s, rest_s)


def _median_round(rounds: Sequence[Round]) -> Round:
    """Returns the medians, which are robust to a disturbed round."""
    return Round(*(float(np.median([getattr(r, f) for r in rounds])) for f in Round.__slots__))


def _mean_s(latency: LatencyModel, rows: int) -> float:
    """Returns the mean of a lognormal distribution with the profile's median and tail."""
    median_s = latency.median(rows)
    spread = log(latency.tail(rows) / median_s) / TAIL_DEVIATIONS
    return median_s * exp(spread * spread / 2)


def read_counters(url: str) -> Counters:
    """Reads the server's counters."""
    total = read_metrics(url).total
    return Counters(
        busy_s=total("polyrec_lane_busy_seconds_total"),
        batches=total("polyrec_batch_rows_count"),
        queries=total("polyrec_batch_queries_total"),
        tick_s=total("polyrec_control_tick_seconds_sum"),
        ticks=total("polyrec_control_tick_seconds_count"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m polyrec.loadtest.comparison.calibration",
        description="Measure the costs of serving that a plan's profile does not include.",
    )
    parser.add_argument("plan")
    parser.add_argument("--data", help="Parquet file whose requests are sent (default: synthetic rows)")
    parser.add_argument("--rows", type=int, help="candidates per request (default: the data's mean)")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))
    try:
        if args.out:
            require_target_file(args.out, LoadError)
        plan = load_plan(args.plan)
        source = open_source(args.data, load_bundle(plan.paths[0].bundle), 0)
        os.sched_setaffinity(0, {cores[-1]})
        with PolicyServer(plan, (), set(cores[:-1]) or {cores[-1]}, {}) as server:
            rows = args.rows or max(1, round(float(source.sizes.mean())))
            costs = calibrate(plan, server, source, rows, lambda text: print(text, file=sys.stderr))
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
