"""Writes the plan that deploy/compose.yaml serves: every width of the demo's table, with cold rows in Redis.

Run `polyrec demo --once` first. For a model as small as the demo's, `polyrec plan` often chooses a single
path. This plan is meant to show routing and tiers, so it has all fp32 paths.

    python deploy/compose_plan.py [--demo runs/demo] [--store redis://redis:6379] [--hot 0.3]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts
from polyrec.planner.placement import PlacedPath, Placement
from polyrec.planner.plan import Plan, load_plan, save_plan
from polyrec.planner.profile import load_profile

NAME = "compose.json"


def plan_with_store(demo: Path, store: str, hot: float) -> Plan:
    """Returns the demo's plan with all its fp32 paths.

    hot: share of each table's rows, by popularity, that stay in memory; the others are in the store.
    """
    plan, profile = load_plan(demo / "plan.json"), load_profile(demo / "profile.json")
    assert plan.placement is not None
    (placed, *_) = plan.placement.paths
    cuts = {}
    for table, cut in placed.tables.items():
        rows = cut.device + cut.host + cut.disk + cut.remote
        host = max(1, int(hot * rows))
        cuts[table] = TierCuts(host=host, remote=rows - host)
    paths = tuple(
        # a plan names its bundles relative to its own file
        profiled.path.model_copy(
            update={
                "bundle": Path(profiled.path.bundle.name),
                "latency": profiled.latency,
                "quality": profiled.quality,
                "accuracy": profiled.accuracy,
            }
        )
        for profiled in profile.paths
        if profiled.path.precision == "fp32"
    )
    names = {path.name for path in paths}
    differences = tuple(d for d in profile.differences if {d.path, d.other} <= names)
    placement = Placement(
        paths=tuple(PlacedPath(path=path.name, tables=cuts) for path in paths),
        remote=RemoteStore(url=store, fill=True),
    )
    return plan.model_copy(
        update={"paths": paths, "differences": differences, "placement": placement, "expected": None}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="folder of `polyrec demo`")
    parser.add_argument("--store", default="redis://redis:6379", help="URL of the store")
    parser.add_argument("--hot", type=float, default=0.3, help="share of each table's rows in memory")
    args = parser.parse_args()
    file = args.demo / NAME
    save_plan(plan_with_store(args.demo, args.store, args.hot), file)
    print(file)


if __name__ == "__main__":
    main()
