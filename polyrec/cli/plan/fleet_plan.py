"""`polyrec plan --fleet`: plans the nodes of each type, the paths on them, and the cost."""

from __future__ import annotations

import argparse


def run_fleet(args: argparse.Namespace) -> int:
    """Plans the fleet of `args.fleet`. Raises PolyrecError."""
    from polyrec.cli.plan.described_plan import refuse_other_flags, write_plan
    from polyrec.cli.plan.plan_output import check_outputs, stdout_to_stderr, write_figures
    from polyrec.planner.fleet.provisioning.capability import load_profiles
    from polyrec.planner.fleet.provisioning.description import FleetError, load_fleet
    from polyrec.planner.fleet.provisioning.explain import page
    from polyrec.planner.fleet.provisioning.fleet_plan import plan_fleet

    refuse_other_flags(args, args.fleet, FleetError)
    check_outputs(args)
    fleet = load_fleet(args.fleet)
    with stdout_to_stderr():
        plan = plan_fleet(fleet, load_profiles(fleet))
    if args.pictures:
        from polyrec.report.chart import draw
        from polyrec.report.plan.fleet import charts

        write_figures(args.pictures, {"fleet.png": draw(charts(plan, fleet))})
    write_plan(args, plan.as_dict(), page(plan), "fleet plan", FleetError)
    return 0
