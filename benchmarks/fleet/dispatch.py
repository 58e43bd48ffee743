"""Simulates dispatch among 1 to 1,000 nodes: policies, stale state, decision cost, and the upper bound.

    python -m benchmarks.fleet.dispatch     (writes docs/results/fleet-simulated.md and .json)

Nodes are of three described kinds and serve MP-Rec's Kaggle model. Queries have about 1,000 rows and 80 ms
(DLRM-v3's limit). The day is compressed to seconds; the rates are those of real nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.command import command_parser, save, timestamp
from benchmarks.fleet.baselines import LeastOutstanding, RoundRobin, StaleTwoChoices, WeightedRandom
from benchmarks.fleet.dispatch_page import page
from benchmarks.fleet.node_model import NodeKind
from benchmarks.fleet.simulator import Chooser, FleetOutcome, simulate_fleet
from benchmarks.routing.mprec_machines import MODELS, load_machine_of, profile
from benchmarks.routing.roofline import Assumed
from polyrec.loadtest.machine import processor
from polyrec.models.schema.batch import F64, I64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.fleet.replica_choice import ReplicaChoice
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.bound import bound
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes

BUDGET_S = 0.08
CONSTANT = 0.744
"""Accuracy of a constant prediction on Criteo Kaggle; an answer's value is its accuracy above this."""
SELECT = 0.7885
"""Assumed accuracy of `select`, between table's .7879 and DHE's .7894."""
SIZES = Sizes(kind="lognormal", mean=1000)
MAX_ROWS = 4096
LIMITS = Limits(max_batch_rows=MAX_ROWS, max_queued_rows=1 << 20)
MEAN_LOAD = 0.65
"""Mean rate as a share of all nodes' capacity on their fastest paths; peaks exceed the capacity."""
KINDS = {"cpu4": 11, "cpu4-accelerator": 7, "cpu8": 2}
"""Nodes of each kind among twenty."""
POLICIES = (
    "round robin",
    "random",
    "least outstanding",
    "two choices, as reported",
    "two choices, predicted",
)
QUERIES = {1: 20_000, 10: 100_000, 100: 300_000, 1000: 400_000}
SMALL = {nodes: queries // 20 for nodes, queries in QUERIES.items()}
REPORT_S = 0.1
AGES_S = (0.01, 0.1, 1.0)
DISPATCHERS = 8
BIN_S = BUDGET_S / 4


MODEL = replace(MODELS[0], accuracy=MODELS[0].accuracy | {"select": SELECT})


class NodeSpecs:
    """A kind of node: its paths and lanes as the router takes them, and as the simplified model."""

    def __init__(self, name: str) -> None:
        machine = load_machine_of("cpu8" if name == "cpu8" else "small-accelerator")
        if name == "cpu4":
            machine = machine.model_copy(update={"devices": machine.devices[:1]})
        made = profile(MODEL, machine, Assumed())
        self.paths = [
            PathSpec(p.path.name, p.path.device, p.quality - CONSTANT, p.latency)
            for p in made.paths
            if p.memory.total <= machine.device(p.path.device).memory_bytes
            and p.representation in ("table-int8", "select-int8", "dhe", "hybrid-int8")
            and p.latency.tail(1000) <= BUDGET_S
        ]
        # a core for the front, and one to feed the accelerator
        free = machine.devices[0].lanes - len(machine.devices)
        self.lanes = {"cpu": free} | {d.name: d.lanes for d in machine.devices[1:]}
        self.model = NodeKind(self.paths, self.lanes, BUDGET_S, 1000, MAX_ROWS)

    def specs(self, prefix: str) -> tuple[list[PathSpec], list[LaneSpec]]:
        """Paths and lanes with devices named for one pool of nodes."""
        paths = [PathSpec(f"{prefix}{p.name}", prefix + p.device, p.quality, p.latency) for p in self.paths]
        lanes = [
            LaneSpec(f"{prefix}{d}.{i}", prefix + d, "thread")
            for d, n in self.lanes.items()
            for i in range(n)
        ]
        return paths, lanes


def fleet_of(nodes: int) -> list[str]:
    """Returns the kinds of a fleet, in the proportions of KINDS; a single node has an accelerator."""
    pattern = [name for name, count in KINDS.items() for _ in range(count)]
    Random(1).shuffle(pattern)
    if nodes == 1:
        return ["cpu4-accelerator"]
    return [pattern[i % len(pattern)] for i in range(nodes)]


def trace(kind: str, capacity: float, queries: int, load: float = MEAN_LOAD) -> tuple[F64, I64]:
    """Returns arrival times and rows of `queries` queries.

    kind: diurnal (their time is one day), bursty (ten bursts) or poisson. capacity: rows/s of all nodes.
    """
    rng = np.random.default_rng(5)
    rate = load * capacity / SIZES.mean_rows
    seconds = queries / rate
    arrivals = {
        "diurnal": Arrivals(kind="diurnal", factor=3.0, period_s=seconds),
        "bursty": Arrivals(kind="bursty", factor=3.0, period_s=seconds / 10, burst_s=seconds / 50),
        "poisson": Arrivals(kind="poisson"),
    }[kind]
    at = arrival_times(arrivals, rate, seconds, rng)
    return at, SIZES.sample(at.size, rng)


def chooser(policy: str, weights: Sequence[float], seed: int, dispatchers: int = 1) -> Chooser:
    """Returns a policy for replicas with these capacities."""
    rng = Random(seed)
    if policy == "two choices, predicted":
        made: ReplicaChoice[int] = ReplicaChoice(rng, dispatchers=dispatchers)
        made.add_all({name: weight for name, weight in enumerate(weights)}, 0.0)
        return made
    kinds = {
        "round robin": RoundRobin,
        "random": WeightedRandom,
        "least outstanding": LeastOutstanding,
        "two choices, as reported": StaleTwoChoices,
    }
    return kinds[policy](weights, rng)


def pooled_bound(kinds: dict[str, NodeSpecs], names: Sequence[str], at: F64, rows: I64) -> float:
    """Returns the clairvoyant bound of all nodes together, as if they were one machine."""
    paths: list[PathSpec] = []
    lanes: list[LaneSpec] = []
    for name in dict.fromkeys(names):
        own, of_one = kinds[name].specs(f"{name}/")
        paths += own
        lanes += of_one * list(names).count(name)
    bin_s = max(BIN_S, float(at[-1]) / 600)
    return bound(Trace(paths, LIMITS, at, rows, BUDGET_S), lanes, bin_s).information


def decision_s(policy: str, weights: Sequence[float]) -> float:
    """Returns the mean seconds to choose a replica and record the query."""
    made = chooser(policy, weights, 3)
    n = 20_000
    began = perf_counter()
    for i in range(n):
        name = made.pick(i * 1e-5)
        made.record_sent(name, i * 1e-5, 1e-5)
    return (perf_counter() - began) / n


def figures(outcome: FleetOutcome, most: float, seconds: float) -> dict[str, Any]:
    """Returns a run's figures for JSON. most: the bound's information. of_bound: the run's divided by it."""
    return {
        "queries": outcome.queries,
        "of_bound": outcome.information / most,
        "in_time": outcome.rows_in_time / outcome.rows,
        "quality": outcome.information / max(outcome.rows_in_time, 1),
        "rejected": outcome.rejected / outcome.queries,
        "late": outcome.late / outcome.queries,
        "seconds": round(seconds, 2),
    }


def run_fleets(kinds: dict[str, NodeSpecs], queries: dict[int, int]) -> list[dict[str, Any]]:
    """Simulates all fleet sizes, traffic and policies; for the largest also report ages and dispatchers."""
    found: list[dict[str, Any]] = []
    for nodes, n in queries.items():
        names = fleet_of(nodes)
        models = [kinds[name].model for name in names]
        weights = [m.capacity for m in models]
        for traffic in ("diurnal", "bursty"):
            at, rows = trace(traffic, sum(weights), n)
            most = pooled_bound(kinds, names, at, rows)
            cases = [(policy, REPORT_S, 1) for policy in POLICIES]
            if nodes == max(queries):
                old = [age for age in AGES_S if age != REPORT_S]
                cases += [(policy, age, 1) for policy in POLICIES[3:] for age in old]
                if traffic == "diurnal":
                    cases += [(policy, REPORT_S, DISPATCHERS) for policy in POLICIES[2:]]
            for policy, age, count in cases:
                began = process_time()
                choosers = [chooser(policy, weights, 7 + i, count) for i in range(count)]
                outcome = simulate_fleet(models, choosers, at, rows, BUDGET_S, age, 11)
                one = {"nodes": nodes, "traffic": traffic, "policy": policy, "report_s": age}
                one |= {"dispatchers": count, "simulated_s": float(at[-1])}
                found.append(one | figures(outcome, most, process_time() - began))
                print(
                    f"{nodes} {traffic} {policy} {age} {count}: {found[-1]['of_bound']:.4f} of the bound, "
                    f"{found[-1]['seconds']} s",
                    flush=True,
                )
    return found


def check_node(kinds: dict[str, NodeSpecs], queries: int) -> list[dict[str, Any]]:
    """Compares the simplified node with the full simulator on one node of each kind."""
    found = []
    for name, kind in kinds.items():
        for load in (0.5, 0.8, 1.0, 1.3):
            at, rows = trace("poisson", kind.model.capacity, queries, load)
            paths, lanes = kind.specs("")
            most = pooled_bound(kinds, [name], at, rows)
            whole_trace = Trace(paths, LIMITS, at, rows, BUDGET_S)
            outcomes = Simulator(whole_trace, lanes, Routing(), np.random.default_rng(2)).run()
            full = float(outcomes.information.sum())
            one = simulate_fleet([kind.model], [chooser("random", [1.0], 1)], at, rows, BUDGET_S, REPORT_S, 2)
            whole = outcomes.figures()
            found.append(
                {"kind": name, "load": load, "full": full / most, "simple": one.information / most}
                | {
                    "full_in_time": whole.goodput / whole.rows_s,
                    "simple_in_time": one.rows_in_time / one.rows,
                }
            )
            print(found[-1], flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the queries: a trial")
    args = parser.parse_args(argv)
    kinds = {name: NodeSpecs(name) for name in KINDS}
    found = {
        "made": timestamp(),
        "machine": processor(),
        "budget_ms": 1e3 * BUDGET_S,
        "kinds": {
            name: {"share": KINDS[name] / sum(KINDS.values()), "lanes": kind.lanes}
            | {"queries_s": kind.model.capacity / 1000, "paths": [p.name for p in kind.paths]}
            for name, kind in kinds.items()
        },
        "check": check_node(kinds, 600 if args.quick else 6000),
        "decision_s": {policy: {n: decision_s(policy, [1.0] * n) for n in QUERIES} for policy in POLICIES},
        "runs": run_fleets(kinds, SMALL if args.quick else QUERIES),
    }
    save(args.out / "fleet-simulated.json", found)
    (args.out / "fleet-simulated.md").write_text(page(found))


if __name__ == "__main__":
    main()
