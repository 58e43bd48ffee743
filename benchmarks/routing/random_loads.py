"""Simulates random plans, traffic and faults, to find loads at which `priced` is worse than a static path.

    python -m benchmarks.routing.random_loads --cases 200

Each case has 2 to 5 paths of random speed and quality, 1 to 3 lanes, a budget, sizes and arrivals; some have
faults, batches slower than profiled, a core whose speed changes, or costs of reading. The policy and each
static path serve the same arrivals. A ratio is the information that `priced` makes over that of the best
static path, which is only known in hindsight. Prints the distribution of the ratios and the worst cases,
which `--first NUMBER --cases 1` repeats.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from benchmarks.command import command_parser
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.costs import BatchCost, Costs
from polyrec.planner.simulation.faults import Fault
from polyrec.planner.simulation.simulator import Simulator
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals, Sizes

WARM_UP_S = 2.0
QUERIES = 10_000
MIN_S, MAX_S = 7.0, 16.0
TABLE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class RandomCase:
    """A simulated server and its traffic. slowdown: mean and amplitude of the core's slowness."""

    paths: tuple[PathSpec, ...]
    lanes: tuple[LaneSpec, ...]
    budget_s: float
    traffic: tuple[float, Sizes, Arrivals]
    seconds: float
    faults: tuple[Fault, ...]
    costs: Costs | None
    slowdown: tuple[float, float]


def between(random: np.random.Generator, low: float, high: float) -> float:
    """Draws a number, each order of magnitude alike."""
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def draw(number: int) -> RandomCase:
    """Draws the case with this number."""
    random = np.random.default_rng([22, number])
    budget_s, rows = between(random, 0.002, 0.1), round(between(random, 4, 400))
    is_near = random.random() < 0.6
    query_s, quality = (
        between(random, max(3e-4, budget_s / 40), budget_s / 2.2),
        float(random.uniform(0.3, 0.9)),
    )
    seconds: dict[str, float] = {}
    paths: list[PathSpec] = []
    for _ in range(int(random.integers(2, 6))):
        fixed_s, tail = float(random.uniform(0.05, 0.8)) * query_s, float(random.uniform(1.1, 3.0))
        ends = fixed_s + (query_s - fixed_s) / rows, fixed_s + (query_s - fixed_s) / rows * TABLE_ROWS
        latency = LatencyModel(rows=(1, TABLE_ROWS), median_s=ends, tail_s=tuple(tail * s for s in ends))
        name = f"path{len(paths)}@cpu"
        paths.append(PathSpec(name, "cpu", quality, latency))
        seconds[name] = query_s
        query_s *= between(random, 1.01, 1.35) if is_near else between(random, 1.05, 6.0)
        quality *= 1 + between(random, 1e-4, 0.2)
    count = int(random.integers(1, 4))
    kind: LaneKind = "inline" if count == 1 and random.random() < 0.8 else "process"
    lanes = tuple(LaneSpec(f"cpu{i}", "cpu", kind) for i in range(count))
    rate = float(random.uniform(0.2, 1.4)) * count / seconds[str(random.choice(list(seconds)))]
    arrivals = Arrivals()
    if random.random() < 0.3:
        period_s = between(random, 0.3, 6.0)
        burst_s = period_s * float(random.uniform(0.1, 0.5))
        arrivals = Arrivals(kind="bursty", factor=between(random, 1.5, 8), period_s=period_s, burst_s=burst_s)
    sizes = Sizes(kind=("fixed", "lognormal", "lognormal", "heavy")[int(random.integers(4))], mean=rows)
    costs = None
    if random.random() < 0.4:
        batches = {
            name: BatchCost(batch_s=float(random.uniform(-0.2, 0.4)) * s) for name, s in seconds.items()
        }
        costs = Costs(query_s=between(random, 1e-5, 1e-4), turn_s=6e-5, batches=batches)
    slowdown = (
        (1.0, 0.0)
        if random.random() < 0.7
        else (float(random.uniform(1, 1.5)), float(random.uniform(0, 0.3)))
    )
    length_s = min(max(QUERIES / rate, MIN_S), MAX_S)
    return RandomCase(
        tuple(reversed(paths)), lanes, budget_s, (rate, sizes, arrivals), length_s,
        _faults(random, length_s), costs, slowdown,
    )  # fmt: skip


def _faults(random: np.random.Generator, seconds: float) -> tuple[Fault, ...]:
    """Draws short stops of the process, a slow lane or a busy neighbor, or mostly none."""
    which = random.random()
    if which < 0.2:
        every_s, stopped_s = between(random, 0.03, 0.4), between(random, 0.001, 0.008)
        return tuple(
            Fault("stop", -1, at, at + stopped_s) for at in np.arange(0.05, seconds, every_s).tolist()
        )
    if which < 0.3:
        return (Fault("slow", 0, 3.0, 6.0, between(random, 1.3, 12.0)),)
    return (Fault("neighbor", -1, 1.0, seconds),) if which < 0.37 else ()


def information(case: RandomCase, number: int, policy: str) -> float:
    """Returns the information a second that a policy makes, after a warm-up."""
    rate, sizes, arrivals = case.traffic
    random = np.random.default_rng([1, number])
    arrival_s = arrival_times(arrivals, rate, case.seconds, random)
    rows = sizes.sample(arrival_s.size, random)
    trace = Trace(case.paths, Limits(), arrival_s, rows, case.budget_s)
    mean, amplitude = case.slowdown
    outcomes = Simulator(
        trace,
        case.lanes,
        Routing(policy=policy),
        np.random.default_rng([2, number]),
        case.faults,
        case.costs,
        lambda now_s: mean * (1 + amplitude * math.sin(now_s)),
    ).run()
    return outcomes.figures(WARM_UP_S).information


def ratio(number: int) -> float:
    """Returns the information of `priced` over that of the best static path; NaN if no path makes any."""
    case = draw(number)
    best = max(information(case, number, f"static:{path.name}") for path in case.paths)
    return information(case, number, "priced") / best if best else math.nan


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    args = parser.parse_args(argv)
    numbers = range(args.first, args.first + args.cases)
    with get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        found = np.array(pool.map(ratio, numbers, chunksize=1))
    known = found[~np.isnan(found)]
    low, few, half = np.quantile(known, (0.01, 0.05, 0.5))
    print(f"{known.size} cases: 1% below {low:.3f}, 5% below {few:.3f}, median {half:.3f}")
    print(", ".join(f"{(known < limit).sum()} below {limit}" for limit in (0.99, 0.97, 0.95, 0.9)))
    worst = np.argsort(np.nan_to_num(found, nan=np.inf))[:8]
    print("worst:", ", ".join(f"case {numbers[i]} {found[i]:.3f}" for i in worst))


if __name__ == "__main__":
    main()
