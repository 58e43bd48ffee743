"""Defines the options that start a rollout: the canary's share of requests, and its bounds."""

from __future__ import annotations

import argparse

from polyrec.loadtest.arguments import duration, positive_float, positive_int


def add_start_options(parser: argparse._ActionsContainer, promote_after: str | None = None) -> None:
    """Adds all options of a start except for its plan.

    promote_after: default of --promote-after, such as '10m' (None: no promotion without a command).
    """
    parser.add_argument(
        "--share",
        type=share_of,
        default=0.05,
        help="share of requests for the new version, at most .5; 0: shadow only (default .05)",
    )
    parser.add_argument(
        "--shadow",
        type=share_of,
        default=0.1,
        help="share of the other requests that both versions answer, in spare time, to compare (default .1)",
    )
    parser.add_argument(
        "--compare-per-s",
        type=float,
        default=10.0,
        metavar="N",
        help="requests a second that both versions answer, to compare, whatever the load (default 10)",
    )
    parser.add_argument(
        "--by",
        metavar="FIELD",
        help="split requests by this context feature or header:NAME, so that each of its values gets one "
        "version (default: individually)",
    )
    parser.add_argument(
        "--promote-after",
        type=duration,
        default=promote_after,
        metavar="TIME",
        help="promote once all bounds are shown to hold, not before this time: 1h "
        f"(default{f' {promote_after}' if promote_after else ': only by command'})",
    )
    parser.add_argument(
        "--max-psi", type=positive_float, help="maximum shift of the scores, as PSI (default .1)"
    )
    parser.add_argument(
        "--max-loss",
        type=positive_float,
        help="maximum expected loss of information, on requests that both versions answer (default .02)",
    )
    parser.add_argument(
        "--max-live-loss",
        type=positive_float,
        help="maximum loss of information on labeled requests, with --live-quality (default .01)",
    )
    parser.add_argument(
        "--max-failed",
        type=positive_float,
        help="maximum excess of the share of failures over the stable version's (default .01)",
    )
    parser.add_argument(
        "--max-late",
        type=positive_float,
        help="maximum excess of the share of late answers over the stable version's (default .02)",
    )
    parser.add_argument(
        "--max-slowdown",
        type=positive_float,
        help="maximum p95 latency as a factor of the stable version's (default 2)",
    )
    parser.add_argument(
        "--slack-ms",
        type=float,
        help="milliseconds above the stable version's p95 that are always allowed (default 5)",
    )
    parser.add_argument(
        "--min-requests",
        type=positive_int,
        help="number of requests before latency and scores are judged (default 200)",
    )
    parser.add_argument(
        "--judge-within",
        type=duration,
        metavar="TIME",
        help="roll back if there were never that many requests to judge by for this time (default 1h)",
    )


def share_of(text: str) -> float:
    """Parses a share, 0 to 1. Raises ArgumentTypeError."""
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return share
