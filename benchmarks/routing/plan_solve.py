"""Measures planning time and optimality gap for a large model on a large machine.

The model has 500 tables of 1,000 to 1,000,000 rows with Zipf accesses and 12 representations; the machine has
6 devices: a CPU with 64 cores, four GPUs, an accelerator. Memories hold only part of the rows, so that the
planner must choose which representations go where and which of their rows stay on the device. Everything is
drawn from a seed.

    python -m benchmarks.routing.plan_solve [--json docs/results/plan-solve.json]

Times: `pose` computes the inputs (cuts of all tables for every residency tried), `solve` is the mixed-integer
program with its time limit. The gap is to the linear relaxation, which no plan exceeds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.command import command_parser, save
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.deployment.solver.choice import candidate_options, choose
from polyrec.planner.deployment.solver.problem import build_problem
from polyrec.planner.deployment.solver.program import Program
from polyrec.planner.devices import Device, Machine
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import PlannedPath
from polyrec.planner.profile import Front, Memory, PathProfile, Profile
from polyrec.planner.traffic import Sizes, Traffic

ROWS = (1, 16, 64, 256, 1024, 4096)
WIDTH = 64
# name: (accuracy above table's, bytes a stored number, share of rows stored, MFLOP a row, fixed MB)
REPRESENTATIONS = {
    "table": (0.0, 4.0, 1.0, 1.0, 4),
    "table-bf16": (-0.00001, 2.0, 1.0, 1.0, 4),
    "table-int8": (-0.0001, 1.05, 1.0, 1.0, 4),
    "table-int4": (-0.0005, 0.55, 1.0, 1.0, 4),
    "dhe": (0.0015, 4.0, 0.0, 35.0, 70),
    "dhe-small": (0.0008, 4.0, 0.0, 7.0, 14),
    "dhe-hot": (0.0015, 4.0, 0.05, 18.0, 70),
    "select": (0.0010, 4.0, 0.3, 10.0, 40),
    "select-int8": (0.0009, 1.05, 0.3, 10.0, 40),
    "hybrid": (0.0019, 4.0, 1.0, 36.0, 74),
    "hybrid-int8": (0.0018, 1.05, 1.0, 36.0, 74),
    "hybrid-int4": (0.0014, 0.55, 1.0, 36.0, 74),
}


@dataclass(frozen=True, slots=True)
class SolveResult:
    """One solved instance.

    rows: of all tables. served: share of the traffic. gap: relative difference from the linear relaxation.
    proven: from the solver's own bound.
    """

    seed: int
    tables: int
    rows: int
    paths: int
    options: int
    pose_s: float
    solve_s: float
    gap: float
    proven: float
    served: float
    accuracy: float
    deployed: tuple[str, ...]


def machine(stored_bytes: float) -> Machine:
    """Returns a machine whose memories are in proportion to `stored_bytes`, the bytes of rows to hold.

    The host has 1.2 times as many, each GPU a third, the accelerator a twentieth.
    """
    devices = [Device(name="cpu", kind="cpu", lanes=64, memory_bytes=int(1.2 * stored_bytes))]
    devices += [
        Device(name=f"cuda:{i}", kind="gpu", lanes=1, memory_bytes=int(0.33 * stored_bytes), link=2.5e10)
        for i in range(4)
    ]
    devices.append(
        Device(name="npu:0", kind="accelerator", lanes=2, memory_bytes=int(0.05 * stored_bytes), link=8e9)
    )
    return Machine(
        name="large",
        devices=tuple(devices),
        disk_bytes=10**13,
        disk_bandwidth=5e9,
        disk_latency_s=8e-5,
    )


def instance(seed: int, tables: int = 500, held: float = 1.0) -> tuple[Profile, tuple[Tables | None, ...]]:
    """Draws an instance; returns its profile and each path's tables, None for a path that stores no rows.

    held: memories, as a multiple of those that hold all fp32 rows.
    """
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(np.log(1e3), np.log(1e6), tables)).astype(int)
    ranked = tuple(
        RankedAccesses.from_counts((1e6 / np.arange(1, n + 1) ** exponent).astype(np.int64))
        for n, exponent in zip(sizes, rng.uniform(0.6, 1.3, tables), strict=True)
    )
    names = tuple(f"t{i}" for i in range(tables))
    on = machine(held * float(sizes.sum()) * WIDTH * 4)
    # FLOP/s and fixed seconds of a batch
    speeds = {"cpu": (2e11, 2e-4), "npu:0": (1e13, 3e-4)} | {f"cuda:{i}": (3e13, 4e-4) for i in range(4)}
    paths, found = [], []
    for representation, (above, number_bytes, share, mflop, fixed_mb) in REPRESENTATIONS.items():
        row_bytes = WIDTH * number_bytes
        stored = tuple(t.until(int(t.size * share)) for t in ranked)
        kept = [i for i, t in enumerate(stored) if t.size]
        made = Tables(
            tuple(names[i] for i in kept),
            tuple(stored[i] for i in kept),
            (row_bytes,) * len(kept),
            tables * share**0.3,
        )
        for device in on.devices:
            flops, fixed_s = speeds[device.name]
            row_s = mflop * 1e6 / flops * rng.uniform(0.9, 1.1)
            median = tuple(fixed_s + row_s * n for n in ROWS)
            paths.append(
                PathProfile(
                    path=PlannedPath(
                        name=f"{representation}@{device.name}",
                        bundle=Path("/nowhere") / representation,
                        runtime="torch",
                        device=device.name,
                    ),
                    representation=representation,
                    quality=0.79 + above,
                    memory=Memory(
                        tables={n: int(t.size * row_bytes) for n, t in zip(names, stored, strict=True)},
                        fixed=fixed_mb * 10**6,
                        peak=50 * 10**6,
                    ),
                    latency=LatencyModel(rows=ROWS, median_s=median, tail_s=tuple(1.4 * s for s in median)),
                    origin="derived",
                )
            )
            found.append(made if kept else None)
    return Profile(machine=on, paths=tuple(paths), front=Front(query_s=1e-5, row_s=1e-8)), tuple(found)


def measure(seed: int, tables: int, rate: float, held: float, limit_s: float) -> SolveResult:
    """Draws an instance, plans for `rate` queries/s, and compares the plan with the linear relaxation."""
    profile, found = instance(seed, tables, held)
    requirements = Requirements(0.02, Traffic(rate=rate, sizes=Sizes(kind="lognormal")))
    start = time.perf_counter()
    problem = build_problem(profile, requirements, found)
    posed = time.perf_counter()
    choice = choose(problem, limit_s)
    solved = time.perf_counter()
    bound = Program(problem, candidate_options(problem)).relaxation_bound()
    asked = rate * requirements.traffic.sizes.mean_rows
    first = found[0]
    assert first is not None
    return SolveResult(
        seed=seed,
        tables=tables,
        rows=sum(t.size for t in first.accesses_by_rank),
        paths=len(profile.paths),
        options=len(problem.options),
        pose_s=round(posed - start, 3),
        solve_s=round(solved - posed, 3),
        gap=max(bound / choice.value - 1, 0.0),
        proven=choice.gap,
        served=choice.rows / asked,
        accuracy=choice.value / choice.rows,
        deployed=tuple(
            f"{problem.paths[o.path].path.name} ({o.lookups:.0%} of lookups on the device)"
            for o in (problem.options[i] for i in choice.options)
        ),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--rates", type=float, nargs="+", default=[20_000, 80_000], help="queries/s")
    parser.add_argument(
        "--held", type=float, nargs="+", default=[1.0, 0.3, 0.1], help="memories, times the above"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=3.4, help="seconds for the solver (3.4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    args = parser.parse_args(argv)
    results = []
    print(
        "queries/s  memory  seed  paths  options   pose s  solve s  gap to LP bound  proven  served  accuracy"
    )
    for seed, held, rate in product(range(args.seeds), args.held, args.rates):
        r = measure(seed, args.tables, rate, held, args.limit)
        results.append({"rate": rate, "held": held, **asdict(r)})
        print(
            f"{rate:9,.0f}{held:8g}{r.seed:6}{r.paths:7}{r.options:9}{r.pose_s:9.2f}{r.solve_s:9.2f}"
            f"{r.gap:17.1e}{r.proven:8.0e}{r.served:8.1%}{r.accuracy:10.5f}",
            flush=True,
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        save(args.json, {"limit_s": args.limit, "results": results})


if __name__ == "__main__":
    main()
