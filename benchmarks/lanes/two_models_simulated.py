"""Simulates two models on one core as two_models.py measures them, to get a rule's share of the bound.

    python -m benchmarks.lanes.two_models_simulated ml1m.plan.json,10,1700 trivago.plan.json,25,2493

A model is PLAN,SLO in ms,requests/s alone. The live router and turns decide; one event loop reads, rejects,
answers and executes. The loop's costs are constants here that reproduce the live runs' use of the core;
--tail is the 99th percentile of a batch's time over its median, which is larger beside another model than in
a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np

from benchmarks.command import command_parser
from benchmarks.lanes.front_time import Front
from benchmarks.lanes.shared_bound import LaneUse, bound_of
from benchmarks.lanes.shared_lanes import SharedModel, simulate_shared
from benchmarks.lanes.two_models import LOADS, MARGIN_S
from polyrec.models.amounts import percent
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Plan, Routing, load_plan
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.planner.simulation.costs import BatchCost, Costs
from polyrec.planner.simulation.outcomes import Outcomes, Status
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals
from polyrec.report.text import markdown_table

ROWS = 100
WARM_UP_S = 1.0
REJECT_S, TURN_S = 1.0e-4, 1.0e-4
BATCH = BatchCost(batch_s=2.0e-4)
"""A batch's additional time over the profile, because the other model has used the caches."""


def model(plan: Plan, tail: float, due_s: np.ndarray, slo_s: float) -> SharedModel:
    """Returns the best path of a plan on an inline lane. tail: as --tail. due_s: times of its requests."""
    best = max(plan.paths, key=lambda path: path.quality or 0.0)
    if best.latency is None or best.quality is None:
        raise SystemExit(f"path '{best.name}' has no latency or quality: take a plan made from a profile")
    latency = replace_tail(best.latency, tail)
    path = PathSpec(best.name, "cpu", best.quality, latency)
    trace = Trace((path,), plan.limits, due_s, np.full(due_s.size, ROWS, np.int64), slo_s - MARGIN_S)
    query_s = plan.routing.query_s + ROWS * plan.routing.row_s
    costs = Costs(query_s=query_s, refuse_s=REJECT_S, turn_s=TURN_S, batches={path.name: BATCH})
    inline = LaneSpec("cpu", "cpu", "inline"), LanePlace("cpu", "inline")
    return SharedModel(trace, inline[:1], inline[1:], ModelShare(), Routing(query_s=query_s), costs)


def replace_tail(latency: LatencyModel, tail: float) -> LatencyModel:
    """Returns the same medians, with tails `tail` times as long."""
    return latency.model_copy(update={"tail_s": tuple(tail * s for s in latency.median_s)})


def in_time(outcomes: Outcomes) -> tuple[int, int]:
    """Returns the numbers of requests in time and of all requests, after the first WARM_UP_S."""
    counted = outcomes.arrival_s >= WARM_UP_S
    good = (outcomes.status == Status.ANSWERED) & (outcomes.finish_s <= outcomes.deadline_s)
    return int((good & counted).sum()), int(counted.sum())


def row(models: Sequence[SharedModel], seconds: float, seed: int) -> list[float]:
    """Formats shares in time (each model, both, bound) and of the core (lanes, front), and rows per batch."""
    found = simulate_shared(models, frozenset({0}), np.random.default_rng(seed))
    counts = [in_time(outcomes) for outcomes in found.outcomes]
    answered = [int((outcomes.status == Status.ANSWERED).sum()) for outcomes in found.outcomes]
    rows = ROWS * np.array(answered, np.float64)
    use = LaneUse(np.array(found.busy_s), np.array(found.batches, np.float64), rows)
    answer_s = np.average([m.costs.query_s for m in models], weights=answered)
    requests = sum(m.trace.arrival_s.size for m in models)
    front = Front(found.front_s, requests, sum(answered), float(answer_s))
    good, whole = (sum(part) for part in zip(*counts, strict=True))
    shares = [*(each / of for each, of in counts), good / whole]
    most = bound_of([m.trace for m in models], use, seconds, front)
    busy = [s / seconds for s in (*found.busy_s, found.front_s)]
    return [*shares, most, shares[-1] / most, *busy, *(use.rows / use.batches)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("models", nargs=2, metavar="PLAN,SLO_MS,REQUESTS_S")
    parser.add_argument("--tail", type=float, default=1.25, help="of batches, over their median (1.25)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a run (4)")
    parser.add_argument("--runs", type=int, default=1, help="of each load, with other arrivals (1)")
    args = parser.parse_args(argv)
    asked = [text.split(",") for text in args.models]
    plans = [load_plan(file) for file, _, _ in asked]
    cells = []
    for load in LOADS:
        runs = []
        for seed in range(args.runs):
            random = np.random.default_rng((seed, round(1000 * load)))
            models = [
                model(
                    plan,
                    args.tail,
                    arrival_times(Arrivals(), load * float(rate) / len(asked), args.seconds, random),
                    float(slo_ms) / 1e3,
                )
                for plan, (_, slo_ms, rate) in zip(plans, asked, strict=True)
            ]
            runs.append(row(models, args.seconds, seed))
        means = [mean(column) for column in zip(*runs, strict=True)]
        cells.append([percent(load), *map(percent, means[:8]), *(f"{rows:.0f}" for rows in means[8:])])
    head = ["load", "first", "second", "both", "bound", "of the bound", "lanes: first", "second", "front"]
    print("\n".join(markdown_table([*head, "rows a batch: first", "second"], cells)))


if __name__ == "__main__":
    main()
