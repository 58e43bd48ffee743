"""`polyrec load`: open-loop load on a server, at exact times, with a report."""

from __future__ import annotations

import argparse
import os

from polyrec.loadtest.arguments import non_negative_int, positive_float

HELP = "send requests at scheduled times, whatever the server does, and report latency and outcomes"
EXAMPLE = "polyrec load http://127.0.0.1:8000 --bundle runs/demo/table --rate 500 --report out"
DRIVER_TOO_SLOW = 3
"""Exit status if the driver itself was late, so that there are no figures."""
SLO_MISSED = 4
"""Exit status if fewer requests than --slo-share were answered in time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", help="http://host:port/path; with --bundle, http://host:port is enough")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--rate", type=positive_float, help="mean requests/s, Poisson")
    when.add_argument("--traffic", help="rate=400,sizes=mlperf,arrivals=bursty, or a YAML or JSON file")
    add("--seconds", type=positive_float, default=10.0, help="measured time (default 10)")
    add(
        "--warmup",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="warm-up before the measured time (default 1)",
    )
    add("--seed", type=non_negative_int, default=0, help="seed of schedule and requests (default 0)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--body", metavar="FILE", help="body of every request (default: GET without a body)")
    which.add_argument("--bodies", metavar="FILE", help="one body per line, sent in turn")
    which.add_argument("--bundle", metavar="DIR", help="send rankings of this bundle's schema")
    add("--data", metavar="FILE", help="with --bundle: rows of requests (default: synthetic rows)")
    add(
        "--replay",
        metavar="COLUMN",
        help="with --data: replay the times in this column (seconds), scaled to the rate",
    )
    add(
        "--budget-ms", type=positive_float, help="latency budget of each request, sent as X-Latency-Budget-Ms"
    )
    add(
        "--slo-share",
        type=float,
        help=f"exit status {SLO_MISSED} if a smaller share was in budget, like 0.99",
    )
    add(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="additional header; repeatable"
    )
    add("--connections", type=int, default=16, help="connections opened beforehand (default 16)")
    add("--max-connections", type=int, default=1024, help="most connections (default 1024)")
    add("--grace", type=float, default=10.0, metavar="SECONDS", help="wait for the last answers (default 10)")
    add("--max-lag-ms", type=float, default=1.0, help="accepted p99 of the driver's own lag (default 1)")
    add("--core", type=int, choices=sorted(os.sched_getaffinity(0)), help="pin the driver to this core")
    add("--report", metavar="DIR", help="folder for report.html, report.png and report.json")
    add("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.open_loop import run_load

    return run_load(args)
