"""Compares `priced` with every static path on a live server: a ladder of nested widths on one core.

    python -m benchmarks.routing.ladder_live PLAN --data ratings.parquet --turns 5 --out ladder_live.json

PLAN has the widths as paths (benchmarks/routing/plans.py makes one). One server, whose policy is switched;
policies take turns with the same requests at the same times: constant loads, then a day, a rate of sin
squared with its peak at --peak times the widest path's capacity. Figures are information a second (rows
answered within the SLO, each worth its path's 1 - NE), with paired 95% intervals over turns (Student's, of
log-ratios).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import path_qualities
from polyrec.loadtest.results.figures import Figures, figures
from polyrec.loadtest.results.outcome import DriverTooSlow
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import Source, open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Plan, load_plan
from polyrec.planner.traffic import Arrivals, Sizes

LOADS = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.25, 1.5)
"""Shares of the narrowest path's capacity."""
ROWS = 23
MARGIN_S = 0.0005
WARM_UP_S = 1.0
SWING = 100.0
"""Highest over lowest rate of a day."""
MOST_LAG_S = 0.002
ATTEMPTS = 3
DAY = "day"


def capacities(plan: Plan) -> dict[str, float]:
    """Requests of ROWS rows that one core can answer a second by path: merged batches, and the front."""
    front_s = plan.routing.query_s + plan.routing.row_s * ROWS
    rows = [n for n in (64, 128, 256, 512) if n <= plan.limits.max_batch_rows]
    found = {}
    for path in plan.paths:
        assert path.latency is not None
        row_s = min(path.latency.median(n) / n for n in rows)
        found[path.name] = 1 / (front_s + ROWS * row_s)
    return found


class Bench:
    """A server of one plan and the requests to send. run(): one policy under one schedule."""

    def __init__(self, server: PolicyServer, source: Source, slo_s: float) -> None:
        self._server, self._source, self._slo_s = server, source, slo_s
        self._quality, self._accuracy = path_qualities(server.url)

    def run(self, policy: str, arrivals: Arrivals, rate: float, seconds: float, turn: int) -> Figures | None:
        """Returns the figures after the warm-up; None if the driver was late in every attempt."""
        random = np.random.default_rng((turn, round(rate)))
        due = arrival_times(arrivals, rate, WARM_UP_S + seconds, random)
        rows, body = self._source.sampled(Sizes(kind="fixed", mean=ROWS).sample(due.size, random), turn)
        self._server.set_policy(policy)
        target = Target(self._server.url + RANK, {"Content-Type": "application/json"})
        load = load_of(
            target,
            due,
            WARM_UP_S + seconds,
            body,
            rows=rows,
            budget_s=self._slo_s,
            sent_budget_s=self._slo_s - MARGIN_S,
            prepare=True,
        )
        for _ in range(ATTEMPTS):
            outcome = run(target, load, Limits()).since(WARM_UP_S)
            try:
                outcome.require_punctual(MOST_LAG_S)
                return figures(outcome, self._quality, self._accuracy)
            except DriverTooSlow as e:
                print(f"  again: {e}", flush=True)
        return None


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Mean ratio of pairs and its 95% interval, by Student's interval of the log-ratios; nan for one pair."""
    logs = np.log(np.asarray(over) / np.asarray(under))
    mean = float(logs.mean())
    if logs.size < 2:
        return float(np.exp(mean)), float("nan"), float("nan")
    half = float(stdtrit(logs.size - 1, 0.975) * logs.std(ddof=1) / logs.size**0.5)
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def compared(runs: Mapping[str, Sequence[Figures]], widest: str) -> dict[str, Any]:
    """Figures of one load: information of each policy, and ratios of `priced` over static paths."""
    information = {policy: [f.information or 1e-9 for f in found] for policy, found in runs.items()}
    static = [policy for policy in runs if policy.startswith("static:")]
    best = max(static, key=lambda policy: float(np.mean(information[policy])))
    priced = runs["priced"]
    mix: dict[str, float] = {}
    for found in priced:
        for path, share in found.mix.items():
            mix[path] = mix.get(path, 0.0) + share / len(priced)
    return {
        "information": {policy: float(np.mean(found)) for policy, found in information.items()},
        "in_time": {policy: float(np.mean([f.ok for f in found])) for policy, found in runs.items()},
        "best": best,
        "over_best": ratio(information["priced"], information[best]),
        "over_widest": ratio(information["priced"], information[f"static:{widest}"]),
        "mix": mix,
    }


def lines(result: Mapping[str, Any]) -> list[str]:
    """The results as a Markdown table."""
    head = ("load", "requests/s", "best static", "`priced` over it", "over always the widest", "rows by path")
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, found in result["loads"].items():
        mix = ", ".join(f"{p} {s:.0%}" for p, s in sorted(found["mix"].items()) if s >= 0.005)
        ratios = ["{:.3f} [{:.3f}, {:.3f}]".format(*found[key]) for key in ("over_best", "over_widest")]
        best = found["best"].removeprefix("static:")
        out.append(f"| {name} | {found['rate']:,.0f} | {best} | {ratios[0]} | {ratios[1]} | {mix} |")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plan", help="plan file with the widths as paths")
    parser.add_argument("--data", help="requests; default synthetic rows of the bundle")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)))
    parser.add_argument("--peak", type=float, default=3.0, help="of the day, in the widest path's capacity")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a constant load")
    parser.add_argument("--day-seconds", type=float, default=8.0)
    parser.add_argument("--slo-ms", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="file for every figure, as JSON")
    args = parser.parse_args()
    plan = load_plan(args.plan)
    able = capacities(plan)
    narrow, wide = max(able, key=lambda p: able[p]), min(able, key=lambda p: able[p])
    policies = ("priced", *(f"static:{path.name}" for path in plan.paths))
    schedules = {
        f"{float(load):.0%}": (Arrivals(), float(load) * able[narrow], args.seconds)
        for load in args.loads.split(",")
    }
    day = Arrivals(kind="diurnal", factor=SWING, period_s=args.day_seconds)
    schedules[DAY] = (day, args.peak * able[wide] / 2, args.day_seconds)
    source = open_source(args.data, load_bundle(plan.paths[0].bundle), 0)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    runs: dict[str, dict[str, list[Figures]]] = {name: {p: [] for p in policies} for name in schedules}
    with PolicyServer(plan, policies, {cores[0]}, {}) as server:
        bench = Bench(server, source, args.slo_ms / 1e3)
        for turn in range(args.turns):
            for name, (arrivals, rate, seconds) in schedules.items():
                order = policies if turn % 2 == 0 else policies[::-1]
                found = {policy: bench.run(policy, arrivals, rate, seconds, turn) for policy in order}
                if any(f is None for f in found.values()):
                    continue  # a turn counts for all policies or for none
                for policy, f in found.items():
                    assert f is not None
                    runs[name][policy].append(f)
            print(f"turn {turn + 1} of {args.turns}", flush=True)
    result = {
        "plan": args.plan,
        "turns": args.turns,
        "capacity": able,
        "loads": {
            name: compared(runs[name], wide) | {"rate": rate}
            for name, (_, rate, _) in schedules.items()
            if runs[name]["priced"]
        },
    }
    print("\n".join(lines(result)))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
