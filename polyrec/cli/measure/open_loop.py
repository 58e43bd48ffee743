"""Runs `polyrec load`: sends requests from files or from rows, prints figures, writes the report."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from polyrec.cli.measure.exit_status import DRIVER_TOO_SLOW, NOTHING_SERVED, SLO_MISSED
from polyrec.cli.measure.load_text import lines
from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import Body, Load, load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import ServerCounters, path_qualities, read_counters
from polyrec.loadtest.machine import machine
from polyrec.loadtest.results.outcome import DriverTooSlow, Fate, Outcome, report
from polyrec.loadtest.traffic.replay import read_times, replay
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.traffic import Traffic, parse_traffic
from polyrec.report.page import make_folder, require_matplotlib

SERVICE_FIGURES = (
    *("ok", "late", "refused", "expired", "unavailable", "other", "degraded"),
    *("goodput", "information", "quality", "correct", "mix"),
)
"""Service-level figures that are printed after the latencies."""

MODEL = re.compile(r"/v[12]/models/([^/]+)")
"""The model that a URL's path names."""

UNRELIABLE = "the driver was late itself, and latencies include its delay"

T = TypeVar("T")


def bodies(whole: str | None, by_line: str | None) -> Body:
    """Returns bodies by request number: a whole file, or the lines of a file in turn; None for GET requests.

    whole, by_line: the file. Raises LoadError for one that cannot be read or is empty.
    """
    if whole is None and by_line is None:
        return lambda index: None
    path = Path(whole or by_line or "")
    try:
        content = path.read_bytes()
    except OSError as e:
        raise LoadError(f"cannot read body '{path}': {e.strerror}") from None
    each = [content] if whole is not None else content.splitlines()
    if not content:
        raise LoadError(f"body '{path}' is empty")
    return lambda index: each[index % len(each)]


def _headers(given: Sequence[str], post: bool) -> dict[str, str]:
    headers = {"Content-Type": "application/json"} if post else {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon:
            raise LoadError(f"header '{line}': give 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def _load(args: argparse.Namespace) -> tuple[Target, Load]:
    """Builds target and load from the arguments. Raises LoadError, BundleError or DataError."""
    if args.bundle is None and (args.data or args.replay):
        raise LoadError("--data and --replay need --bundle for its schema")
    if args.replay and not args.data:
        raise LoadError("--replay needs --data: synthetic rows have no times")
    post = args.body is not None or args.bodies is not None or args.bundle is not None
    url, path = args.url, urlsplit(args.url).path.rstrip("/")
    if args.bundle is not None and not path:
        url = url.rstrip("/") + RANK
    elif args.bundle is not None and path.startswith("/v1/") and MODEL.fullmatch(path):
        url = url.rstrip("/") + "/rank"
    target = Target(url, _headers(args.header, post))
    traffic = Traffic(rate=args.rate) if args.traffic is None else parse_traffic(args.traffic)
    seconds = args.warmup + args.seconds
    random = np.random.default_rng(args.seed)
    budget_s = None if args.budget_ms is None else args.budget_ms / 1e3
    if args.bundle is None:
        due = arrival_times(traffic.arrivals, traffic.rate, seconds, random)
        return target, load_of(target, due, seconds, bodies(args.body, args.bodies), budget_s=budget_s)
    # slow imports that other loads do not need
    from polyrec.loadtest.traffic.source import MAX_ROWS, open_source
    from polyrec.models.bundle.bundle import load_bundle

    bundle = load_bundle(args.bundle)
    source = open_source(args.data, bundle, args.seed)
    if args.replay:
        times = read_times(args.data, bundle.manifest.schema_, args.replay, MAX_ROWS)
        recorded = replay(times, source.firsts, rate=traffic.rate, seed=args.seed).first(seconds)
        due, (rows, body) = recorded.due_s, source.recorded(recorded.query)
    elif args.traffic is None:
        due = arrival_times(traffic.arrivals, traffic.rate, seconds, random)
        rows, body = source.shuffled(due.size, args.seed)
    else:
        due = arrival_times(traffic.arrivals, traffic.rate, seconds, random)
        rows, body = source.sampled(traffic.sizes.sample(due.size, random), args.seed)
    return target, load_of(target, due, seconds, body, rows=rows, budget_s=budget_s, prepare=True)


def run_load(args: argparse.Namespace) -> int:
    """Runs the load; returns the exit status: 0 or one of exit_status.py. Raises PolyrecError."""
    if args.slo_share is not None and args.budget_ms is None:
        raise LoadError("--slo-share needs --budget-ms")
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    if args.report is not None:
        require_matplotlib()
        make_folder(args.report)
    target, load = _load(args)
    before = _from_server(args.url, read_counters)
    whole = run(target, load, Limits(args.connections, args.max_connections, args.grace))
    after = None if before is None else _from_server(args.url, read_counters)
    outcome = whole.since(args.warmup)
    result: dict[str, Any] = {}
    try:
        outcome.require_punctual(args.max_lag_ms / 1e3)
    except DriverTooSlow as e:
        print(f"polyrec: error: {e}", file=sys.stderr)
        result["unreliable"] = UNRELIABLE
    result |= asdict(report(outcome))
    quality, accuracy = _from_server(args.url, path_qualities) or ({}, {})
    result |= _service_figures(outcome, quality, accuracy)
    if before is not None and after is not None:
        result["server_waited"] = round(after.waited_share(before), 6)
    if args.report is not None and "unreliable" not in result:
        _write(args, outcome, quality, before, after)
    print(json.dumps(result) if args.json else "\n".join(lines(result)))
    return _exit_status(args, outcome, result)


def _exit_status(args: argparse.Namespace, outcome: Outcome, result: Mapping[str, Any]) -> int:
    """Returns the exit status; reports on standard error if the server answered nothing."""
    if "unreliable" in result:
        return DRIVER_TOO_SLOW
    if args.slo_share is not None and result["ok"] < args.slo_share:
        return SLO_MISSED
    if np.isin(outcome.fate, (Fate.UNAVAILABLE, Fate.OTHER)).all():
        print("polyrec: error: no request was served; the reasons are above", file=sys.stderr)
        return NOTHING_SERVED
    return 0


def _service_figures(
    outcome: Outcome, quality: dict[str, float], accuracy: dict[str, float]
) -> dict[str, object]:
    from polyrec.loadtest.results.figures import figures

    found = asdict(figures(outcome, quality, accuracy))
    return {name: round(v, 6) if isinstance(v := found[name], float) else v for name in SERVICE_FIGURES}


def _from_server(url: str, read: Callable[[str, str | None], T]) -> T | None:
    """Calls `read` on the server, and on the model in the URL; returns None if it is no Polyrec server."""
    target = urlsplit(url)
    named = MODEL.match(target.path)
    try:
        return read(f"http://{target.netloc}", None if named is None else named[1])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(
    args: argparse.Namespace,
    outcome: Outcome,
    quality: dict[str, float],
    before: ServerCounters | None,
    after: ServerCounters | None,
) -> None:
    from polyrec.report.load.run import write_run

    hits = {} if before is None or after is None else after.hits_since(before)
    setup = {
        "requests to": args.url,
        "traffic": args.traffic or f"Poisson, {args.rate:g} requests/s",
        "what was asked": args.data or args.body or args.bodies or args.bundle or "GET",
        "seed": str(args.seed),
        **machine(),
    }
    if after is not None:
        setup = {"server": after.plan, **setup}
    write_run(Path(args.report), outcome, quality, setup, hits=hits)
