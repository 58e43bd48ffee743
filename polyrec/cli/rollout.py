"""`polyrec rollout`: tries another version on a share of the requests, then promotes it or rolls back."""

from __future__ import annotations

import argparse

from polyrec.cli.rollout_options import add_start_options, share_of
from polyrec.loadtest.arguments import duration

EXAMPLE = "polyrec rollout start runs/new/plan.json --share .05 --by user_id --promote-after 1h"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument(
        "--url", default="http://127.0.0.1:8000", help="the server (default http://127.0.0.1:8000)"
    )
    server.add_argument("--model", metavar="NAME", help="one of several models; status: the first by default")
    server.add_argument("--json", action="store_true", help="print the status as JSON")
    calls = parser.add_subparsers(dest="call", metavar="CALL", required=True, title="calls")
    about = "the token comes from the variable POLYREC_ADMIN_TOKEN"

    start = calls.add_parser("start", parents=[server], help="open a version and send it its share")
    start.epilog = f"example: {EXAMPLE}; {about}"
    start.add_argument("plan", help="plan file, or folder of a bundle, on the server's machine or by URL")
    add_start_options(start)
    start.add_argument(
        "--wait", action="store_true", help="wait until it ends; the exit status is 3 if it was rolled back"
    )
    start.add_argument(
        "--timeout",
        type=duration,
        metavar="TIME",
        help="longest wait, like 10m; then the exit status is 4 and the rollout goes on",
    )

    calls.add_parser(
        "status", parents=[server], help="show both versions' figures and the last decision"
    ).epilog = f"example: polyrec rollout status; {about}"
    share = calls.add_parser("share", parents=[server], help="change the share")
    share.epilog = f"example: polyrec rollout share .2; {about}"
    share.add_argument("share", type=share_of, help="share of the requests, at most .5")
    for name, what in (("promote", "serve the version to all"), ("rollback", "end the rollout")):
        end = calls.add_parser(name, parents=[server], help=what)
        end.epilog = f"example: polyrec rollout {name} --reason 'ticket 7'; {about}"
        end.add_argument("--reason", help="for the log and the status")


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.rollout_call import run_call

    return run_call(args)
