"""`polyrec plan`: which paths to deploy, where every row lives, and why; or what other asks would give."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from polyrec.planner.deployment.proposal import Proposal
    from polyrec.planner.deployment.requirements import Requirements
    from polyrec.planner.plan import Plan
    from polyrec.planner.profile import Profile

HELP = "choose paths, lanes and the place of every row for a promise, a traffic and memory budgets"
EXAMPLE = "polyrec plan --profile profile.json --slo-ms 10 --traffic rate=400,sizes=mlperf --out plan.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", metavar="FILE", help="what `polyrec profile` measured")
    parser.add_argument("--slo-ms", type=float, metavar="MS", help="the promise: 99%% of answers within this")
    parser.add_argument(
        "--traffic",
        metavar="TEXT|FILE",
        help="rate=QUERIES_A_SECOND,sizes=lognormal:23|mlperf|heavy|fixed:23,arrivals=poisson|bursty|..., "
        "or a YAML or JSON file",
    )
    parser.add_argument(
        "--memory", metavar="DEVICE=SIZE,...", help="budgets like gpu0=200MB,cpu=1GB (default: the machine's)"
    )
    parser.add_argument(
        "--machine",
        metavar="FILE",
        help="YAML file that changes the profiled machine's memories, lanes, links, disk, store, prices",
    )
    parser.add_argument("--cores", type=int, help="CPU cores to use (default: the machine's)")
    parser.add_argument(
        "--lane",
        choices=["inline", "thread", "process"],
        help="kind of the CPU's lanes (default: inline on two cores or fewer, else process)",
    )
    parser.add_argument(
        "--swing",
        type=float,
        default=4.0,
        help="memory left over takes paths in reserve for so many times the rate, and as many times less; "
        "1: none (default 4)",
    )
    parser.add_argument("--out", metavar="FILE", help="plan file to write")
    parser.add_argument("--explain", metavar="PLAN", help="print a plan file as a page instead of making one")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V,V,...",
        help="plan for each value of slo (ms), rate, cores, memory.DEVICE or copies.DEVICE, and show what "
        "each gives; repeatable, all combinations",
    )
    parser.add_argument("--pictures", metavar="DIR", help="draw the plan (or the sweep) into this folder")
    parser.add_argument("--json", action="store_true", help="print the plan (or the sweep) as JSON")


def run(args: argparse.Namespace) -> int:
    if args.explain:
        return _explained(args)
    _refuse(args)
    if args.pictures:
        from polyrec.report.page import require_matplotlib

        require_matplotlib()
    profile, requirements = _asked(args)
    if args.sweep:
        return _swept(args, profile, requirements)
    from polyrec.planner.deployment.proposal import propose

    with _stray_lines_aside():
        proposal = propose(profile, requirements)
    if args.out:
        _saved(proposal.plan, args.out)
    if args.pictures:
        _drawn(proposal, args.pictures)
    _shown(proposal.plan, args.json)
    if args.out and not args.json:
        print(f"\nplan: {args.out}; serve it: polyrec serve --plan {args.out}")
    return 0


@contextmanager
def _stray_lines_aside() -> Iterator[None]:
    """The solver prints a line now and then, from C, whatever it is told; --json must stay JSON."""
    import os
    import sys

    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _explained(args: argparse.Namespace) -> int:
    from polyrec.planner.plan import load_plan

    _shown(load_plan(args.explain), args.json)
    return 0


def _shown(plan: Plan, as_json: bool) -> None:
    if as_json:
        print(plan.model_dump_json(exclude_none=True))
        return
    from polyrec.planner.deployment.explain import page

    print("\n".join(page(plan)))


def _refuse(args: argparse.Namespace) -> None:
    """Raises PlanError for flags that are missing or mean nothing."""
    import math

    from polyrec.planner.plan import MOST_BUDGET_MS, PlanError

    for flag in ("profile", "slo_ms", "traffic"):
        each_its_own = flag == "slo_ms" and any(text.startswith("slo=") for text in args.sweep or ())
        if getattr(args, flag) is None and not each_its_own:
            named = "--" + flag.replace("_", "-")
            raise PlanError(f"{named} is missing; like {EXAMPLE} (or --explain PLAN)")
    for flag, least in (("slo_ms", 0.0), ("swing", None), ("cores", None)):
        value = getattr(args, flag)
        if value is None:
            continue
        low = value <= least if least is not None else value < 1
        if low or not math.isfinite(value):
            floor = "a positive number" if least is not None else "at least 1"
            raise PlanError(f"--{flag.replace('_', '-')} {value:g} must be {floor}")
    if args.slo_ms is not None and args.slo_ms > MOST_BUDGET_MS:
        raise PlanError(f"--slo-ms {args.slo_ms:g} is more than an hour, {MOST_BUDGET_MS:,}")
    if args.sweep and args.out:
        raise PlanError("--sweep makes many plans, --out writes one: leave one of them out")


def _asked(args: argparse.Namespace) -> tuple[Profile, Requirements]:
    from polyrec.planner.deployment.requirements import Requirements
    from polyrec.planner.devices import load_machine, parse_memory
    from polyrec.planner.profile import load_profile, on_machine
    from polyrec.planner.traffic import parse_traffic

    profile = load_profile(args.profile)
    if args.machine:
        profile = on_machine(profile, load_machine(args.machine), args.machine)
    requirements = Requirements(
        slo_s=1.0 if args.slo_ms is None else args.slo_ms / 1e3,  # None: each step of the sweep has its own
        traffic=parse_traffic(args.traffic),
        memory=parse_memory(args.memory, profile.machine) if args.memory else {},
        cores=args.cores,
        lane=args.lane,
        swing=args.swing,
    )
    return profile, requirements


def _saved(plan: Plan, out: str) -> None:
    from pathlib import Path

    from polyrec.planner.plan import PlanError, save_plan

    target = Path(out)
    paths = tuple(p.model_copy(update={"bundle": _beside(p.bundle, target)}) for p in plan.paths)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_plan(plan.model_copy(update={"paths": paths}), target)
    except OSError as e:
        raise PlanError(f"cannot write plan '{out}': {e.strerror}") from None


def _beside(bundle: Path, plan: Path) -> Path:
    """A bundle as the plan file names it: relative, unless it was given absolute."""
    import os
    from pathlib import Path

    if bundle.is_absolute():
        return bundle
    return Path(os.path.relpath(bundle.resolve(), plan.parent.resolve()))


def _swept(args: argparse.Namespace, profile: Profile, requirements: Requirements) -> int:
    import json
    import sys

    from tqdm import tqdm

    from polyrec.planner.deployment.proposal import tables_of
    from polyrec.planner.deployment.sweep import lines, parse_sweep, plan_step, steps

    axes = [parse_sweep(text, profile.machine) for text in args.sweep]
    tables = tables_of(profile.paths)
    with _stray_lines_aside():
        points = [
            plan_step(profile, step, tables)
            for step in tqdm(
                steps(requirements, axes), desc="plan", unit=" plans", file=sys.stderr, disable=None
            )
        ]
    if args.pictures:
        from polyrec.report.plan.sweep import draw

        _written(args.pictures, {"frontier.png": draw(points, axes)})
    if args.json:
        print(json.dumps([point.as_dict() for point in points]))
    else:
        print("\n".join(lines(points, axes)))
    return 0


def _drawn(proposal: Proposal, folder: str) -> None:
    from polyrec.report.plan import memory, routing_map

    _written(folder, {"choice.png": routing_map.draw(proposal), "memory.png": memory.draw(proposal.plan)})


def _written(folder: str, figures: dict[str, Figure]) -> None:
    from pathlib import Path

    from polyrec.planner.plan import PlanError
    from polyrec.report.chart import png

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            (Path(folder) / name).write_bytes(png(figure))
    except OSError as e:
        raise PlanError(f"cannot write pictures to '{folder}': {e.strerror}") from None
