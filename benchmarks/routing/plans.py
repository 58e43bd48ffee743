"""Makes plans of named paths, for benchmarks of paths that a planner would omit.

    python -m benchmarks.routing.plans hybrid@cpu hybrid-hot.int8@cpu table-int8.int8@cpu table@cpu \\
        table.int8@cpu --profile runs/profile.json --out runs/plan-all.json
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import command_parser
from polyrec.planner.plan import Plan, PlannedLane, Routing, save_plan
from polyrec.planner.profile import load_profile
from polyrec.planner.quality import differences_of


def plan_of(profile: Path, paths: Sequence[str], lanes: int, kind: str, slo_ms: float) -> Plan:
    """Returns a plan of paths of the profile on CPU lanes. Raises SystemExit for an unknown path."""
    measured = load_profile(profile)
    known = {p.path.name: p for p in measured.paths}
    if missing := [name for name in paths if name not in known]:
        raise SystemExit(f"the profile has no path '{missing[0]}'; it has {', '.join(known)}")
    chosen = tuple(
        known[name].path.model_copy(
            update={k: getattr(known[name], k) for k in ("quality", "accuracy", "latency")}
        )
        for name in paths
    )
    executors = tuple(
        PlannedLane.model_validate({"name": f"cpu.{i}", "device": "cpu", "kind": kind}) for i in range(lanes)
    )
    front = measured.front
    routing = Routing() if front is None else Routing(query_s=front.query_s, row_s=front.row_s)
    return Plan(
        paths=chosen,
        metric=measured.metric,
        differences=differences_of(paths, measured.differences),
        lanes=executors,
        default_budget_ms=slo_ms,
        routing=routing,
    )


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("paths", nargs="+", help="names of the profile's paths")
    parser.add_argument("--profile", type=Path, required=True, help="by polyrec profile")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--lane", default="inline", choices=["inline", "thread", "process"])
    parser.add_argument("--slo-ms", type=float, default=10.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plan = plan_of(args.profile, args.paths, args.lanes, args.lane, args.slo_ms)
    beside = tuple(
        path.model_copy(
            update={"bundle": Path(os.path.relpath(path.bundle.resolve(), args.out.parent.resolve()))}
        )
        for path in plan.paths
    )
    save_plan(plan.model_copy(update={"paths": beside}), args.out)


if __name__ == "__main__":
    main()
