"""The open-loop driver: requests leave at their appointed times, whatever the server does.

A schedule of arrival times goes in, what happened to each request comes out. Latency runs from the
time at which a request was *meant* to leave, so that a stall is paid by every request that it holds
up (no coordinated omission). The driver watches itself as well: `lag` is how late it was in handing
a request over, and figures taken while it could not keep up are refused, not printed.

asyncio and uvloop count timers in whole milliseconds. The driver therefore sleeps until two before a
departure and polls the loop from there; above some hundred requests a second it keeps a core busy,
which should be one that the server does not use.

    python -m loadtest.openloop http://127.0.0.1:8000/v1/rank --rate 500 --seconds 30 --body rank.json
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import uvloop

from loadtest.connection import NO_ANSWER, LoadError, Pool, Target
from loadtest.outcome import F64, CouldNotKeepUp, Outcome, report
from models.errors import PolyrecError

Body = Callable[[int], bytes | None]
"""Request number -> the body of its POST, or None for a GET. Called just ahead of the departure."""

COULD_NOT_KEEP_UP = 3
"""Exit status of a run whose figures were refused."""


def poisson(rate: float, seconds: float, rng: np.random.Generator) -> F64:
    """Arrival times of a Poisson process: float64 [requests], seconds from the start, ascending.

    Given their number, the arrivals of a Poisson process are independent and uniform.
    """
    return np.sort(rng.uniform(0.0, seconds, rng.poisson(rate * seconds)))


@dataclass(frozen=True, slots=True)
class Limits:
    """`connections` are opened beforehand, more as requests overlap, up to `max_connections`; requests
    that find those busy wait, with their latency running. After the last departure, answers are
    awaited for `grace_s`.
    """

    connections: int = 16
    max_connections: int = 1024
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= self.max_connections:
            raise LoadError(f"{self.connections} connections: give 1 to {self.max_connections}")


async def drive(target: Target, due_s: F64, body: Body, limits: Limits) -> Outcome:
    """Sends request i at due_s[i] and collects the answers. Raises LoadError if nobody listens."""
    lag = np.full(due_s.size, np.nan)
    latency = np.full(due_s.size, np.nan)
    status = np.full(due_s.size, NO_ANSWER, np.int64)
    offences: dict[int, str] = {}
    pending = due_s.size
    finished = asyncio.Event()

    def answered(index: int, code: int, offence: str) -> None:
        nonlocal pending
        if offence:
            offences[index] = offence
        else:
            status[index] = code
            latency[index] = perf_counter() - start - due_s[index]
        pending -= 1
        if not pending:
            finished.set()

    pool = Pool(target, limits.max_connections, answered)
    try:
        await pool.open(limits.connections)
        start = perf_counter() + 0.01
        for index, due in enumerate(due_s.tolist()):
            payload = target.request(body(index))
            await _until(start + due)
            lag[index] = perf_counter() - start - due
            pool.send(index, payload)
        if pending:
            with suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), limits.grace_s)
        for index in np.flatnonzero(status == NO_ANSWER).tolist():
            offences.setdefault(index, f"no answer within {limits.grace_s:g} s of the end")
        # a copy: closing reports what is still in flight as lost
        return Outcome(due_s, lag, latency, status, dict(offences), pool.connections, pool.held_back)
    finally:
        await pool.close()


async def _until(moment: float) -> None:
    """Returns at `moment` of perf_counter; gives the loop at least one turn, so that answers are read."""
    while True:
        left = moment - perf_counter()
        await asyncio.sleep(left - 0.002 if left > 0.003 else 0)
        if perf_counter() >= moment:
            return


def run(target: Target, due_s: F64, body: Body, limits: Limits) -> Outcome:
    """`drive` on a loop of its own, with the garbage collector out of the way."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(drive(target, due_s, body, limits))
    finally:
        gc.enable()
        gc.unfreeze()


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
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.openloop",
        description="Send requests at Poisson times, whatever the server does, and tell how they fared.",
    )
    add, limits = parser.add_argument, Limits()
    add("url", help="http://host:port/path")
    add("--rate", type=_positive, required=True, help="mean requests per second")
    add("--seconds", type=_positive, default=10.0, help="measured time (10)")
    add("--warmup", type=float, default=1.0, metavar="SECONDS", help="sent before, and left out (1)")
    add("--seed", type=int, default=0, help="of the schedule (0)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--body", metavar="FILE", help="the body of every request; without, GET")
    which.add_argument("--bodies", metavar="FILE", help="one body a line, taken in turn")
    add("--header", action="append", default=[], metavar="'NAME: VALUE'", help="more headers; repeatable")
    add("--connections", type=int, default=limits.connections, help="opened beforehand (16)")
    add("--max-connections", type=int, default=limits.max_connections, help="at most (1024)")
    add("--grace", type=float, default=limits.grace_s, metavar="SECONDS", help="wait for last answers (10)")
    add("--max-lag-ms", type=float, default=1.0, help="p99 of the driver's own lag that is accepted (1)")
    add("--core", type=int, choices=sorted(os.sched_getaffinity(0)), help="pin the driver to this core")
    add("--json", action="store_true", help="the report as JSON")
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _headers(given: Sequence[str], post: bool) -> dict[str, str]:
    headers = {"Content-Type": "application/json"} if post else {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon:
            raise LoadError(f"header '{line}': give 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def main(argv: Sequence[str] | None = None) -> int:
    """0 with a report; 2 with one line for a mistake; 3 with one line for figures that were refused."""
    args = _parser().parse_args(argv)
    try:
        if args.core is not None:
            os.sched_setaffinity(0, {args.core})
        post = args.body is not None or args.bodies is not None
        target = Target(args.url, _headers(args.header, post))
        due = poisson(args.rate, args.warmup + args.seconds, np.random.default_rng(args.seed))
        limits = Limits(args.connections, args.max_connections, args.grace)
        outcome = run(target, due, bodies(args.body, args.bodies), limits)
        result = asdict(report(outcome.since(args.warmup), args.max_lag_ms / 1e3))
    except PolyrecError as e:
        print(f"openloop: {e}", file=sys.stderr)
        return COULD_NOT_KEEP_UP if isinstance(e, CouldNotKeepUp) else 2
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:12} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
