"""Simulates MP-Rec's query serving: a model on a machine with an SLA, under both rules and both baselines.

Every policy gets the same trace at each of several loads, which are shares of the machine's capacity (all
lanes on their fastest paths). Policies are compared by correct predictions per second within the SLA, each at
its best load.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.routing.mprec.paths import (
    ACCELERATORS,
    KINDS,
    Assumptions,
    Name,
    devices_of,
    make_path,
    matching,
)
from benchmarks.routing.mprec_machines import MODELS, PublishedModel
from polyrec.models.schema.batch import F64, I64
from polyrec.planner.plan import Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.outcomes import Outcomes
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace

SLA_MS = (10.0, 20.0, 50.0, 200.0)
MERGED_SLA_MS = (10.0, 50.0)
LOADS, FEW_LOADS = (0.25, 0.5, 0.9, 1.0, 1.5), (0.25, 0.9, 1.0)
"""Loads as shares of the capacity: for the shortest SLA on the machine with a GPU, and for all others."""
VARIED_LOADS = (0.5, 0.9, 1.0)
QUERIES, FEW = 10_000, 2_500
"""Queries per run, and per run of the sensitivity analysis."""
WARM_S = 0.3
"""Arrivals before this are not counted, because a policy knows no rate until its first ticks."""
SIGMA = 0.2
MATCHED_ROWS = (128, 4096)


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a machine with an SLA. merge: whether waiting queries share batches."""

    model: str
    machine: str
    merge: bool
    sla_s: float
    assumed: Assumptions
    paths: tuple[PathSpec, ...]
    lanes: tuple[LaneSpec, ...]

    @property
    def max_rows(self) -> int:
        """Rows of the largest batch."""
        return 4096 if self.merge else round(1.48 * self.assumed.rows)

    def trace(self, queries: int, rate: float) -> tuple[F64, I64]:
        """Returns arrivals in seconds and rows, [n], with `queries` after WARM_S; equal up to the rate."""
        rng = np.random.default_rng(17)
        n = queries + round(WARM_S * rate)
        gaps = rng.exponential(1.0, n)
        rows = np.rint(
            np.random.default_rng(18).lognormal(np.log(self.assumed.rows) - SIGMA**2 / 2, SIGMA, n)
        )
        # clipped so that two queries never fit one batch
        most = self.max_rows
        low = 1 if self.merge else most // 2 + 1
        return np.cumsum(gaps) / rate, np.clip(rows, low, most).astype(np.int64)

    def capacity(self) -> float:
        """Returns queries/s of all lanes on their fastest paths, in batches of half the SLA if merged."""
        total, usual = 0.0, round(self.assumed.rows)
        for lane in self.lanes:
            speeds = [0.0]
            for path in self.paths:
                if path.device == lane.device:
                    rows = self.max_rows if self.merge else usual
                    while rows > usual and path.latency.tail(rows) > self.sla_s / 2:
                        rows = max(round(rows / 1.2), usual)
                    speeds.append(rows / path.latency.median(rows))
            total += max(speeds)
        return total / self.assumed.rows

    def simulate(self, policy: str, load: float, queries: int) -> dict[str, Any]:
        """Simulates one run at a share `load` of the capacity; returns its figures."""
        rate = load * self.capacity()
        arrival_s, rows = self.trace(queries, rate)
        most = self.max_rows
        limits = Limits(max_batch_rows=most, max_request_rows=most, max_queued_rows=1 << 20)
        trace = Trace(self.paths, limits, arrival_s, rows, self.sla_s)
        outcomes = Simulator(trace, self.lanes, Routing(policy=policy), np.random.default_rng(19)).run()
        return {"policy": policy, "load": load, "queries_per_s": rate} | _figures(outcomes)


def serve(model: PublishedModel, name: Name, assumed: Assumptions, merge: bool, sla_ms: float) -> Case:
    """Returns the paths of a model on a machine, each on every device whose memory can hold it."""
    paths, lanes = [], []
    for device in devices_of(name, ACCELERATORS[name][1], assumed):
        where = "cpu" if device.kind == "cpu" else name
        lanes += [LaneSpec(f"{where}{i}", device.name, "thread") for i in range(device.lanes)]
        for kind in KINDS:
            if (made := make_path(model, kind, device, where, assumed)) is not None:
                paths.append(made)
    return Case(model.name, name, merge, sla_ms / 1e3, assumed, tuple(paths), tuple(lanes))


def evaluate(case: Case, loads: Sequence[float] = LOADS, queries: int = QUERIES) -> dict[str, Any]:
    """Simulates the baselines that fit the machine and both rules, at every load."""
    baselines = [p.name for p in case.paths if p.name in ("table@cpu", f"table@{case.machine}")]
    policies = [*(f"static:{name}" for name in baselines), "mprec", "priced"]
    return {
        "model": case.model,
        "machine": case.machine,
        "merge": case.merge,
        "sla_ms": 1e3 * case.sla_s,
        "runs": [case.simulate(policy, load, queries) for load in loads for policy in policies],
    }


def best(found: dict[str, Any], policy: str) -> dict[str, Any] | None:
    """Returns the policy's run with the most correct predictions/s up to the capacity; None without runs."""
    runs = [run for run in found["runs"] if run["policy"] == policy and run["load"] <= 1]
    return max(runs, key=lambda run: float(run["correct_per_s"]), default=None)


def factor(found: dict[str, Any], policy: str, over: str) -> float | None:
    """Returns the ratio of two policies' correct predictions/s at their best loads; None if one has none."""
    mine, other = best(found, policy), best(found, over)
    if mine is None or other is None or not other["correct_per_s"]:
        return None
    return float(mine["correct_per_s"] / other["correct_per_s"])


@dataclass(frozen=True, slots=True)
class Variation:
    """A change of a single assumption."""

    name: str
    assumed: Assumptions


def variations(base: Assumptions) -> list[Variation]:
    """Returns variations with one assumption halved or doubled, and one with a single hidden layer of DHE."""
    found = [Variation("as assumed", base)]
    labels = {
        "flops": "FLOP/s achieved",
        "cpu_flops": "the CPU's FLOP/s",
        "bandwidth": "bandwidth achieved",
        "start_s": "start of a batch on the accelerator",
        "cpu_start_s": "start of a batch on the CPU",
        "link": "host to accelerator",
        "differences": "differences of accuracy",
        "rows": "rows of a query",
    }
    for name, label in labels.items():
        for word, by in (("halved", 0.5), ("doubled", 2.0)):
            found.append(Variation(f"{label}, {word}", replace(base, **{name: getattr(base, name) * by})))
    found.append(Variation("DHE's decoder 1024-128", replace(base, decoder=(128,))))
    return found


def run(
    models: Sequence[PublishedModel] = MODELS,
    slas: Sequence[float] = SLA_MS,
    loads: Sequence[float] = LOADS,
    varied: Sequence[Variation] = (),
    queries: int = QUERIES,
    few: int = FEW,
) -> dict[str, Any]:
    """Computes the page's figures. varied: variations, simulated with `few` queries a run; all if empty."""
    base = Assumptions()
    first = slas[0]
    rest = [load for load in loads if load in FEW_LOADS] or loads
    jobs: list[tuple[PublishedModel, Name, bool, float]] = [
        (m, "gpu", False, sla) for m in models for sla in slas
    ]
    jobs += [(m, "gpu", True, sla) for m in models for sla in slas if sla in MERGED_SLA_MS]
    jobs += [(m, name, False, first) for m in models for name in ACCELERATORS if name != "gpu"]
    serving = [
        evaluate(
            serve(model, name, base, merge, sla),
            loads if (name, merge, sla) == ("gpu", False, first) else rest,
            queries,
        )
        for model, name, merge, sla in tqdm(jobs, desc="serving", file=sys.stderr)
    ]
    varied = varied or variations(base)
    sensitivity = [
        {"name": v.name, **evaluate(serve(model, "gpu", v.assumed, False, first), VARIED_LOADS, few)}
        for model in models
        for v in tqdm(varied, desc=f"sensitivity, {model.name}", file=sys.stderr)
    ]
    return {
        "assumed": asdict(base),
        "queries": queries,
        "few": few,
        "serving": serving,
        "sensitivity": sensitivity,
        "matching": [
            {"model": model.name, "rows": rows, "factors": matching(model, base, rows)}
            for model in models
            for rows in MATCHED_ROWS
        ],
    }


def _figures(outcomes: Outcomes) -> dict[str, Any]:
    """Returns query shares, correct predictions/s in time, and rows by path, for arrivals after WARM_S."""
    figures = outcomes.figures(WARM_S)
    assert figures.correct is not None
    return {
        "in_time": figures.in_budget,
        "rejected": figures.refused,
        "correct_per_s": figures.correct,
        "accuracy": figures.quality,
        "p99_ms": 1e3 * figures.p99_s,
        "mix": {name: share for name, share in figures.paths.items() if share},
    }
