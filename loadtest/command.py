"""The open-loop driver's command line.

    python -m loadtest.openloop http://127.0.0.1:8000/v1/rank --rate 500 --seconds 30 --body rank.json
    python -m loadtest.openloop http://127.0.0.1:8000 --bundle runs/demo/table --rate 500 --report out

Requests come from files, or are rankings of real (`--data`) or invented rows of the bundle that is served.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import numpy as np

from loadtest.arguments import Parser, natural, positive
from loadtest.client import RANK
from loadtest.connection import LoadError, Target
from loadtest.load import Body, Load, load_of
from loadtest.machine import machine
from loadtest.openloop import Limits, run
from loadtest.outcome import CouldNotKeepUp, Outcome, report
from loadtest.pages import Served, accuracies, served
from loadtest.replay import read_times, replay
from models.errors import PolyrecError
from models.report.folder import make_folder
from planner.arrivals import arrival_times
from planner.traffic import Traffic, parse_traffic

COULD_NOT_KEEP_UP = 3
"""Exit status of a run whose figures were refused."""
BROKEN = 4
"""Exit status of a run with --slo-share whose promise was not kept."""
OWNERS = (
    *("ok", "late", "refused", "expired", "unavailable", "other", "degraded"),
    *("goodput", "correct", "accuracy", "mix"),
)
"""Figures that a service owner asks for, beyond latencies."""

T = TypeVar("T")


def bodies(whole: str | None, lines: str | None) -> Body:
    """The body of every request from a file, or one line of a file each, taken in turn; else GETs.

    Raises LoadError: a file that cannot be read or is empty.
    """
    if whole is None and lines is None:
        return lambda index: None
    path = Path(whole or lines or "")
    try:
        content = path.read_bytes()
    except OSError as e:
        raise LoadError(f"cannot read body '{path}': {e.strerror}") from None
    each = [content] if whole is not None else content.splitlines()
    if not content:
        raise LoadError(f"body '{path}' is empty")
    return lambda index: each[index % len(each)]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m loadtest.openloop",
        description="Send requests at appointed times, whatever the server does, and tell how they fared.",
    )
    add, limits = parser.add_argument, Limits()
    add("url", help="http://host:port/path; with --bundle, http://host:port is enough")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--rate", type=positive, help="mean requests per second, Poisson")
    when.add_argument("--traffic", help="rate=400,sizes=mlperf,arrivals=bursty, or a YAML or JSON file")
    add("--seconds", type=positive, default=10.0, help="measured time (10)")
    add("--warmup", type=float, default=1.0, metavar="SECONDS", help="sent before, and left out (1)")
    add("--seed", type=natural, default=0, help="of the schedule and of what is drawn (0)")
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
    add("--budget-ms", type=positive, help="latency budget of each request, sent as X-Latency-Budget-Ms")
    add("--slo-share", type=float, help=f"exit status {BROKEN} if fewer were answered in budget, e.g. 0.99")
    add("--header", action="append", default=[], metavar="'NAME: VALUE'", help="more headers; repeatable")
    add("--connections", type=int, default=limits.connections, help="opened beforehand (16)")
    add("--max-connections", type=int, default=limits.max_connections, help="at most (1024)")
    add("--grace", type=float, default=limits.grace_s, metavar="SECONDS", help="wait for last answers (10)")
    add("--max-lag-ms", type=float, default=1.0, help="p99 of the driver's own lag that is accepted (1)")
    add("--core", type=int, choices=sorted(os.sched_getaffinity(0)), help="pin the driver to this core")
    add("--report", metavar="DIR", help="write report.html, report.png and report.json there")
    add("--json", action="store_true", help="the figures as JSON")
    return parser


def _headers(given: Sequence[str], post: bool) -> dict[str, str]:
    headers = {"Content-Type": "application/json"} if post else {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon:
            raise LoadError(f"header '{line}': give 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def _load(args: argparse.Namespace) -> tuple[Target, Load]:
    """What the flags ask for. Raises LoadError and what reading data raises."""
    if args.bundle is None and (args.data or args.replay):
        raise LoadError("--data and --replay need --bundle: it says what the columns mean")
    if args.replay and not args.data:
        raise LoadError("--replay needs --data: invented rows have no times")
    post = args.body is not None or args.bodies is not None or args.bundle is not None
    url = args.url
    if args.bundle is not None and urlsplit(url).path in ("", "/"):
        url = url.rstrip("/") + RANK
    target = Target(url, _headers(args.header, post))
    traffic = Traffic(rate=args.rate) if args.traffic is None else parse_traffic(args.traffic)
    seconds = args.warmup + args.seconds
    random = np.random.default_rng(args.seed)
    budget_s = None if args.budget_ms is None else args.budget_ms / 1e3
    if args.bundle is None:
        due = arrival_times(traffic.arrivals, traffic.rate, seconds, random)
        return target, load_of(target, due, seconds, bodies(args.body, args.bodies), budget_s=budget_s)
    # seconds of imports, which the other loads need not wait for
    from loadtest.source import MOST_ROWS, open_source
    from models.bundle import load_bundle

    bundle = load_bundle(args.bundle)
    source = open_source(args.data, bundle, args.seed)
    if args.replay:
        times = read_times(args.data, bundle.manifest.schema_, args.replay, MOST_ROWS)
        recorded = replay(times, source.firsts, rate=traffic.rate, seed=args.seed).part(seconds)
        due, (rows, body) = recorded.due_s, source.recorded(recorded.query)
    elif args.traffic is None:
        due = arrival_times(traffic.arrivals, traffic.rate, seconds, random)
        rows, body = source.own(due.size, args.seed)
    else:
        due = arrival_times(traffic.arrivals, traffic.rate, seconds, random)
        rows, body = source.drawn(traffic.sizes.sample(due.size, random), args.seed)
    return target, load_of(target, due, seconds, body, rows=rows, budget_s=budget_s, prepare=True)


def main(argv: Sequence[str] | None = None) -> int:
    """0 with a report; 2 with one line for a mistake; 3 with one line for figures that were refused;
    4 for a promise (--slo-share) that was not kept."""
    args = _parser().parse_args(argv)
    try:
        if args.slo_share is not None and args.budget_ms is None:
            raise LoadError("--slo-share needs --budget-ms: it is the share answered in budget")
        if args.core is not None:
            os.sched_setaffinity(0, {args.core})
        target, load = _load(args)
        before = None
        if args.report is not None:
            make_folder(args.report)
            before = _told(args.url, served)
        whole = run(target, load, Limits(args.connections, args.max_connections, args.grace))
        outcome = whole.since(args.warmup)
        result = asdict(report(outcome, args.max_lag_ms / 1e3))
        accuracy = _told(args.url, accuracies) or {}
        result |= _owners(outcome, accuracy)
        if args.report is not None:
            _write(args, outcome, accuracy, before)
    except PolyrecError as e:
        print(f"openloop: {e}", file=sys.stderr)
        return COULD_NOT_KEEP_UP if isinstance(e, CouldNotKeepUp) else 2
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:12} {value}")
    return BROKEN if args.slo_share is not None and result["ok"] < args.slo_share else 0


def _owners(outcome: Outcome, accuracy: dict[str, float]) -> dict[str, object]:
    from loadtest.figures import figures

    found = asdict(figures(outcome, accuracy))
    return {name: round(v, 6) if isinstance(v := found[name], float) else v for name in OWNERS}


def _told(url: str, read: Callable[[str], T]) -> T | None:
    """What `read` reads of the server itself; None where what answers is no Polyrec server."""
    try:
        return read(f"http://{urlsplit(url).netloc}")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(
    args: argparse.Namespace, outcome: Outcome, accuracy: dict[str, float], before: Served | None
) -> None:
    from loadtest.report.run import write_run

    after = _told(args.url, served)
    hits = {} if before is None or after is None else after.hits_since(before)
    made = {
        "requests to": args.url,
        "traffic": args.traffic or f"Poisson, {args.rate:g} requests/s",
        "what was asked": args.data or args.body or args.bodies or args.bundle or "GET",
        "seed": str(args.seed),
        **machine(),
    }
    if after is not None:
        made = {"server": after.plan, **made}
    write_run(Path(args.report), outcome, accuracy, made, hits=hits)


if __name__ == "__main__":
    sys.exit(main())
