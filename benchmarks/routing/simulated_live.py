"""Compares the simulator with a live server: median, 99th percentile and goodput at five loads.

    python -m benchmarks.routing.simulated_live --first --json docs/results/simulated-live.json

First measures the cost of serving (loadtest/comparison/calibration.py), then finds each policy's capacity in
the simulator with an undisturbed core. The live server is loaded at shares of it, with policies in turns. The
same requests at the same times are simulated on a core of the speed that the server's had at the time
(benchmarks/routing/core_speed.py). Figures of a load are medians of all its runs, live and simulated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.command import command_parser, priority, save
from benchmarks.routing.core_speed import CoreSpeedMonitor, MeasuredSlowdown
from polyrec.loadtest.comparison.capacity_search import CapacitySearch
from polyrec.loadtest.comparison.comparison import Conditions, PolicyComparison
from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.machine import machine
from polyrec.loadtest.traffic.source import open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.plan import Plan, load_plan
from polyrec.planner.simulation.simulator import Slowdown, no_slowdown
from polyrec.planner.traffic import parse_sizes
from polyrec.report.text import markdown_table

POLICIES = "priced,static:table@cpu,static:hybrid-hot.int8@cpu"
LOADS = (0.2, 0.5, 0.8, 1.0, 1.2)
FIRST = 200.0
AIM = 0.2
QUICK = 0.1
"""Capacity is measured at the core's speed in its fastest tenth of time."""
WARMUP_S = 3.0
"""Seconds until a router has forgotten the previous load; a simulated router starts without one."""


def capacity(comparison: PolicyComparison, whole: Plan, policy: str, slowdown: Slowdown) -> float:
    """Returns the highest rate at which the simulated policy meets the SLO on an undisturbed core."""
    c = comparison.conditions
    assert comparison.costs is not None
    alone = comparison.costs.model_copy(update={"held_rate": 0.0})
    search = CapacitySearch(FIRST, tries=1)
    while (rate := search.rate) is not None:
        search.record(
            rate, comparison.simulate_run(whole, policy, rate, 0, alone, slowdown).meets_slo(c.slo_s, c.share)
        )
    return search.met or FIRST


def rows_of(
    comparison: PolicyComparison,
    whole: Plan,
    rates: dict[str, list[float]],
    slowdowns: Mapping[tuple[str, float, int], MeasuredSlowdown],
) -> list[dict[str, Any]]:
    """Returns one entry per policy and load. `apart`: relative difference of simulated from live.

    slowdowns: slowdown of the server's core in each live run, by policy, rate and run number.
    """
    found = []
    for policy, own in rates.items():
        trial = comparison.trials[policy]
        for load, rate in zip(LOADS, own, strict=True):
            runs = trial.ladder.get(rate)
            if not runs:
                continue
            # a run that was discarded has no slowdown
            slow = [
                slowdowns.get((policy, rate, i), no_slowdown) for i in range(comparison.conditions.repeats)
            ]
            there = [
                comparison.simulate_run(whole, policy, rate, i, slowdown=one) for i, one in enumerate(slow)
            ]
            live, simulated = (
                {
                    what: median(getattr(f, what) or 0.0 for f in each)
                    for what in ("p50_ms", "p99_ms", "goodput", "ok")
                }
                for each in (runs, there)
            )
            entry: dict[str, Any] = {"policy": policy, "load": load, "rate": rate}
            entry |= {"live": live, "simulated": simulated}
            entry["runs_p99_ms"] = {"live": [f.p99_ms for f in runs], "simulated": [f.p99_ms for f in there]}
            factors = [s.factor for (p, r, _), s in slowdowns.items() if (p, r) == (policy, rate)]
            entry["pace"] = [float(np.median(p)) for p in factors]
            entry["server_p99_ms"] = 1e3 * median(p99 for _, p99 in trial.served[rate])
            entry["apart"] = {
                what: simulated[what] / live[what] - 1
                for what in ("p50_ms", "p99_ms", "goodput")
                if live[what]
            }
            found.append(entry)
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns a Markdown table of live and simulated figures and their differences."""
    rows = []
    for row in found:
        live, there, apart = row["live"], row["simulated"], row["apart"]
        cells = [
            f"{live[what]:{form}} / {there[what]:{form}} ({apart.get(what, 0):+.0%})"
            for what, form in (("p50_ms", ".2f"), ("p99_ms", ".2f"), ("goodput", ",.0f"))
        ]
        case = [row["policy"], f"{row['load']:.0%}", f"{row['rate']:,.0f}"]
        rows.append([*case, *cells, f"{row['server_p99_ms']:.2f}"])
    head = ["policy", "load", "requests/s", "p50 ms", "p99 ms", "goodput, rows/s", "server's own p99"]
    return "\n".join(markdown_table(head, rows))


def measured(
    plan: Plan, comparison: PolicyComparison, policies: Sequence[str], monitor: CoreSpeedMonitor
) -> dict[str, Any]:
    """Calibrates, finds each policy's capacity in the simulator, and loads the live server at shares of it.

    monitor: measures the speed of the server's core. Returns the capacities by policy, the speed at which
    they were found, the costs of serving, and the rows of the comparison.
    """
    begun_s = perf_counter()
    comparison.calibrate(plan)
    whole = comparison.completed(plan)
    calibrated_s = perf_counter()
    unit_s = monitor.unit_s(begun_s, calibrated_s)
    factor = monitor.unit_s(begun_s, calibrated_s, QUICK) / unit_s
    slowdown = MeasuredSlowdown(np.zeros(1), np.array([factor]))
    most = {policy: capacity(comparison, whole, policy, slowdown) for policy in policies}
    rates = {policy: [round(most[policy] * load, 1) for load in LOADS] for policy in policies}
    comparison.run_ladder(rates)
    slowdowns = {
        (policy, *run): monitor.slowdown(*span, unit_s)
        for policy, trial in comparison.trials.items()
        for run, span in trial.spans.items()
    }
    return {
        "capacity": most,
        "capacity_pace": factor,
        "costs": comparison.costs and comparison.costs.model_dump(mode="json"),
        "left_out": comparison.discarded_runs,
        "rows": rows_of(comparison, whole, rates, slowdowns),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--plan", default="runs/plan-all.json")
    parser.add_argument("--data", default="../shared/data/trivago/impressions.parquet")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--sizes", help="rows of a request: mlperf, fixed:23 (default: as in the data)")
    parser.add_argument("--slo-ms", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a run (2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--first", action="store_true", help="run before all others: nice -20 (needs root)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    plan = load_plan(args.plan)
    conditions = Conditions(
        slo_s=args.slo_ms / 1e3,
        seconds=args.seconds,
        warmup_s=WARMUP_S,
        repeats=args.repeats,
        sizes=None if args.sizes is None else parse_sizes(args.sizes),
    )
    cores = sorted(os.sched_getaffinity(0))
    source = open_source(args.data, load_bundle(plan.paths[0].bundle), 0)
    servers = set(cores[:-1]) or set(cores)
    os.sched_setaffinity(0, {cores[-1]})
    policies = args.policies.split(",")
    with (
        priority(args.first),
        PolicyServer(plan, policies, servers, {}) as server,
        CoreSpeedMonitor(servers) as monitor,
    ):
        made = machine()
        tell = partial(print, file=sys.stderr)
        comparison = PolicyComparison(server, source, conditions, tell)
        result = measured(plan, comparison, policies, monitor)
    found = result["rows"]
    print(table(found))
    within = {
        what: sum(abs(row["apart"].get(what, 1)) <= AIM for row in found)
        for what in ("p50_ms", "p99_ms", "goodput")
    }
    print(f"\nwithin {AIM:.0%}, of {len(found)}: " + ", ".join(f"{what} {n}" for what, n in within.items()))
    if args.json:
        save(args.json, {"made": made, "within": within, **result})


if __name__ == "__main__":
    main()
