"""Defines the options of a rollout's start: the requests that the canary gets, and its bounds."""

from __future__ import annotations

import argparse

from polyrec.loadtest.arguments import duration, positive_float, positive_int


def add_start_options(parser: argparse._ActionsContainer) -> None:
    """Adds all options of a start except for its plan."""
    parser.add_argument(
        "--share",
        type=share_of,
        default=0.05,
        help="share of the requests, at most .5; 0: only as a shadow (default .05)",
    )
    parser.add_argument(
        "--shadow",
        type=share_of,
        default=0.1,
        help="share of the other requests answered by both versions in spare time, compared (default .1)",
    )
    parser.add_argument(
        "--by",
        metavar="FIELD",
        help="context feature, or header:NAME: each of its values gets one version (default: any split)",
    )
    parser.add_argument(
        "--promote-after",
        type=duration,
        metavar="TIME",
        help="promote once all bounds are shown to hold, not before: 10m, 1h (default: only by call)",
    )
    parser.add_argument("--max-psi", type=positive_float, help="largest shift of the scores (default .1)")
    parser.add_argument(
        "--max-loss",
        type=positive_float,
        help="largest expected loss of information, by requests answered by both (default .02)",
    )
    parser.add_argument(
        "--max-live-loss",
        type=positive_float,
        help="largest loss of information on labeled requests, with --live-quality (default .01)",
    )
    parser.add_argument(
        "--max-failed", type=positive_float, help="largest share of failures above the stable's (default .01)"
    )
    parser.add_argument(
        "--max-late",
        type=positive_float,
        help="largest share of late answers above the stable's (default .02)",
    )
    parser.add_argument(
        "--max-slowdown", type=positive_float, help="largest factor on the stable's p95 (default 2)"
    )
    parser.add_argument(
        "--slack-ms", type=float, help="milliseconds above the stable's p95 allowed in any case (default 5)"
    )
    parser.add_argument(
        "--min-requests", type=positive_int, help="requests before latency and scores count (default 200)"
    )


def share_of(text: str) -> float:
    """Parses a share, 0 to 1. Raises ArgumentTypeError."""
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 1")
    return share
