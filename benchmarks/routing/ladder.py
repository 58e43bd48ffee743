"""Simulates a day on one core with a ladder of widths, and compares policies by information within the SLO.

    python -m benchmarks.routing.ladder                   (writes docs/results/ladder.md; minutes on one core)
    python -m benchmarks.routing.ladder --profile FILE    (the ladder of a measured profile)

The rate of a day is sin squared, with a peak of a multiple of the widest path's capacity. Constant loads are
shares of the narrowest path's capacity. `priced` and `mprec` are compared with every static path, the best
static path of each day, the single static path that is best in hindsight over all days, the one that would be
chosen in advance for twice the mean load, and the clairvoyant bound. Queries have 23 rows and 10 ms; there is
one inline lane, and all policies get the same trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.command import command_parser, save, timestamp
from polyrec.loadtest.machine import processor
from polyrec.models.amounts import rate
from polyrec.models.schema.batch import F64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Limits, Plan, Routing
from polyrec.planner.profile import load_profile
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.bound import bound
from polyrec.planner.simulation.simulator import Simulator, specs
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals
from polyrec.report.page import Page, Section, Table
from polyrec.report.text import markdown

ROWS, BUDGET_S, TAIL = 23, 0.010, 1.4
ML1M = {
    "w4": (37, 185, 0.2402),
    "w8": (41, 218, 0.2513),
    "w16": (60, 389, 0.25495),
    "w32": (104, 928, 0.25725),
    "w64": (268, 3002, 0.25805),
}
"""Nested widths on ML-1M: microseconds of 23 and of 256 rows; information gain, mean of two seeds."""
PEAKS = (0.8, 1.5, 3.0, 6.0)
LOADS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5)
WARM_S = 0.5
SWING = 100.0
"""A day's mean rate divided by its lowest."""
RULES = ("priced", "mprec")
LANES = (LaneSpec("cpu", "cpu", "inline"),)


@dataclass(frozen=True, slots=True)
class Ladder:
    """Paths of one core, cheapest first, and the front's seconds for a query of ROWS rows."""

    paths: tuple[PathSpec, ...]
    front_s: float = 0.0
    limits: Limits = field(default_factory=Limits)

    @property
    def policies(self) -> list[str]:
        return [*RULES, *(f"static:{path.name}" for path in self.paths)]

    def capacity(self, path: PathSpec) -> float:
        """Returns the queries/s of a path in batches of the cheapest size per row."""
        row_s = min(path.latency.median(rows) / rows for rows in range(1, self.limits.max_batch_rows + 1))
        return 1 / (ROWS * row_s + self.front_s)

    def figures(self) -> list[dict[str, Any]]:
        """Returns quality, microseconds for ROWS and for 256 rows, and capacity of each path."""
        return [
            {
                "name": p.name,
                "quality": p.quality,
                "few_us": 1e6 * p.latency.median(ROWS),
                "many_us": 1e6 * p.latency.median(256),
                "capacity": self.capacity(p),
            }
            for p in self.paths
        ]

    def trace(self, arrival_s: F64) -> Trace:
        """Returns queries of ROWS rows that arrive at these times."""
        return Trace(self.paths, self.limits, arrival_s, np.full(arrival_s.size, ROWS), BUDGET_S)

    def simulate(self, policy: str, arrival_s: F64, since_s: float = 0.0) -> dict[str, Any]:
        """Returns information per second in time, and shares of paths, for arrivals after since_s."""
        routing = Routing(policy=policy, query_s=self.front_s)
        outcomes = Simulator(self.trace(arrival_s), LANES, routing, np.random.default_rng(3)).run()
        figures = outcomes.figures(since_s)
        return {
            "policy": policy,
            "information_s": figures.information,
            "in_time": figures.in_budget,
            "late": figures.late,
            "rejected": figures.refused,
            "p99_ms": 1e3 * figures.p99_s,
            "mix": {name: share for name, share in figures.paths.items() if share},
        }

    def bound(self, arrival_s: F64, since_s: float = 0.0) -> float:
        """Returns an upper bound of information per second, ignoring the front, which only lowers it."""
        told = arrival_s[arrival_s >= since_s] - since_s
        return bound(self.trace(told), LANES).information / float(told[-1])

    def chosen_for(self, queries_s: float) -> str:
        """Returns the static path that one would choose for a rate: the widest that sustains it."""
        able = [path for path in self.paths if self.capacity(path) >= queries_s]
        return f"static:{(able or self.paths[:1])[-1].name}"


def ml1m(front_s: float = 0.0) -> Ladder:
    """Returns the nested widths that a prototype measured on ML-1M; the 99th percentile is assumed."""
    paths = []
    for name, (few_us, many_us, gain) in ML1M.items():
        one_us = few_us - (many_us - few_us) * (ROWS - 1) / (256 - ROWS)
        median = tuple(1e-6 * us for us in (one_us, few_us, many_us))
        curve = LatencyModel(rows=(1, ROWS, 256), median_s=median, tail_s=tuple(TAIL * m for m in median))
        paths.append(PathSpec(f"{name}@cpu", "cpu", gain, curve))
    return Ladder(tuple(paths), front_s)


def profiled(file: Path) -> Ladder:
    """Returns the ladder of a profile's CPU paths, with its front."""
    profile = load_profile(file)
    paths = [
        PathSpec(p.path.name, "cpu", p.quality, p.latency) for p in profile.paths if p.path.device == "cpu"
    ]
    front = profile.front
    return _by_capacity(Ladder(tuple(paths), front.query_s + front.row_s * ROWS if front else 0.0))


def planned(plan: Plan) -> Ladder:
    """Returns the ladder of a plan's paths, with front and limits. Raises PlanError for a missing figure."""
    paths, _ = specs(plan)
    return _by_capacity(Ladder(paths, plan.routing.query_s + plan.routing.row_s * ROWS, plan.limits))


def _by_capacity(ladder: Ladder) -> Ladder:
    return replace(ladder, paths=tuple(sorted(ladder.paths, key=ladder.capacity, reverse=True)))


def day(ladder: Ladder, peak: float, seconds: float) -> dict[str, Any]:
    """Simulates every policy over a day compressed to `seconds`. peak: in capacities of the widest path."""
    top = peak * ladder.capacity(ladder.paths[-1])
    arrivals = Arrivals(kind="diurnal", factor=SWING, period_s=seconds)
    arrival_s = arrival_times(arrivals, top / 2, seconds, np.random.default_rng(round(10 * peak)))
    return _compared(ladder, {"peak": peak, "queries_s": top / 2}, arrival_s, ladder.chosen_for(top))


def constant(ladder: Ladder, load: float, queries: int) -> dict[str, Any]:
    """Simulates every policy at a constant load. load: share of the narrowest path's capacity."""
    queries_s = load * ladder.capacity(ladder.paths[0])
    seconds = WARM_S + max(0.5, queries / queries_s)
    arrival_s = arrival_times(Arrivals(), queries_s, seconds, np.random.default_rng(round(100 * load)))
    chosen = ladder.chosen_for(2 * queries_s)
    return _compared(ladder, {"load": load, "queries_s": queries_s}, arrival_s, chosen, WARM_S)


def _compared(
    ladder: Ladder, what: dict[str, Any], arrival_s: F64, chosen: str, since_s: float = 0.0
) -> dict[str, Any]:
    runs = {policy: ladder.simulate(policy, arrival_s, since_s) for policy in ladder.policies}
    return what | {"chosen": chosen, "bound_s": ladder.bound(arrival_s, since_s), "runs": runs}


def best_static(found: Iterable[dict[str, Any]]) -> str:
    """Returns the static path with the most information over all given days."""
    total: dict[str, float] = {}
    for one in found:
        for policy, run in one["runs"].items():
            if policy.startswith("static:"):
                total[policy] = total.get(policy, 0.0) + run["information_s"]
    return max(total, key=lambda policy: total[policy])


def gain(one: dict[str, Any], over: str, policy: str = "priced") -> float:
    """Returns the relative gain of a policy's information over another's."""
    return float(one["runs"][policy]["information_s"] / one["runs"][over]["information_s"] - 1)


def page(found: dict[str, Any]) -> Page:
    """Returns the page of the results of `main`."""
    days, loads = found["days"], found["loads"]
    hindsight = best_static(days)
    widest = list(days[0]["runs"])[-1]
    over = [1 + gain(one, best_static([one])) for one in days]
    return Page(
        "Results: a ladder of widths over a simulated day",
        f"Over simulated days `priced` makes {min(over):.3f} to {max(over):.3f} times the information of "
        "the static path that is best for that day in hindsight.\n\n"
        f"One core, {found['ladder']}, queries of {ROWS} rows within {1e3 * BUDGET_S:g} ms. Information: "
        "rows answered in time, each worth its path's 1 - NE. `python -m benchmarks.routing.ladder` writes "
        f"this page ({found['machine']}, {found['cpu_s'] / 60:.0f} minutes of one core, "
        f"{found['made'][:10]}; every run is in [ladder.json](ladder.json)).",
        (
            Section("Paths", table=paths_table(found["paths"])),
            Section(
                "Days",
                f"The rate is sin squared over {found['seconds']:g} s. Peak: in capacities of the widest "
                "path. The columns have the information of `priced` relative to that of static paths, that "
                "of `mprec` relative to the day's best static path, the share of the clairvoyant bound, and "
                "how far that bound is above the static path chosen beforehand.",
                table=_gains(days, "peak", hindsight, widest),
            ),
            Section("Days, by policy", table=_by_policy(days, "peak")),
            Section(
                "Constant loads",
                "Load: share of the narrowest path's capacity in large batches. Negative: `priced` loses.",
                table=_gains(loads, "load", best_static(loads), widest),
            ),
            Section("Constant loads, `priced`", table=_by_policy(loads, "load", ("priced",))),
            Section("Where `priced` loses, and why", _why(), items=_losses([*days, *loads])),
        ),
    )


def paths_table(paths: Sequence[Mapping[str, Any]], queries: str = "queries") -> Table:
    """Returns the table of the figures of a ladder's paths. queries: what a query is called."""
    head = ("path", "quality", f"{ROWS} rows, us", "256 rows, us", f"capacity, {queries}/s")
    rows = [
        (p["name"], f"{p['quality']:.4f}", f"{p['few_us']:.0f}", f"{p['many_us']:.0f}", rate(p["capacity"]))
        for p in paths
    ]
    return Table(head, tuple(rows))


def _gains(found: Sequence[dict[str, Any]], key: str, hindsight: str, widest: str) -> Table:
    head = (
        key,
        "queries/s",
        "best static",
        "over it",
        f"over {short_name(hindsight)}, best over all",
        "over the static chosen for twice the mean",
        f"over always {short_name(widest)}",
        "`mprec` over the best static",
        "of the bound",
        "bound over the chosen",
    )
    rows = []
    for one in found:
        own = best_static([one])
        rows.append(
            (
                f"{one[key]:g}",
                rate(one["queries_s"]),
                short_name(own),
                f"{gain(one, own):+.2%}",
                f"{gain(one, hindsight):+.2%}",
                f"{gain(one, one['chosen']):+.2%} ({short_name(one['chosen'])})",
                f"{gain(one, widest):+.1%}",
                f"{gain(one, own, 'mprec'):+.2%}",
                f"{one['runs']['priced']['information_s'] / one['bound_s']:.4f}",
                f"{one['bound_s'] / one['runs'][one['chosen']]['information_s'] - 1:+.2%}",
            )
        )
    return Table(head, tuple(rows))


def _by_policy(found: Sequence[dict[str, Any]], key: str, only: Sequence[str] = ()) -> Table:
    rows = []
    for one in found:
        for policy, run in one["runs"].items():
            if only and policy not in only:
                continue
            rows.append(
                (
                    f"{one[key]:g}",
                    short_name(policy),
                    rate(run["information_s"]),
                    f"{run['in_time']:.2%}",
                    f"{run['late']:.2%}",
                    f"{run['rejected']:.2%}",
                    f"{run['p99_ms']:.1f}",
                    _mix(run),
                )
            )
    head = (key, "policy", "information/s", "in time", "late", "rejected", "p99 ms", "rows by path")
    return Table(head, tuple(rows))


def _mix(run: dict[str, Any]) -> str:
    return ", ".join(
        f"{short_name(name)} {share:.0%}" for name, share in run["mix"].items() if share >= 0.005
    )


def _losses(found: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Describes each day or load at which a static path has more information than `priced`."""
    told = []
    for one in found:
        best = best_static([one])
        if (more := gain(one, best)) < -1e-4:
            what = f"peak {one['peak']:g}" if "peak" in one else f"load {one['load']:g}"
            told.append(f"{what}: {more:+.3%} against {short_name(best)}, with {_mix(one['runs']['priced'])}")
    return tuple(told) or ("nowhere",)


def _why() -> str:
    return (
        "A path is used if waiting queries stay feasible on the *fastest* paths. So while the queue is "
        "short, a better path is used than the load allows on average, and worse paths catch up "
        "afterwards. Quality falls faster the narrower the path, so such a mix is worth less than the path "
        "in between, which shows where that one is nearly full. `mprec` binds a query at arrival to the "
        "best path that still fits, so waiting queries are bound to wide paths when load rises."
    )


def short_name(policy: str) -> str:
    """Returns a path's or policy's name without its kind and device."""
    return policy.removeprefix("static:").removesuffix("@cpu")


def run(
    ladder: Ladder,
    peaks: Sequence[float] = PEAKS,
    loads: Sequence[float] = LOADS,
    seconds: float = 10.0,
    queries: int = 20_000,
) -> dict[str, Any]:
    """Simulates all days and loads. seconds: length of a day. queries: number in a constant load."""
    return {
        "seconds": seconds,
        "paths": ladder.figures(),
        "days": [day(ladder, peak, seconds) for peak in tqdm(peaks, desc="days", file=sys.stderr)],
        "loads": [constant(ladder, load, queries) for load in tqdm(loads, desc="loads", file=sys.stderr)],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), metavar="DIR", help="for ladder.md")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="a measured ladder; default: ML-1M's")
    parser.add_argument("--front-us", type=float, default=0.0, help="of a query, with ML-1M's ladder (0)")
    parser.add_argument("--peak", type=float, nargs="+", default=PEAKS, help="in capacities of the widest")
    parser.add_argument("--load", type=float, nargs="+", default=LOADS, help="of the narrowest's capacity")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a day (10)")
    parser.add_argument("--queries", type=int, default=20_000, help="of a constant load, at least 0.5 s")
    args = parser.parse_args(argv)
    ladder = profiled(args.profile) if args.profile else ml1m(1e-6 * args.front_us)
    told = (
        f"the paths of {args.profile}"
        if args.profile
        else "ML-1M's nested widths as a prototype measured them"
    )
    found = run(ladder, args.peak, args.load, args.seconds, args.queries)
    found |= {"ladder": f"{told}, {1e6 * ladder.front_s:.0f} us of front a query", "machine": processor()}
    found |= {"made": timestamp(), "cpu_s": process_time()}
    save(args.out / "ladder.json", found)
    text = markdown(page(found)).rstrip() + "\n"
    (args.out / "ladder.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
