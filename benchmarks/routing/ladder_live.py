"""Compares `priced` and `mprec` with every static path on a live server: a ladder of nested widths, one core.

    python -m benchmarks.routing.ladder_live PLAN --data ratings.parquet --turns 1 --out ladder-live.json

PLAN has the widths as paths (benchmarks/routing/plans.py makes one). Policies take turns on one server with
the same requests at the same times: constant loads at shares of the narrowest path's capacity, and a day
whose rate is sin squared with a peak of --peak times the widest path's capacity. Turns are added to those in
the file, so that a long measurement can be made in pieces; benchmarks/routing/ladder_live_page.py compares
the policies.

A virtual core's speed differs by a tenth or a fifth between runs, and beyond capacity, information follows
it. So the core's speed is measured during each run, and differences of one percent take about twenty turns of
the two policies in question:

    python -m benchmarks.routing.ladder_live PLAN --data ratings.parquet --first --loads 1.5 --turns 20 \
        --policies priced,static:table.w8@cpu --out ladder-live.json
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command_parser, priority, save, timestamp
from benchmarks.routing.core_speed import CoreSpeedMonitor
from benchmarks.routing.ladder import ROWS, SWING, Ladder, planned
from polyrec.loadtest.comparison.comparison import Conditions, PolicyComparison
from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.machine import processor
from polyrec.loadtest.results.figures import figures
from polyrec.loadtest.traffic.source import open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.schema.batch import F64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import load_plan
from polyrec.planner.traffic import Arrivals, Sizes

LOADS = "0.05,0.3,0.7,1.0,1.5,day"
WARM_UP_S = 1.5
"""Seconds until a router knows the load; it forgets the previous policy's losses immediately."""
MAX_LAG_S = 0.004
"""Maximum 99th percentile of the driver's lag, which counts as latency for every policy."""
DAY = "day"
FIGURES = ("information", "ok", "late", "refused", "expired", "p50_ms", "p99_ms", "mix")
"""Those of a run that the file keeps."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Arrivals of a load. load: as given; rate: the mean, requests/s; chosen: the static path that one would
    choose for twice that rate; peak: the highest rate over the capacity of the costliest path; warm_up_s:
    before the seconds that count.
    """

    load: str
    rate: float
    seconds: float
    chosen: str
    peak: float
    warm_up_s: float

    def due_s(self, turn: int) -> F64:
        """Returns the departures of a turn including the warm-up: float64 [requests], seconds."""
        random = np.random.default_rng((turn, round(self.rate)))
        if self.load != DAY:
            return arrival_times(Arrivals(), self.rate, self.warm_up_s + self.seconds, random)
        shape = Arrivals(kind="diurnal", factor=SWING, period_s=self.seconds)
        before_s = arrival_times(Arrivals(), self.rate / SWING, self.warm_up_s, random)
        day_s = arrival_times(shape, self.rate, self.seconds, random)
        return np.concatenate((before_s, self.warm_up_s + day_s))


def schedule(ladder: Ladder, load: str, seconds: float, day_seconds: float, peak: float) -> Schedule:
    """Returns a schedule.

    load: a share of the narrowest path's capacity, or DAY. peak: peak of the day, in the widest path's
    capacity.
    """
    most = ladder.capacity(ladder.paths[-1])
    if load == DAY:
        return Schedule(load, peak * most / 2, day_seconds, ladder.chosen_for(peak * most), peak, WARM_UP_S)
    rate = float(load) * ladder.capacity(ladder.paths[0])
    return Schedule(load, rate, seconds, ladder.chosen_for(2 * rate), rate / most, WARM_UP_S)


def policies_in_turn(policies: Sequence[str], turn: int) -> list[str]:
    """Returns the policies in a turn's order: each comes first once, and every second turn is reversed."""
    first = turn // 2 % len(policies)
    order = [*policies[first:], *policies[:first]]
    return order[::-1] if turn % 2 else order


def measure(
    comparison: PolicyComparison, monitor: CoreSpeedMonitor, wanted: Schedule, turn: int
) -> dict[str, Any] | None:
    """Runs every policy under one schedule; returns None if the driver was late in one of them."""
    load = comparison.prepared(wanted.due_s(turn), wanted.warm_up_s + wanted.seconds, turn)
    runs = {}
    for policy in policies_in_turn(comparison.server.policies, turn):
        outcome = comparison.run_load(policy, load)
        if outcome is None:
            return None  # a turn counts for all policies or for none
        found = asdict(figures(outcome.since(wanted.warm_up_s), comparison.quality))
        begin_s = outcome.started_s + wanted.warm_up_s
        runs[policy] = {key: found[key] for key in FIGURES}
        runs[policy]["unit_us"] = 1e6 * monitor.mean_unit_s(begin_s, begin_s + wanted.seconds)
    return {"load": wanted.load, "turn": turn, "runs": runs}


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("plan", help="plan file with the widths as paths")
    parser.add_argument("--data", help="requests; default synthetic rows of the bundle")
    parser.add_argument("--loads", default=LOADS, help=f"of the narrowest path's capacity ({LOADS})")
    parser.add_argument("--peak", type=float, default=3.0, help="of the day, in the widest path's capacity")
    parser.add_argument("--turns", type=int, default=1, help="to add (1)")
    parser.add_argument("--policies", help="those that take turns, after commas (all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a constant load (3)")
    parser.add_argument("--day-seconds", type=float, default=8.0)
    parser.add_argument("--slo-ms", type=float, default=10.0)
    parser.add_argument("--first", action="store_true", help="run before all others: nice -20 (needs root)")
    parser.add_argument("--out", type=Path, required=True, help="file of every run, as JSON; added to")
    args = parser.parse_args(argv)
    plan = load_plan(args.plan)
    ladder = planned(plan)
    loads = [
        schedule(ladder, load, args.seconds, args.day_seconds, args.peak) for load in args.loads.split(",")
    ]
    setting = {
        "data": Path(args.data).parent.name if args.data else "synthetic",
        "machine": processor(),
        "slo_ms": args.slo_ms,
        "front_us": 1e6 * ladder.front_s,
        "paths": ladder.figures(),
    }
    found: dict[str, Any] = setting | {"loads": {}, "turns": []}
    if args.out.exists():
        found = json.loads(args.out.read_text())
        if other := [key for key in setting if found[key] != setting[key]]:
            raise SystemExit(f"{args.out} has turns with another {other[0]}: give another --out")
    for wanted in loads:
        if found["loads"].setdefault(wanted.load, asdict(wanted)) != asdict(wanted):
            raise SystemExit(f"{args.out} has turns of another load {wanted.load}: give another --out")
    source = open_source(args.data, load_bundle(plan.paths[0].bundle), 0)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    policies = tuple(args.policies.split(",")) if args.policies else ladder.policies
    conditions = Conditions(
        slo_s=args.slo_ms / 1e3, warmup_s=WARM_UP_S, sizes=Sizes(kind="fixed", mean=ROWS), max_lag_s=MAX_LAG_S
    )
    with (
        priority(args.first),
        PolicyServer(plan, policies, {cores[0]}, {}) as server,
        CoreSpeedMonitor({cores[0]}) as monitor,
    ):
        comparison = PolicyComparison(server, source, conditions, partial(print, flush=True))
        for _ in range(args.turns):
            for wanted in loads:
                turn = sum(each["load"] == wanted.load for each in found["turns"])
                measured = measure(comparison, monitor, wanted, turn)
                if measured is not None:
                    found["turns"].append(measured)
                    found["made"] = timestamp()
                    save(args.out, found)
                print(f"turn {turn}: load {wanted.load}, {wanted.rate:,.0f} requests/s", flush=True)


if __name__ == "__main__":
    main()
