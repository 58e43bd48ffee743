"""`polyrec simulate`: runs a plan's router, the code of the live server, on simulated traffic and lanes."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from polyrec.loadtest.arguments import non_negative_int
from polyrec.planner.simulation.faults import FAULT_FORMS

if TYPE_CHECKING:
    from polyrec.planner.simulation.outcomes import Figures, Outcomes
    from polyrec.planner.simulation.simulator import Simulator

EXAMPLE = "polyrec simulate --plan plan.json --traffic rate=400,sizes=mlperf,arrivals=bursty --bound"
STEPS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    simulated = parser.add_argument_group("what is simulated")
    simulated.add_argument(
        "--plan", required=True, metavar="FILE", help="plan file whose paths have measured figures"
    )
    simulated.add_argument(
        "--policy",
        action="append",
        metavar="POLICY",
        help="priced, mprec, deeprecsys, static:PATH, or all; repeatable to compare (default: the plan's)",
    )
    simulated.add_argument(
        "--costs",
        metavar="FILE",
        help="costs of serving beside the profile, made by python -m polyrec.loadtest.comparison.calibration",
    )
    load = parser.add_argument_group("traffic and faults")
    load.add_argument(
        "--traffic",
        required=True,
        metavar="TRAFFIC",
        help="like rate=400,sizes=lognormal:147,arrivals=bursty, or a YAML or JSON file",
    )
    load.add_argument("--seconds", type=float, default=10.0, help="virtual time (default 10)")
    load.add_argument("--budget-ms", type=float, help="latency budget (default: the plan's)")
    load.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help=f"{FAULT_FORMS}; repeatable",
    )
    load.add_argument("--seed", type=non_negative_int, default=0, help="seed of the traffic (default 0)")
    output = parser.add_argument_group("output")
    output.add_argument("--bound", action="store_true", help="compare with the clairvoyant bound")
    output.add_argument(
        "--json", action="store_true", help="print the result as JSON, with its course over time"
    )


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from polyrec.planner.arrivals import arrival_times
    from polyrec.planner.plan import load_plan
    from polyrec.planner.simulation.bound import bound
    from polyrec.planner.simulation.costs import load_costs
    from polyrec.planner.simulation.faults import parse_fault
    from polyrec.planner.simulation.simulator import Simulator, specs
    from polyrec.planner.simulation.trace import Trace
    from polyrec.planner.traffic import TrafficError, parse_traffic

    plan = load_plan(args.plan)
    traffic = parse_traffic(args.traffic)
    _check_flags(args)
    costs = None if args.costs is None else load_costs(args.costs, plan)
    paths, lanes = specs(plan)
    faults = [parse_fault(text, [lane.name for lane in lanes]) for text in args.fault]
    policies = args.policy or [plan.routing.policy]
    if "all" in policies:
        policies = ["priced", "mprec", "deeprecsys", *(f"static:{p.name}" for p in paths)]
    routings = [_routing(plan.routing.model_dump(), policy, [p.name for p in paths]) for policy in policies]

    rng = np.random.default_rng(args.seed)
    arrival_s = arrival_times(traffic.arrivals, traffic.rate, args.seconds, rng)
    if not arrival_s.size:
        raise TrafficError(f"no query arrives within {args.seconds:g} s; simulate longer")
    rows = traffic.sizes.sample(arrival_s.size, rng)
    budget_s = (args.budget_ms or plan.default_budget_ms) / 1e3
    trace = Trace(paths, plan.limits, arrival_s, rows, budget_s)
    best = bound(trace, lanes).information if args.bound else None

    results = []
    for routing in routings:
        rng = np.random.default_rng([args.seed, 1])
        outcomes, took_s = _simulated(Simulator(trace, lanes, routing, rng, faults, costs), routing.policy)
        figures = outcomes.figures(until_s=args.seconds)
        entry: dict[str, Any] = {"policy": routing.policy, **figures.as_dict()}
        if best is not None:
            entry["of_bound"] = float(outcomes.information.sum() / best) if best else None
        entry["simulated_queries_s"] = arrival_s.size / took_s
        entry["course"] = outcomes.over_time(args.seconds / STEPS)
        results.append(entry)
        if not args.json:
            _print(routing.policy, figures, entry)
    if args.json:
        print(json.dumps({"budget_ms": 1e3 * budget_s, "seconds": args.seconds, "policies": results}))
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Raises PlanError for a number that is not above 0."""
    import math

    from polyrec.planner.plan import PlanError

    for flag in ("seconds", "budget_ms"):
        value = getattr(args, flag)
        if value is not None and not 0 < value < math.inf:
            raise PlanError(f"--{flag.replace('_', '-')} {value:g} is not a number above 0")


def _simulated(simulator: Simulator, policy: str) -> tuple[Outcomes, float]:
    """Runs a simulation with a progress bar; returns the outcomes and the seconds that it took."""
    from time import perf_counter

    from tqdm import tqdm

    began = perf_counter()
    with tqdm(total=simulator.queries, desc=policy, unit="queries", disable=None, leave=False) as bar:
        outcomes = simulator.run(lambda arrived: bar.update(arrived - bar.n))
    return outcomes, perf_counter() - began


def _routing(routing: dict[str, Any], policy: str, paths: list[str]) -> Any:
    from polyrec.models.files import validate_as
    from polyrec.planner.plan import PlanError, Routing

    kind, _, path = policy.partition(":")
    if kind == "static" and path not in paths:
        raise PlanError(f"policy '{policy}': unknown path; paths: {', '.join(paths)}")
    return validate_as(Routing, routing | {"policy": policy}, f"policy '{policy}' is unknown", PlanError)


def _print(policy: str, figures: Figures, entry: dict[str, Any]) -> None:
    mix = ", ".join(f"{share:.1%} {name}" for name, share in figures.paths.items() if share >= 0.0005)
    print(f"{policy}: {figures.queries:,} queries, {figures.rows_s:,.0f} rows/s offered")
    print(
        f"  in budget {figures.in_budget:.2%} (rejected {figures.refused:.2%}, "
        f"expired {figures.expired:.2%}, late {figures.late:.2%}); goodput {figures.goodput:,.0f} rows/s"
    )
    print(
        f"  p50 {1e3 * figures.p50_s:.2f} ms, p99 {1e3 * figures.p99_s:.2f} ms; "
        f"quality {figures.quality:.5f}; information {figures.information:,.0f}/s"
        + (f", {entry['of_bound']:.2%} of the bound" if entry.get("of_bound") is not None else "")
    )
    print(f"  {mix or 'nothing answered'}; {entry['simulated_queries_s']:,.0f} queries/s simulated")
