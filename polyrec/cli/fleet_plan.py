"""`polyrec plan --fleet`: plans the nodes of each type, the paths on them, and the cost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyrec.models.errors import PolyrecError

SINGLE_MACHINE = ("profile", "slo_ms", "traffic", "memory", "machine", "cores", "lane")


def run_fleet(args: argparse.Namespace) -> int:
    """Plans the fleet of `args.fleet`. Raises PolyrecError."""
    import json
    from pathlib import Path

    from polyrec.cli.plan import stdout_to_stderr, write_figures
    from polyrec.models.files import write_text
    from polyrec.planner.fleet.provisioning.capability import load_profiles
    from polyrec.planner.fleet.provisioning.description import FleetError, load_fleet
    from polyrec.planner.fleet.provisioning.explain import page
    from polyrec.planner.fleet.provisioning.fleet_plan import plan_fleet

    refuse_other_flags(args, args.fleet, FleetError)
    if args.pictures:
        from polyrec.report.page import require_matplotlib

        require_matplotlib()
    fleet = load_fleet(args.fleet)
    with stdout_to_stderr():
        plan = plan_fleet(fleet, load_profiles(fleet))
    if args.pictures:
        from polyrec.report.chart import draw
        from polyrec.report.plan.fleet import charts

        write_figures(args.pictures, {"fleet.png": draw(charts(plan, fleet))})
    text = json.dumps(plan.as_dict(), indent=None if args.json else 1)
    if args.out:
        try:
            write_text(Path(args.out), text + "\n")
        except OSError as e:
            raise FleetError(f"cannot write fleet plan '{args.out}': {e.strerror}") from None
    print(text if args.json else "\n".join(page(plan)))
    return 0


def refuse_other_flags(args: argparse.Namespace, file: str, error: type[PolyrecError]) -> None:
    """Raises an error for options that belong to a plan of one machine; `file` has them instead."""
    given = [flag for flag in SINGLE_MACHINE if getattr(args, flag) is not None]
    if given or args.sweep or args.quality:
        named = "--" + (given[0].replace("_", "-") if given else "sweep" if args.sweep else "quality")
        raise error(f"{named} belongs to a plan of one machine; write it into '{file}'")
