"""`polyrec plan`: chooses paths, lanes and the placement of rows; or sweeps requirements."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from polyrec.cli.plan.plan_output import check_outputs, stdout_to_stderr, write_figures

if TYPE_CHECKING:
    from pathlib import Path

    from polyrec.planner.deployment.proposal import Proposal
    from polyrec.planner.deployment.requirements import Requirements
    from polyrec.planner.plan import Plan
    from polyrec.planner.profile import Profile

EXAMPLE = "polyrec plan --profile profile.json --slo-ms 10 --traffic rate=400,sizes=mlperf --out plan.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_need(parser)
    _add_fleet(parser)
    _add_training(parser)
    _add_machine(parser)
    _add_questions(parser)
    _add_output(parser)


def _add_need(parser: argparse.ArgumentParser) -> None:
    need = parser.add_argument_group("requirements")
    need.add_argument("--profile", metavar="FILE", help="profile, made by `polyrec profile`")
    need.add_argument("--slo-ms", type=float, metavar="MS", help="latency SLO: the 99th percentile")
    need.add_argument(
        "--traffic",
        metavar="TEXT|FILE",
        help="rate=QUERIES_PER_S,sizes=lognormal:23|mlperf|heavy|fixed:23,arrivals=poisson|bursty|..., "
        "or a YAML or JSON file",
    )
    need.add_argument(
        "--swing",
        type=float,
        default=4.0,
        help="use spare memory for paths that suit traffic from 1/SWING to SWING times the rate; 1 for none "
        "(default 4)",
    )
    need.add_argument(
        "--quality",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="use this quality instead of the profile's, such as from an A/B test; repeatable",
    )


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--fleet",
        metavar="FILE",
        help="plan many nodes instead of one: a YAML file of node types with prices, and models with "
        "profiles, SLO and traffic by hour (docs/fleet.md); with --out, --pictures and --json only",
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
    training = parser.add_argument_group("training")
    training.add_argument(
        "--train",
        metavar="FILE",
        help="plan a training instead of serving: a YAML file of tables (or a calibration), the batch and "
        "the available nodes (docs/training-plan.md); with --out and --json only",
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--memory",
        metavar="DEVICE=SIZE,...",
        help="memory budgets, like gpu0=200MB,cpu=1GB,disk=50GB (default: the machine's)",
    )
    machine.add_argument(
        "--machine",
        metavar="FILE",
        help="YAML file of changes to the profiled machine's memories, lanes, links, disk, remote store or "
        "prices (docs/planner.md)",
    )
    machine.add_argument("--cores", type=int, help="CPU cores to use (default: the machine's)")
    machine.add_argument(
        "--lane",
        choices=["inline", "thread", "process"],
        help="kind of the CPU's lanes (default: inline on two cores or fewer, else process)",
    )


def _add_questions(parser: argparse.ArgumentParser) -> None:
    questions = parser.add_argument_group("questions")
    questions.add_argument(
        "--explain", metavar="PLAN", help="explain this plan file instead of making a plan"
    )
    questions.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V,V,...",
        help="compare plans for each value of slo (ms), rate, cores, memory.DEVICE or copies.DEVICE; "
        "repeatable, for all combinations",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="FILE", help="plan file to write")
    output.add_argument("--pictures", metavar="DIR", help="folder for charts of the plan (or the sweep)")
    output.add_argument("--json", action="store_true", help="print the plan (or the sweep) as JSON")


def run(args: argparse.Namespace) -> int:
    if len(kinds := [f"--{kind}" for kind in ("explain", "fleet", "train") if getattr(args, kind)]) > 1:
        from polyrec.planner.plan import PlanError

        raise PlanError(f"give one of {' and '.join(kinds)}")
    if args.explain:
        return _explain(args)
    if args.fleet:
        from polyrec.cli.plan.fleet_plan import run_fleet

        return run_fleet(args)
    if args.train:
        from polyrec.cli.plan.train_plan import run_training

        return run_training(args)
    _check_flags(args)
    check_outputs(args)
    profile, requirements = _load_inputs(args)
    if args.sweep:
        return _sweep(args, profile, requirements)
    from polyrec.planner.deployment.proposal import propose

    with stdout_to_stderr():
        proposal = propose(profile, requirements)
    plan = _with_preview(proposal.plan)
    if args.out:
        _save(plan, args.out)
    if args.pictures:
        _draw(proposal, args.pictures)
    _show(plan, args.json)
    if args.out and not args.json:
        print(f"\nplan: {args.out}; serve it: polyrec serve --plan {args.out}")
    return 0


def _with_preview(plan: Plan) -> Plan:
    """Adds what a simulation says of latency and the highest rate."""
    from polyrec.planner.simulation.preview import preview

    expected = plan.expected
    if expected is None:
        return plan
    served_rate = expected.rows_per_s / expected.traffic.sizes.mean_rows
    simulated = preview(plan, expected.traffic, served_rate)
    return plan.model_copy(update={"expected": expected.model_copy(update={"simulated": simulated})})


def _explain(args: argparse.Namespace) -> int:
    from polyrec.planner.plan import load_plan

    _show(load_plan(args.explain), args.json)
    return 0


def _show(plan: Plan, as_json: bool) -> None:
    if as_json:
        print(plan.model_dump_json(exclude_none=True))
        return
    from polyrec.planner.deployment.explain import page

    print("\n".join(page(plan)))


def _check_flags(args: argparse.Namespace) -> None:
    """Raises PlanError for missing or invalid flags."""
    import math

    from polyrec.planner.plan import MAX_BUDGET_MS, PlanError

    for flag in ("profile", "slo_ms", "traffic"):
        from_sweep = flag == "slo_ms" and any(text.startswith("slo=") for text in args.sweep or ())
        if getattr(args, flag) is None and not from_sweep:
            named = "--" + flag.replace("_", "-")
            raise PlanError(f"{named} is missing; example: {EXAMPLE} (or --explain PLAN)")
    for flag, least in (("slo_ms", 0.0), ("swing", None), ("cores", None)):
        value = getattr(args, flag)
        if value is None:
            continue
        low = value <= least if least is not None else value < 1
        if low or not math.isfinite(value):
            floor = "a positive number" if least is not None else "at least 1"
            raise PlanError(f"--{flag.replace('_', '-')} {value:g} must be {floor}")
    if args.slo_ms is not None and args.slo_ms > MAX_BUDGET_MS:
        raise PlanError(f"--slo-ms {args.slo_ms:g} is more than an hour, {MAX_BUDGET_MS:,}")
    if args.sweep and args.out:
        raise PlanError("--sweep makes many plans, --out writes one: omit one of them")


def _load_inputs(args: argparse.Namespace) -> tuple[Profile, Requirements]:
    import sys

    from polyrec.cli.plan.quality_argument import parse_quality
    from polyrec.planner.deployment.requirements import Requirements
    from polyrec.planner.devices import load_machine, parse_memory
    from polyrec.planner.plan import PlanError
    from polyrec.planner.profile import load_profile, on_machine, with_given_quality
    from polyrec.planner.traffic import parse_traffic

    profile = load_profile(args.profile)
    if profile.is_of_busy_machine:
        print(
            f"warning: '{args.profile}' was measured on a busy machine: other work held the core for "
            f"{profile.cpu_wait:.0%} of the time; real latencies may be far shorter; profile an idle machine",
            file=sys.stderr,
        )
    if args.machine:
        profile = on_machine(profile, load_machine(args.machine, profile.machine), args.machine)
    given = parse_quality(args.quality, "PATH=VALUE, like table@cpu=0.257", PlanError)
    profile = with_given_quality(profile, given)
    requirements = Requirements(
        slo_s=1.0 if args.slo_ms is None else args.slo_ms / 1e3,  # None: set by each step of the sweep
        traffic=parse_traffic(args.traffic),
        memory=parse_memory(args.memory, profile.machine) if args.memory else {},
        cores=args.cores,
        lane=args.lane,
        swing=args.swing,
    )
    return profile, requirements


def _save(plan: Plan, out: str) -> None:
    from pathlib import Path

    from polyrec.planner.plan import PlanError, save_plan

    target = Path(out)
    paths = tuple(p.model_copy(update={"bundle": _relative_bundle(p.bundle, target)}) for p in plan.paths)
    try:
        save_plan(plan.model_copy(update={"paths": paths}), target)
    except OSError as e:
        raise PlanError(f"cannot write plan '{out}': {e.strerror}") from None


def _relative_bundle(bundle: Path, plan: Path) -> Path:
    """Returns the bundle's path relative to the plan file, unless it was given as an absolute path."""
    import os
    from pathlib import Path

    if bundle.is_absolute():
        return bundle
    return Path(os.path.relpath(bundle.resolve(), plan.parent.resolve()))


def _sweep(args: argparse.Namespace, profile: Profile, requirements: Requirements) -> int:
    import json
    import sys

    from tqdm import tqdm

    from polyrec.planner.deployment.proposal import tables_of
    from polyrec.planner.deployment.sweep import lines, parse_sweep, plan_step, steps

    axes = [parse_sweep(text, profile.machine) for text in args.sweep]
    tables = tables_of(profile.paths)
    with stdout_to_stderr():
        points = [
            plan_step(profile, step, tables)
            for step in tqdm(
                steps(requirements, axes), desc="plan", unit=" plans", file=sys.stderr, disable=None
            )
        ]
    if args.pictures:
        from polyrec.report.plan.sweep import draw

        write_figures(args.pictures, {"frontier.png": draw(points, axes)})
    if args.json:
        print(json.dumps([point.as_dict() for point in points]))
    else:
        print("\n".join(lines(points, axes)))
    return 0


def _draw(proposal: Proposal, folder: str) -> None:
    from polyrec.report.plan import memory, routing_map

    write_figures(
        folder, {"choice.png": routing_map.draw(proposal), "memory.png": memory.draw(proposal.plan)}
    )
