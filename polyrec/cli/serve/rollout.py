"""`polyrec rollout`: tries another version on a share of the requests, then promotes it or rolls back."""

from __future__ import annotations

import argparse

from polyrec.cli.serve.rollout_options import add_start_options, share_of
from polyrec.loadtest.arguments import duration

EXAMPLE = "polyrec rollout start runs/new/plan.json --share .05 --by user_id --promote-after 1h"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument(
        "--url", default="http://127.0.0.1:8000", help="the server (default http://127.0.0.1:8000)"
    )
    server.add_argument(
        "--model", metavar="NAME", help="model, if the server has several (status: default the first)"
    )
    server.add_argument("--json", action="store_true", help="print the status as JSON")
    calls = parser.add_subparsers(dest="call", metavar="CALL", required=True, title="calls")
    about = "the token comes from the variable POLYREC_ADMIN_TOKEN"

    start = calls.add_parser(
        "start", parents=[server], help="load a new version and send it a share of requests"
    )
    start.epilog = f"example: {EXAMPLE}; {about}"
    start.add_argument("plan", help="plan file or bundle folder on the server's machine, or its URL")
    add_start_options(start)
    start.add_argument(
        "--wait", action="store_true", help="wait until the rollout ends; exit status 3 if it was rolled back"
    )
    start.add_argument(
        "--timeout",
        type=duration,
        metavar="TIME",
        help="maximum wait, like 10m; after it, exit status 4, and the rollout continues",
    )

    calls.add_parser(
        "status", parents=[server], help="show both versions' figures and the last decision"
    ).epilog = f"example: polyrec rollout status; {about}"
    share = calls.add_parser("share", parents=[server], help="change the share of requests")
    share.epilog = f"example: polyrec rollout share .2; {about}"
    share.add_argument("share", type=share_of, help="share of the requests, at most .5")
    for name, what in (("promote", "send all requests to the new version"), ("rollback", "end the rollout")):
        end = calls.add_parser(name, parents=[server], help=what)
        end.epilog = f"example: polyrec rollout {name} --reason 'ticket 7'; {about}"
        how = end.add_mutually_exclusive_group()
        how.add_argument("--reason", help="reason, for the log and the status")
        if name == "rollback":
            how.add_argument(
                "--previous",
                action="store_true",
                help="without a rollout: return to the plan before the last promotion or reload",
            )


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.serve.rollout_call import run_call

    return run_call(args)
