"""`polyrec cluster`: replicas of a server on the nodes of a Ray cluster, behind one port."""

from __future__ import annotations

import argparse

from polyrec.loadtest.arguments import positive_float, positive_int

EXAMPLE = "polyrec cluster up --plan plan.json --replicas 2 --port 8000"
WAYS = ("balancer", "ray", "ray-haproxy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    ray = argparse.ArgumentParser(add_help=False)
    ray.add_argument("--address", help="host:port of Ray's head (default: the Ray that runs on this machine)")
    calls = parser.add_subparsers(dest="call", metavar="CALL", required=True, title="calls")

    up = calls.add_parser("up", parents=[ray], help="start replicas and the ingress; starts Ray if none runs")
    up.epilog = f"example: {EXAMPLE}"
    up.add_argument(
        "--plan",
        action="append",
        required=True,
        metavar="[TYPE=]FILE",
        help="plan file, at the same path on every node; with --fleet-plan one for each type of node",
    )
    count = up.add_mutually_exclusive_group()
    count.add_argument("--replicas", type=positive_int, metavar="N", help="replicas (default 1)")
    count.add_argument(
        "--fleet-plan", metavar="FILE", help="a replica on each node of each type of this plan"
    )
    count.add_argument(
        "--autoscale", type=replica_range, metavar="LEAST:MOST", help="replicas follow the backlog"
    )
    up.add_argument("--hour", type=int, help="of the fleet plan (default: the most nodes of any hour)")
    up.add_argument(
        "--target-demand",
        type=positive_float,
        metavar="SHARE",
        help="of the capacity at which another replica is started (default .6)",
    )
    up.add_argument(
        "--worth",
        type=positive_float,
        metavar="PRICE",
        help="price of a second of a replica's most expensive device from which another replica is started",
    )
    up.add_argument("--host", default="127.0.0.1", help="of the ingress (default 127.0.0.1)")
    up.add_argument("--port", type=positive_int, default=8000, help="of the ingress (default 8000)")
    up.add_argument("--way", choices=WAYS, default="balancer", help="ingress (default balancer)")
    up.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="NAME=N",
        help="of one replica: CPU, GPU or any of `ray start --resources` (default: the plan's lanes)",
    )
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the servers, as of `polyrec serve`: drain_grace_s=2",
    )

    status = calls.add_parser("status", parents=[ray], help="show replicas and their state")
    status.add_argument("--json", action="store_true", help="print as JSON")
    roll = calls.add_parser("roll", parents=[ray], help="open another plan on one replica after the other")
    roll.epilog = "example: polyrec cluster roll --plan new.json"
    roll.add_argument("--plan", required=True, metavar="[TYPE=]FILE", help="plan file")
    scale = calls.add_parser(
        "scale", parents=[ray], help="change the number of replicas; those that end drain"
    )
    scale.add_argument("replicas", type=positive_int, metavar="N", help="replicas")
    scale.add_argument("--type", help="type of node, with a fleet plan")
    down = calls.add_parser("down", parents=[ray], help="end replicas and the ingress; Ray stays")
    down.epilog = "`ray stop` ends Ray"


def replica_range(text: str) -> tuple[int, int]:
    """Parses LEAST:MOST. Raises ArgumentTypeError."""
    least, _, most = text.partition(":")
    if not (least.isdigit() and most.isdigit() and 1 <= int(least) <= int(most)):
        raise argparse.ArgumentTypeError(f"'{text}' is not LEAST:MOST, such as 2:8")
    return int(least), int(most)


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.cluster_call import run_call

    return run_call(args)
