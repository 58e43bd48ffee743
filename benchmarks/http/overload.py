"""Past capacity: one server asked at rates that it cannot keep, beside that of another revision.

    git worktree add --detach /tmp/before f82d575
    python -m benchmarks.http.overload runs/plan-all.json --policy static:table.int8@cpu --against /tmp/before

Open loop, Poisson, the data's own requests, connections opened as requests overlap; the revisions in
turns, all rates on one server, medians over the turns. Latency runs from the moment at which a request was
meant to leave.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.http.serve_throughput import CLIENT_CORE, SERVER_CORE
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.machine import machine, raised_priority
from polyrec.loadtest.results.outcome import Fate, Outcome
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import Source, open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import load_plan
from polyrec.planner.traffic import Arrivals
from polyrec.server.child import start

HERE = Path(__file__).parents[2]


def send_load(url: str, source: Source, rate: float, seconds: float, budget_s: float, seed: int) -> Outcome:
    due_s = arrival_times(Arrivals(), rate, seconds, np.random.default_rng(seed))
    rows, body = source.shuffled(due_s.size, seed)
    target = Target(url + RANK, {"Content-Type": "application/json"})
    load = load_of(target, due_s, seconds, body, rows=rows, budget_s=budget_s, prepare=True)
    return run(target, load, Limits())


def figures(outcome: Outcome) -> dict[str, float]:
    """Shares of what was asked; the slowest answer of any status, in ms."""
    shares = {fate.name.lower(): float((outcome.fate == fate).mean()) for fate in Fate}
    return shares | {"slowest_ms": 1e3 * float(np.nanmax(outcome.latency_s))}


def turn(tree: Path, plan: Path, policy: str, budget_ms: float, ask: Any) -> list[dict[str, float]]:
    """One server of that revision, and what became of each rate's requests."""
    before = Path.cwd()
    os.chdir(tree)  # `python -m polyrec.server` takes the modules of the folder that it is started in
    try:
        settings = {"plan": plan, "policy": policy, "default_budget_ms": budget_ms}
        with start(settings, core=SERVER_CORE) as child:
            found: list[dict[str, float]] = ask(child.url)
            return found
    finally:
        os.chdir(before)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", default="../shared/data/trivago/impressions.parquet")
    parser.add_argument("--policy", default="priced")
    parser.add_argument("--rates", default="6000,7500,9000,10500")
    parser.add_argument("--budget-ms", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a run (2)")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each revision (5)")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    parser.add_argument("--ahead", action="store_true", help="at the highest normal priority; takes root")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    rates = [float(rate) for rate in args.rates.split(",")]
    source = open_source(args.data, load_bundle(load_plan(args.plan).paths[0].bundle), 0)
    trees = {"here": HERE} | ({} if args.against is None else {"against": args.against.resolve()})
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in trees}
    budget_s = args.budget_ms / 1e3
    os.sched_setaffinity(0, {CLIENT_CORE})
    with raised_priority() if args.ahead else nullcontext():
        for i in range(args.repeats):

            def ask(url: str, seed: int = i) -> list[dict[str, float]]:
                return [figures(send_load(url, source, rate, args.seconds, budget_s, seed)) for rate in rates]

            for name, tree in trees.items():
                found[name].append(turn(tree, args.plan.resolve(), args.policy, args.budget_ms, ask))
    rows = [
        {
            "revision": name,
            "rate": rate,
            **{what: median(t[at][what] for t in turns) for what in turns[0][at]},
        }
        for name, turns in found.items()
        for at, rate in enumerate(rates)
    ]
    print("| revision | requests/s | in time | late | 429 | 504 | slowest answer, ms |\n" + "|---" * 7 + "|")
    for row in rows:
        shares = " | ".join(f"{row[what]:.1%}" for what in ("ok", "late", "rejected", "expired"))
        print(f"| {row['revision']} | {row['rate']:,.0f} | {shares} | {row['slowest_ms']:,.0f} |")
    if args.json:
        whole = {"machine": machine(), "policy": args.policy, "budget_ms": args.budget_ms, "rows": rows}
        args.json.write_text(json.dumps(whole | {"turns": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
