"""`polyrec load`: open-loop load on a server, at exact times, with a report."""

from __future__ import annotations

import argparse
import os

from polyrec.loadtest.arguments import non_negative_int, positive_float

HELP = "send requests at appointed times, whatever the server does, and report how they fared"
EXAMPLE = "polyrec load http://127.0.0.1:8000 --bundle runs/demo/table --rate 500 --report out"
DRIVER_TOO_SLOW = 3
"""Exit status if the driver itself could not keep up, so that there are no figures."""
SLO_MISSED = 4
"""Exit status if fewer requests than --slo-share were answered in time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", help="http://host:port/path; with --bundle, http://host:port is enough")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--rate", type=positive_float, help="mean requests per second, Poisson")
    when.add_argument("--traffic", help="rate=400,sizes=mlperf,arrivals=bursty, or a YAML or JSON file")
    add("--seconds", type=positive_float, default=10.0, help="measured time (10)")
    add("--warmup", type=float, default=1.0, metavar="SECONDS", help="sent before, and left out (1)")
    add("--seed", type=non_negative_int, default=0, help="of the schedule and of what is drawn (0)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--body", metavar="FILE", help="the body of every request; without, GET")
    which.add_argument("--bodies", metavar="FILE", help="one body a line, taken in turn")
    which.add_argument("--bundle", metavar="DIR", help="send rankings for the schema of this bundle")
    add("--data", metavar="FILE", help="with --bundle: real rows to ask about (default: invented ones)")
    add(
        "--replay",
        metavar="COLUMN",
        help="with --data: in the order and rhythm of this column of seconds, at the rate",
    )
    add(
        "--budget-ms", type=positive_float, help="latency budget of each request, sent as X-Latency-Budget-Ms"
    )
    add(
        "--slo-share",
        type=float,
        help=f"exit status {SLO_MISSED} if fewer were in time, e.g. 0.99",
    )
    add("--header", action="append", default=[], metavar="'NAME: VALUE'", help="more headers; repeatable")
    add("--connections", type=int, default=16, help="opened beforehand (16)")
    add("--max-connections", type=int, default=1024, help="at most (1024)")
    add("--grace", type=float, default=10.0, metavar="SECONDS", help="wait for last answers (10)")
    add("--max-lag-ms", type=float, default=1.0, help="p99 of the driver's own lag that is accepted (1)")
    add("--core", type=int, choices=sorted(os.sched_getaffinity(0)), help="pin the driver to this core")
    add("--report", metavar="DIR", help="write report.html, report.png and report.json there")
    add("--json", action="store_true", help="the figures as JSON")


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.open_loop import run_load

    return run_load(args)
