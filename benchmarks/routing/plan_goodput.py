"""The plan against every deployment of one path, on the live server, in one run.

    chrt -r 1 python -m benchmarks.routing.plan_goodput --data ../shared/data/trivago/impressions.parquet \\
        --profile runs/profile.json --slo-ms 10 --traffic rate=3000,sizes=lognormal:23 \\
        --json docs/results/plan_goodput.json

From a profile it makes the plan for the traffic, and a plan for each representation alone (its most
accurate path). Each is opened by a real server on one core, driven open-loop from another at several
multiples of the traffic's rate, with the same requests at the same times; servers take turns (A B C A B C),
so that a noisy neighbor hits all of them. Rankings of real rows as JSON; a request counts where its answer
is complete within the promise, from the time at which it was meant to leave. Reported: goodput (rows a
second answered in time) and correct predictions a second (each weighed by its path's accuracy), the median
over the turns; beside them what the plan expects at that rate.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.results.figures import Figures, figures
from polyrec.loadtest.results.outcome import DriverTooSlow
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import Source, open_source
from polyrec.models.amounts import percent, rate
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.deployment.proposal import propose, tables_of
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.solver.program import PlanImpossible
from polyrec.planner.plan import Plan, save_plan
from polyrec.planner.profile import Profile, load_profile
from polyrec.planner.traffic import Traffic, parse_traffic
from polyrec.server.child import start

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
PLAN = "the plan"
ATTEMPTS = 3
MAX_LAG_S = 0.002


@dataclass(frozen=True, slots=True)
class Turn:
    """One subject at one rate, once. figures: None if the driver was late at every attempt."""

    subject: str
    rate: float
    repeat: int
    figures: Figures | None


def plans_to_compare(profile: Profile, requirements: Requirements, only: Sequence[str]) -> dict[str, Plan]:
    """The plan, and by path a plan of it alone; paths that cannot meet the SLO are left out and printed."""
    tables = tables_of(profile.paths)
    found = {PLAN: propose(profile, requirements, tables, bounds=False, more=False).plan}
    best: dict[tuple[str, str], int] = {}
    for i, p in enumerate(profile.paths):
        key = (p.representation, p.path.device)
        if key not in best or p.quality > profile.paths[best[key]].quality:
            best[key] = i
    for i in best.values():
        p = profile.paths[i]
        if only and p.path.name not in only:
            continue
        alone = profile.model_copy(update={"paths": (p,)})
        try:
            found[p.path.name] = propose(alone, requirements, [tables[i]], bounds=False, more=False).plan
        except PlanImpossible as impossible:
            print(f"{p.path.name} alone: {impossible}", file=sys.stderr)
    return found


def drive(
    url: str, source: Source, traffic: Traffic, requirements: Requirements,
    seconds: float, warmup: float, seed: int,
    accuracy: Mapping[str, float],
) -> Figures | None:  # fmt: skip
    """One run; the same seed gives the same requests at the same times."""
    random = np.random.default_rng((seed, round(traffic.rate)))
    whole = warmup + seconds
    due = arrival_times(traffic.arrivals, traffic.rate, whole, random)
    rows, body = source.sampled(traffic.sizes.sample(due.size, random), seed)
    target = Target(url + RANK, {"Content-Type": "application/json"})
    told = requirements.slo_s - min(0.0005, 0.05 * requirements.slo_s)
    load = load_of(
        target, due, whole, body, rows=rows, budget_s=requirements.slo_s, sent_budget_s=told, prepare=True
    )
    for _ in range(ATTEMPTS):
        outcome = run(target, load, Limits())
        try:
            outcome.since(warmup).require_punctual(MAX_LAG_S)
        except DriverTooSlow as late:
            tqdm.write(f"left out: {late}", file=sys.stderr)
            continue
        return figures(outcome.since(warmup), accuracy)
    return None


def compare(
    plans: Mapping[str, Plan], source: Source, requirements: Requirements, rates: Sequence[float],
    args: argparse.Namespace,
    accuracy: Mapping[str, float],
) -> list[Turn]:  # fmt: skip
    """All turns, in the order in which they were taken."""
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory() as folder, tqdm(total=args.repeats * len(plans) * len(rates)) as bar:
        for repeat in range(args.repeats):
            for name, plan in plans.items():
                file = Path(folder) / "plan.json"
                paths = tuple(p.model_copy(update={"bundle": p.bundle.resolve()}) for p in plan.paths)
                save_plan(plan.model_copy(update={"paths": paths}), file)
                with start({"plan": file, "drain_grace_s": 0}, core=SERVER_CORE) as server:
                    for per_s in rates:
                        bar.set_description(f"{name} at {per_s:,.0f}/s")
                        traffic = requirements.traffic.model_copy(update={"rate": per_s})
                        seen = drive(
                            server.url,
                            source,
                            traffic,
                            requirements,
                            args.seconds,
                            args.warmup,
                            repeat,
                            accuracy,
                        )
                        turns.append(Turn(name, per_s, repeat, seen))
                        bar.update()
    return turns


def medians(turns: Sequence[Turn], name: str, per_s: float) -> dict[str, float]:
    """Medians of one plan at one rate over its turns; empty without any."""
    own = [t.figures for t in turns if t.subject == name and t.rate == per_s and t.figures is not None]
    if not own:
        return {}
    middle = sorted(own, key=lambda f: f.goodput)[len(own) // 2]
    return {
        "goodput": median(f.goodput for f in own),
        "correct": median(f.information or 0.0 for f in own),
        "ok": median(f.ok for f in own),
        "accuracy": middle.quality or 0.0,
        "p99_ms": middle.p99_ms or 0.0,
        "lowest": min(f.goodput for f in own),
        "highest": max(f.goodput for f in own),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing.plan_goodput")
    add = parser.add_argument
    add("--profile", default="runs/profile.json")
    add("--data", required=True, help="file whose rows are asked about")
    add("--slo-ms", type=float, default=10.0)
    add("--traffic", default="rate=3000,sizes=lognormal:23", help="what the plan is made for")
    add("--times", type=float, nargs="+", default=[0.25, 0.5, 1.0, 1.5], help="multiples of its rate")
    add("--paths", nargs="+", default=[], help="only these alone (default: the best of each representation)")
    add("--seconds", type=float, default=4.0, help="of a run (4)")
    add("--warmup", type=float, default=1.0, help="seconds sent before, and left out (1)")
    add("--repeats", type=int, default=3, help="turns of each (3)")
    add("--json", type=Path, metavar="FILE", help="write every run")
    args = parser.parse_args(argv)
    profile = load_profile(args.profile)
    # the server has one core, the driver another
    requirements = Requirements(args.slo_ms / 1e3, parse_traffic(args.traffic), cores=1)
    plans = plans_to_compare(profile, requirements, args.paths)
    accuracy = {p.path.name: p.quality for p in profile.paths}
    source = open_source(args.data, load_bundle(plans[PLAN].paths[0].bundle), seed=0)
    rates = [round(requirements.traffic.rate * times, 1) for times in args.times]
    os.sched_setaffinity(0, {CLIENT_CORE})
    turns = compare(plans, source, requirements, rates, args, accuracy)
    tables = tables_of(profile.paths)
    table: list[dict[str, Any]] = []
    for per_s in rates:
        at = Requirements(
            requirements.slo_s, requirements.traffic.model_copy(update={"rate": per_s}), cores=1
        )
        own = {name: medians(turns, name, per_s) for name in plans}
        expected = propose(profile, at, tables, bounds=False, more=False).plan.expected
        assert expected is not None
        print(f"\n{per_s:,.0f} queries/s; a plan for just that expects {rate(expected.rows_per_s)} rows/s")
        print(f"{'':<24}{'rows/s in time':>16}{'correct/s':>12}{'in time':>9}{'accuracy':>10}{'p99 ms':>8}")
        for name, m in sorted(own.items(), key=lambda item: -item[1].get("correct", 0.0)):
            if m:
                print(
                    f"{name:<24}{rate(m['goodput']):>16}{rate(m['correct']):>12}{percent(m['ok']):>9}"
                    f"{m['accuracy']:>10.5f}{m['p99_ms']:>8.2f}"
                )
        table.append({"rate": per_s, "expected": expected.model_dump(mode="json"), "measured": own})
    if args.json:
        args.json.write_text(
            json.dumps(
                {
                    "slo_ms": args.slo_ms,
                    "traffic": args.traffic,
                    "plan": plans[PLAN].model_dump(mode="json", exclude_none=True),
                    "summary": table,
                    "turns": [asdict(t) for t in turns],
                },
                indent=1,
                default=str,
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
