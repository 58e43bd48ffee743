"""`polyrec load`: open-loop load on a server, at exact times, with a report."""

from __future__ import annotations

import argparse
import os

from polyrec.cli.measure.exit_status import SLO_MISSED
from polyrec.loadtest.arguments import non_negative_int, positive_float

EXAMPLE = "polyrec load http://127.0.0.1:8000 --bundle runs/demo/table --rate 500 --report out"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sent = parser.add_argument_group("what is sent")
    sent.add_argument(
        "url",
        help="http://host:port/path; with --bundle http://host:port, or .../v1/models/NAME of several",
    )
    which = sent.add_mutually_exclusive_group()
    which.add_argument("--body", metavar="FILE", help="body of every request (default: GET without a body)")
    which.add_argument("--bodies", metavar="FILE", help="one body per line, sent in turn")
    which.add_argument("--bundle", metavar="DIR", help="send rankings of this bundle's schema")
    sent.add_argument(
        "--data", metavar="FILE", help="with --bundle: data to draw requests from (default: synthetic rows)"
    )
    sent.add_argument(
        "--replay",
        metavar="COLUMN",
        help="with --data: replay the times in this column (seconds), scaled to the rate",
    )
    sent.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="additional request header; repeatable",
    )
    times = parser.add_argument_group("when")
    when = times.add_mutually_exclusive_group(required=True)
    when.add_argument("--rate", type=positive_float, help="mean requests/s, at random (Poisson) times")
    when.add_argument("--traffic", help="rate=400,sizes=mlperf,arrivals=bursty, or a YAML or JSON file")
    times.add_argument("--seconds", type=positive_float, default=10.0, help="measured time (default 10)")
    times.add_argument(
        "--warmup",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="warm-up before the measured time (default 1)",
    )
    times.add_argument(
        "--seed", type=non_negative_int, default=0, help="seed of schedule and requests (default 0)"
    )
    target = parser.add_argument_group("SLO")
    target.add_argument(
        "--budget-ms", type=positive_float, help="latency budget of each request, sent as X-Latency-Budget-Ms"
    )
    target.add_argument(
        "--slo-share",
        type=float,
        help=f"end with exit status {SLO_MISSED} if fewer requests were in budget than this share, like 0.99",
    )
    driver = parser.add_argument_group("driver")
    driver.add_argument(
        "--connections", type=int, default=16, help="connections to open before the start (default 16)"
    )
    driver.add_argument(
        "--max-connections", type=int, default=1024, help="maximum connections (default 1024)"
    )
    driver.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time to wait for the last answers (default 10)",
    )
    driver.add_argument(
        "--max-lag-ms",
        type=float,
        default=1.0,
        help="maximum p99 of the driver's own lag for reliable figures (default 1)",
    )
    driver.add_argument(
        "--core", type=int, choices=sorted(os.sched_getaffinity(0)), help="pin the driver to this core"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--report", metavar="DIR", help="folder for report.html, report.png and report.json")
    output.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    from polyrec.cli.measure.open_loop import run_load

    return run_load(args)
