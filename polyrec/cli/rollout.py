"""`polyrec rollout`: another version beside the one that serves, for a part of the requests."""

from __future__ import annotations

import argparse

from polyrec.loadtest.arguments import duration, positive_float, positive_int

EXAMPLE = "polyrec rollout start runs/new/plan.json --share .05 --by user_id --promote-after 1h"
TOKEN = "POLYREC_ADMIN_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument(
        "--url", default="http://127.0.0.1:8000", help="the server (default http://127.0.0.1:8000)"
    )
    server.add_argument("--model", metavar="NAME", help="one of several models (default: the first)")
    server.add_argument("--json", action="store_true", help="print the status as JSON")
    calls = parser.add_subparsers(dest="call", metavar="CALL", required=True, title="calls")
    about = f"the token comes from the variable {TOKEN}"

    start = calls.add_parser("start", parents=[server], help="open a version and send it its share")
    start.epilog = f"example: {EXAMPLE}; {about}"
    start.add_argument("plan", help="plan file, or folder of a bundle, on the server's machine")
    start.add_argument(
        "--share",
        type=share_of,
        default=0.05,
        help="share of the requests, at most .5; 0: only as a shadow (default .05)",
    )
    start.add_argument(
        "--shadow",
        type=share_of,
        default=0.1,
        help="share of the other requests answered by both versions in spare time, compared (default .1)",
    )
    start.add_argument(
        "--by",
        metavar="FIELD",
        help="context feature, or header:NAME: each of its values gets one version (default: any split)",
    )
    start.add_argument(
        "--promote-after",
        type=duration,
        metavar="TIME",
        help="promote once all bounds are shown to hold, not before: 10m, 1h (default: only by call)",
    )
    start.add_argument("--max-psi", type=positive_float, help="largest shift of the scores (default .1)")
    start.add_argument(
        "--max-loss",
        type=positive_float,
        help="largest expected loss of information, by requests answered by both (default .02)",
    )
    start.add_argument(
        "--max-failed", type=positive_float, help="largest share of failures above the stable's (default .01)"
    )
    start.add_argument(
        "--max-late",
        type=positive_float,
        help="largest share of late answers above the stable's (default .02)",
    )
    start.add_argument(
        "--max-slowdown", type=positive_float, help="largest factor on the stable's p95 (default 2)"
    )
    start.add_argument(
        "--slack-ms", type=float, help="milliseconds above the stable's p95 allowed in any case (default 5)"
    )
    start.add_argument(
        "--min-requests", type=positive_int, help="requests before latency and scores count (default 200)"
    )
    start.add_argument(
        "--wait", action="store_true", help="until it ends; the exit status is 3 if it was rolled back"
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


def share_of(text: str) -> float:
    """Parses a share, 0 to 1. Raises ArgumentTypeError."""
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return share


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.rollout_call import run_call

    return run_call(args)
