"""Routing policies against the clairvoyant bound, simulated on two described machines.

    python -m benchmarks.routing.policies --json docs/results/routing.json --plot docs/results/routing.png

Every policy sees the same traces (paired: same arrivals, sizes and noise) at 10 ... 150% of capacity, the
rows a second of all lanes on their cheapest paths at the largest batches. What is told is the share of the
bound (planner/simulation/bound.py): correct predictions within their deadline. Queries of DeepRecSys's sizes
(lognormal, mean 147), a budget of 10 ms. `--hot-path` measures what a decision costs instead.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.routing.machines import MACHINES, Machine
from polyrec.models.schema.batch import F64, I64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Routing
from polyrec.planner.routing.router import Router
from polyrec.planner.simulation.bound import bound
from polyrec.planner.simulation.simulator import Simulator, information
from polyrec.planner.traffic import Arrivals, Sizes

BUDGET_S = 0.010
OVERLOADED = 2.0
"""Traces from 100% on are that many times as long: the backlog at the beginning, which the bound does not
have, weighs less."""
WARM_S = 0.3
"""Earlier arrivals are not counted: until its first ticks a policy knows no rate. The bound is that of the
rest with all lanes free at its beginning, so it still is one."""
SIZES = {"lognormal": Sizes(kind="lognormal", mean=147), "mlperf": Sizes(kind="mlperf")}
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5)
FEW_LOADS = (0.1, 0.3, 0.6, 0.8, 1.2)
ARRIVALS = {
    "poisson": Arrivals(),
    "bursty": Arrivals(kind="bursty", factor=3.0, period_s=0.1, burst_s=0.02),
    "diurnal": Arrivals(kind="diurnal", factor=3.0, period_s=0.5),
}
MIXES = (
    ("poisson", "lognormal", LOADS),
    ("poisson", "mlperf", FEW_LOADS),
    ("bursty", "lognormal", FEW_LOADS),
    ("diurnal", "lognormal", FEW_LOADS),
)


def capacity(machine: Machine) -> float:
    """Rows/s of all lanes, each on its cheapest path at the largest batch."""
    most = machine.limits.max_batch_rows
    return sum(
        max(most / p.latency.median(most) for p in machine.paths if p.device == lane.device)
        for lane in machine.lanes
    )


def policies(machine: Machine) -> list[str]:
    return ["priced", "mprec", "deeprecsys", *(f"static:{p.name}" for p in machine.paths)]


def trace(
    machine: Machine, arrivals: str, sizes: str, load: float, seconds: float, seed: int
) -> tuple[F64, I64]:
    rng = np.random.default_rng(seed)
    rate = load * capacity(machine) / SIZES[sizes].mean_rows
    times = arrival_times(ARRIVALS[arrivals], rate, seconds, rng)
    return times, SIZES[sizes].sample(times.size, rng)


def compare(
    machines: Sequence[str], mixes: Sequence[tuple[str, str, Sequence[float]]], seconds: float, seeds: int
) -> list[dict[str, Any]]:
    """One row for each machine, mix, load, seed and policy."""
    found = []
    jobs = [
        (name, arrivals, sizes, load, seed)
        for name in machines
        for arrivals, sizes, loads in mixes
        for load in loads
        for seed in range(seeds)
    ]
    for name, arrivals, sizes, load, seed in tqdm(jobs, desc="traces", file=sys.stderr):
        machine = MACHINES[name]
        span = seconds * (OVERLOADED if load >= 1 else 1)
        times, rows = trace(machine, arrivals, sizes, load, span, seed)
        told = times >= WARM_S
        best = bound(machine.paths, machine.lanes, machine.limits, times[told], rows[told], BUDGET_S)
        for policy in policies(machine):
            began = perf_counter()
            outcomes = Simulator(
                machine.paths,
                machine.lanes,
                Routing(policy=policy),
                machine.limits,
                times,
                rows,
                BUDGET_S,
                np.random.default_rng([seed, 1]),
            ).run()
            took_s = perf_counter() - began
            figures = outcomes.figures(WARM_S)
            found.append(
                {
                    "machine": name,
                    "arrivals": arrivals,
                    "sizes": sizes,
                    "load": load,
                    "seed": seed,
                    "policy": policy,
                    "of_bound": float(information(outcomes)[told].sum() / best.information),
                    "in_budget": figures.in_budget,
                    "refused": figures.refused,
                    "accuracy": figures.quality,
                    "p50_ms": 1e3 * figures.p50_s,
                    "p99_ms": 1e3 * figures.p99_s,
                    "queries": figures.queries,
                    "simulated_per_s": times.size / took_s,
                }
            )
    return found


def summary(found: list[dict[str, Any]], machine: str, arrivals: str, sizes: str) -> Iterator[str]:
    """A Markdown table: share of the bound, mean over seeds, by load; then the default's accuracy and p99."""
    own = [r for r in found if (r["machine"], r["arrivals"], r["sizes"]) == (machine, arrivals, sizes)]
    loads = sorted({r["load"] for r in own})
    names = list(dict.fromkeys(r["policy"] for r in own))

    def mean(policy: str, load: float, what: str) -> float:
        return float(np.mean([r[what] for r in own if r["policy"] == policy and r["load"] == load]))

    yield "| load | " + " | ".join(names) + " | accuracy | p99 ms | refused |"
    yield "|---" * (len(names) + 4) + "|"
    for load in loads:
        shares = " | ".join(f"{mean(n, load, 'of_bound'):.4f}" for n in names)
        rest = f"{mean('priced', load, 'accuracy'):.5f} | {mean('priced', load, 'p99_ms'):.1f}"
        yield f"| {load:.0%} | {shares} | {rest} | {mean('priced', load, 'refused'):.1%} |"


def verdict(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the default's lowest share up to 80% and 120%, and its worst paired difference to a policy."""
    default = {_key(r): r["of_bound"] for r in found if r["policy"] == "priced"}
    behind = [
        (r["of_bound"] - default[_key(r)], r["policy"], *_key(r)) for r in found if r["policy"] != "priced"
    ]
    means: dict[tuple[Any, ...], list[float]] = {}
    for gap, policy, *key in behind:
        means.setdefault((policy, *key[:4]), []).append(gap)
    worst = max((float(np.mean(gaps)), key) for key, gaps in means.items())
    return {
        "lowest_up_to_80": min(share for key, share in default.items() if key[3] <= 0.8),
        "lowest_up_to_120": min(share for key, share in default.items() if key[3] <= 1.2),
        "most_behind_another_policy": worst[0],
        "there": list(worst[1]),
    }


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["machine"], row["arrivals"], row["sizes"], row["load"], row["seed"]


def plot(found: list[dict[str, Any]], file: Path) -> None:
    """Share of the bound, and accuracy of what was answered, by load; a column a machine."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    machines = list(dict.fromkeys(r["machine"] for r in found))
    figure, axes = pyplot.subplots(2, len(machines), figsize=(6.4 * len(machines), 10), squeeze=False)
    for column, machine in enumerate(machines):
        own = [
            r for r in found if (r["machine"], r["arrivals"], r["sizes"]) == (machine, "poisson", "lognormal")
        ]
        names = list(dict.fromkeys(r["policy"] for r in own))
        for rank, name in enumerate(names):
            loads = sorted({r["load"] for r in own})
            means = {
                what: [
                    np.mean([r[what] for r in own if r["policy"] == name and r["load"] == x]) for x in loads
                ]
                for what in ("of_bound", "accuracy")
            }
            static = name.startswith("static:")
            style: dict[str, Any] = {
                "color": f"C{rank}",
                "linestyle": "--" if static else "-",
                "linewidth": 2.6 if name == "priced" else 1.2,
                "zorder": 2 if name == "priced" else 3,
            }
            at = [100 * x for x in loads]
            axes[0][column].plot(at, [100 * v for v in means["of_bound"]], label=name, **style)
            if not static:
                axes[1][column].plot(at, means["accuracy"], label=name, **style)
        axes[0][column].set(
            title=MACHINES[machine].name, ylabel="share of the bound, %", ylim=(0, 103), xlabel="load, %"
        )
        axes[1][column].set(ylabel="accuracy of what was answered", xlabel="load, %")
        for p in MACHINES[machine].paths:
            axes[1][column].axhline(p.quality, color="0.85", linewidth=0.8, zorder=0)
            axes[1][column].annotate(
                p.name.partition("@")[0], (150, p.quality), fontsize=7, color="0.5", va="bottom", ha="right"
            )
        for row in (0, 1):
            axes[row][column].grid(alpha=0.2)
            axes[row][column].legend(fontsize=8, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def hot_path(queries: int = 30_000) -> list[dict[str, Any]]:
    """Microseconds of routing for a query: its offer, and its share of the `next` and `done` of its batch."""
    found = []
    for name, load in (("cpu", 0.3), ("cpu", 0.7), ("cpu", 1.2), ("cpu+gpu", 0.3), ("cpu+gpu", 0.7)):
        machine = MACHINES[name]
        seconds = queries * SIZES["lognormal"].mean_rows / (load * capacity(machine))
        times, rows = trace(machine, "poisson", "lognormal", load, seconds, 0)
        simulator = Simulator(
            machine.paths,
            machine.lanes,
            Routing(),
            machine.limits,
            times,
            rows,
            BUDGET_S,
            np.random.default_rng(1),
        )
        timed = _Timed(simulator.router)
        simulator.router = timed  # type: ignore[assignment]
        simulator.run()
        found.append({"machine": name, "load": load, "queries": int(times.size), **timed.figures(times.size)})
    return found


class _Timed:
    """A router that records the durations of its calls."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.spent: dict[str, list[int]] = {}
        self._share: list[float] = []
        self._offers: dict[int, int] = {}
        self._nexts: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def _time(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        began = perf_counter_ns()
        result = call(*arguments)
        self.spent.setdefault(name, []).append(perf_counter_ns() - began)
        return result

    def reject_early(self, arrival_s: float, deadline_s: float, size: float, now_s: float) -> Any:
        return self._time("reject_early", self._router.reject_early, arrival_s, deadline_s, size, now_s)

    def offer(self, query: Any, now_s: float, size: float) -> Any:
        result = self._time("offer", self._router.offer, query, now_s, size)
        self._offers[query.payload] = self.spent["offer"][-1]
        return result

    def next(self, lane: int, now_s: float) -> Any:
        result = self._time("next", self._router.next, lane, now_s)
        if result is not None:
            self._nexts[id(result)] = self.spent["next"].pop()
            self.spent.setdefault("next, a batch", []).append(self._nexts[id(result)])
        return result

    def done(self, dispatch: Any, now_s: float, took_s: float) -> None:
        self._time("done", self._router.done, dispatch, now_s, took_s)
        each = (self._nexts.pop(id(dispatch)) + self.spent["done"][-1]) / len(dispatch.parts)
        self._share += [self._offers[part.query.payload] + each for part in dispatch.parts]

    def expire(self, now_s: float) -> Any:
        return self._time("expire", self._router.expire, now_s)

    def wake_s(self) -> Any:
        return self._time("wake_s", self._router.wake_s)

    def tick(self, now_s: float, front_s: float | None = None) -> None:
        self._time("tick", self._router.tick, now_s, front_s)

    def figures(self, queries: int) -> dict[str, Any]:
        total = sum(sum(v) for k, v in self.spent.items() if k != "tick")
        return {
            "query_us_p50": float(np.median(self._share)) / 1e3,
            "query_us_p99": float(np.quantile(self._share, 0.99)) / 1e3,
            "all_calls_us_a_query": total / queries / 1e3,
            "median_us": {k: float(np.median(v)) / 1e3 for k, v in self.spent.items()},
            "calls_a_query": {k: len(v) / queries for k, v in self.spent.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machine", action="append", choices=sorted(MACHINES), help="both by default")
    parser.add_argument("--seconds", type=float, default=0.7, help=f"of a trace, {WARM_S} of them to warm up")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--arrivals", action="append", choices=sorted(ARRIVALS), help="all by default")
    parser.add_argument("--quick", action="store_true", help="Poisson arrivals at five loads only")
    parser.add_argument("--combine", type=Path, nargs="+", help="results of earlier runs, instead of running")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--hot-path", action="store_true", help="what a decision costs, on this machine")
    arguments = parser.parse_args()
    if arguments.seconds <= WARM_S:
        parser.error(f"--seconds: nothing is left of {arguments.seconds:g} s after {WARM_S} s of warm-up")
    if arguments.hot_path:
        result: Any = {"python": platform.python_version(), "hot_path": hot_path()}
        text = json.dumps(result, indent=1)
        if arguments.json:
            arguments.json.write_text(text + "\n")
        print(text)
        return
    machines = arguments.machine or list(MACHINES)
    mixes = (("poisson", "lognormal", FEW_LOADS),) if arguments.quick else MIXES
    mixes = tuple(mix for mix in mixes if mix[0] in (arguments.arrivals or ARRIVALS))
    if arguments.combine:
        found = [run for file in arguments.combine for run in json.loads(file.read_text())["runs"]]
    else:
        found = compare(machines, mixes, arguments.seconds, arguments.seeds)
    for machine in machines:
        for arrivals, sizes in dict.fromkeys((r["arrivals"], r["sizes"]) for r in found):
            if not any(
                (r["machine"], r["arrivals"], r["sizes"]) == (machine, arrivals, sizes) for r in found
            ):
                continue
            print(f"\n{MACHINES[machine].name}, {arrivals} arrivals, {sizes} sizes; share of the bound\n")
            print("\n".join(summary(found, machine, arrivals, sizes)))
    told = verdict(found)
    print("\n" + json.dumps(told, indent=1))
    if arguments.json:
        result = {"budget_s": BUDGET_S, "seconds": arguments.seconds, "verdict": told, "runs": found}
        runs = ",\n".join(json.dumps(run) for run in found)
        text = json.dumps(result | {"runs": []}, indent=1).replace('"runs": []', f'"runs": [\n{runs}\n]')
        arguments.json.write_text(text + "\n")
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
