"""Compares a plan's forecast with its simulation by the same router on virtual lanes.

    python -m benchmarks.routing.plan_simulated \
        --profile runs/profile.json [--json docs/results/plan-simulated.json]

For each rate, a plan is made for one core and simulated with the traffic that it was made for. Shares are of
rows; `simulated` counts rows answered within the SLO. Nothing is timed on real hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command_parser, save
from polyrec.models.amounts import percent
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.deployment.proposal import propose, tables_of
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.profile import load_profile
from polyrec.planner.simulation.simulator import Simulator, specs
from polyrec.planner.traffic import parse_traffic

TRAFFICS = {
    "lognormal:23": (1000, 2000, 3000, 4000, 5000, 6000),
    "mlperf": (100, 200, 400, 600, 800, 1000),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("--profile", default="runs/profile.json")
    parser.add_argument("--slo-ms", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=6.0, help="of virtual time, the first left out (6)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    profile = load_profile(args.profile)
    tables = tables_of(profile.paths)
    results: list[dict[str, Any]] = []
    print("sizes         queries/s   plan: served  accuracy   simulated: served  accuracy  p99 ms")
    for sizes, rates in TRAFFICS.items():
        for rate in rates:
            traffic = parse_traffic(f"rate={rate},sizes={sizes}")
            requirements = Requirements(args.slo_ms / 1e3, traffic, cores=1)
            plan = propose(profile, requirements, tables, bounds=False, more=False).plan
            expected = plan.expected
            assert expected is not None
            random = np.random.default_rng(0)
            arrivals = arrival_times(traffic.arrivals, traffic.rate, args.seconds, random)
            rows = traffic.sizes.sample(arrivals.size, random)
            paths, lanes = specs(plan)
            simulator = Simulator(
                paths, lanes, plan.routing, plan.limits, arrivals, rows, requirements.slo_s, random
            )
            outcomes = simulator.run()
            seen = outcomes.figures(1.0)
            served = seen.goodput / seen.rows_s
            print(
                f"{sizes:<14}{rate:9,}{percent(expected.served):>15}{expected.quality:>10.5f}"
                f"{percent(served):>20}{seen.quality:>10.5f}{1e3 * seen.p99_s:>8.1f}"
            )
            results.append(
                {
                    "sizes": sizes,
                    "queries_per_s": rate,
                    "plan": {"served": expected.served, "accuracy": expected.quality},
                    "plan_paths": {p.path: p.share for p in expected.paths},
                    "simulated": {"served": served, "accuracy": seen.quality, "p99_s": seen.p99_s},
                    "simulated_paths": seen.paths,
                }
            )
    save(args.json, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
