"""`polyrec cluster`: replicas of a server on the nodes of a Ray cluster, behind one port."""

from __future__ import annotations

import argparse

from polyrec.loadtest.arguments import positive_float, positive_int

EXAMPLE = "polyrec cluster up --plan plan.json --replicas 2 --port 8000"
WAYS = ("balancer", "ray", "ray-haproxy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    ray = argparse.ArgumentParser(add_help=False)
    ray.add_argument("--address", help="host:port of the Ray head node (default: the Ray on this machine)")
    calls = parser.add_subparsers(dest="call", metavar="CALL", required=True, title="calls")

    up = calls.add_parser("up", parents=[ray], help="start replicas and the ingress; starts Ray if none runs")
    up.epilog = f"example: {EXAMPLE}"
    up.add_argument(
        "--plan",
        action="append",
        required=True,
        metavar="[TYPE=]FILE",
        help="plan file, at the same path on every node; with --fleet-plan, one per node type",
    )
    count = up.add_mutually_exclusive_group()
    count.add_argument("--replicas", type=positive_int, metavar="N", help="replicas (default 1)")
    count.add_argument(
        "--fleet-plan", metavar="FILE", help="plan of `polyrec plan --fleet`: one replica on each node"
    )
    count.add_argument(
        "--autoscale", type=replica_range, metavar="MIN:MAX", help="scale replicas with the backlog"
    )
    up.add_argument("--hour", type=int, help="hour of the fleet plan (default: the most nodes of each type)")
    up.add_argument(
        "--target-demand",
        type=positive_float,
        metavar="SHARE",
        help="start another replica when demand exceeds this share of capacity (default .6)",
    )
    up.add_argument(
        "--worth",
        type=positive_float,
        metavar="PRICE",
        help="start another replica when a second on a replica's most expensive device is worth this much",
    )
    up.add_argument("--host", default="127.0.0.1", help="address of the ingress (default 127.0.0.1)")
    up.add_argument("--port", type=positive_int, default=8000, help="port of the ingress (default 8000)")
    up.add_argument("--way", choices=WAYS, default="balancer", help="kind of ingress (default balancer)")
    up.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="NAME=N",
        help="Ray resource that a replica reserves: CPU, GPU or a custom one of `ray start --resources` "
        "(default: what the plan's lanes need); repeatable",
    )
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the servers, as for `polyrec serve`, like drain_grace_s=2; repeatable",
    )

    status = calls.add_parser("status", parents=[ray], help="show replicas and their state")
    status.add_argument("--json", action="store_true", help="print as JSON")
    roll = calls.add_parser("roll", parents=[ray], help="roll out another plan, one replica at a time")
    roll.epilog = "example: polyrec cluster roll --plan new.json"
    roll.add_argument("--plan", required=True, metavar="[TYPE=]FILE", help="plan file")
    scale = calls.add_parser(
        "scale", parents=[ray], help="change the number of replicas; removed ones drain first"
    )
    scale.add_argument("replicas", type=positive_int, metavar="N", help="replicas")
    scale.add_argument("--type", help="node type, for a cluster of a fleet plan")
    down = calls.add_parser("down", parents=[ray], help="stop replicas and ingress, but not Ray")
    down.epilog = "`ray stop` stops Ray"


def replica_range(text: str) -> tuple[int, int]:
    """Parses MIN:MAX. Raises ArgumentTypeError."""
    least, _, most = text.partition(":")
    if not (least.isdigit() and most.isdigit() and 1 <= int(least) <= int(most)):
        raise argparse.ArgumentTypeError(f"'{text}' is not MIN:MAX, such as 2:8")
    return int(least), int(most)


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.serve.cluster_call import run_call

    return run_call(args)
