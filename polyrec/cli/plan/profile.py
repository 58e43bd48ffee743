"""`polyrec profile`: measures latency, memory and quality of bundles on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from polyrec.loadtest.arguments import non_negative_int

if TYPE_CHECKING:
    from polyrec.planner.profile import Profile

EXAMPLE = "polyrec profile runs/table runs/hybrid --devices auto --out profile.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    measured = parser.add_argument_group("what is measured")
    measured.add_argument("bundles", metavar="BUNDLE", nargs="*", help="bundle folders to measure")
    measured.add_argument("--devices", default="auto", help="auto, or names like cpu,gpu0 (default auto)")
    measured.add_argument(
        "--runtimes", help="runtimes, like onnx,openvino (default: onnx on a CPU, torch on a GPU)"
    )
    measured.add_argument(
        "--precisions", help="precisions of the dense net, like fp32,bf16,int8 (default: all of a runtime)"
    )
    measured.add_argument("--list", action="store_true", help="show this machine's devices and exit")
    measured.add_argument(
        "--front",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the server's time outside lanes (default: yes)",
    )
    measured.add_argument(
        "--tiers",
        action="store_true",
        help="also measure each bundle with part of its rows on disk, at four cuts of --seconds each, to "
        "plan for too little memory; writes a temporary file of the rows beside --out",
    )
    worth = parser.add_argument_group("quality")
    worth.add_argument("--data", help="measure the quality of each path on the test rows of these data")
    worth.add_argument(
        "--metric",
        choices=["information", "auc", "mrr", "ndcg", "accuracy"],
        default="information",
        help="quality metric: information gain (1 - NE, the default), auc, mrr, ndcg or accuracy at 0.5",
    )
    worth.add_argument(
        "--quality",
        metavar="BUNDLE=VALUE",
        action="append",
        default=[],
        help="quality of a bundle (of a nested width: BUNDLE.w16) that has no figures, without --data",
    )
    effort = parser.add_argument_group("effort")
    effort.add_argument("--seconds", type=float, default=8.0, help="measuring time per path (default 8)")
    effort.add_argument("--max-rows", type=int, default=4096, help="rows of the largest batch (default 4096)")
    effort.add_argument("--seed", type=non_negative_int, default=0, help="seed of the requests (default 0)")
    effort.add_argument(
        "--fresh", action="store_true", help="start over instead of resuming an interrupted run"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", help="profile file to write (default profile.json)", default="profile.json")
    output.add_argument(
        "--plot",
        metavar="PNG",
        help="plot the latencies to this file; without bundles, those of the profile at --out",
    )
    output.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import os

    # before torch is imported: one thread per lane, as in the server
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.list:
        return _list(args)
    if args.plot:
        from polyrec.models.files import require_target_file
        from polyrec.planner.profile import ProfileError
        from polyrec.report.page import require_matplotlib

        require_matplotlib()
        require_target_file(args.plot, ProfileError, "--plot")
    if not args.bundles and args.plot:
        from polyrec.planner.profile import load_profile

        return _plot(args, load_profile(args.out))
    from polyrec.cli.plan.profile_run import measure_profile

    profile = measure_profile(args)
    if args.plot:
        _plot(args, profile)
    if args.json:
        print(profile.model_dump_json(exclude_none=True))
    else:
        from polyrec.report.profile.summary import profile_lines

        print("\n".join(profile_lines(profile)))
        print(f"\nprofile: {args.out}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from polyrec.measure.machine.discover import discover
    from polyrec.report.profile.summary import machine_lines

    inventory = discover(Path(args.out).parent)
    if args.json:
        machine = inventory.machine.model_dump(exclude_none=True)
        print(json.dumps({"machine": machine, "unusable": inventory.unusable}))
        return 0
    print("\n".join(machine_lines(inventory.machine)))
    for name, why in inventory.unusable.items():
        print(f"not usable: {name}: {why}")
    return 0


def _plot(args: argparse.Namespace, profile: Profile) -> int:
    from polyrec.planner.profile import ProfileError
    from polyrec.report.chart import png
    from polyrec.report.profile.plot import draw

    try:
        Path(args.plot).write_bytes(png(draw(profile)))
    except OSError as e:
        raise ProfileError(f"cannot write '{args.plot}': {e.strerror}") from None
    return 0
