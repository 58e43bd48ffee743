"""Sends random request streams to a real server, and compares it with plain ASGI, one request at a time.

    python -m benchmarks.http.fuzz_streams --requests 200000

Trains a small bundle, serves it in a child process and plays streams on several connections at a time: hot
and cold, rejected, malformed, pipelined and upgraded requests, split at arbitrary bytes and interleaved
(library: tests/server/http/streams/). Prints counts of requests and differences, and the first differing
streams as Python code; --shrink first minimizes them, each on a fresh server. Exit status 1 if anything
differs.

    python -m benchmarks.http.fuzz_streams --seed 7 --first 1234 --requests 1     # one stream again
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.command import command_parser
from polyrec.models.bundle.bundle import Bundle
from tests.server.http.streams.corpus import trained
from tests.server.http.streams.fuzzer import Fuzzer, served
from tests.server.http.streams.scripts import Piece, Script, Stream

SHOWN = 5
"""Maximum number of differing streams that are printed."""
STEPS_A_SHRINK = 60
REPORT_S = 10.0


@dataclass(slots=True)
class Tally:
    """Counts of played streams. failed: the first streams that differ, by seed, with the differences."""

    streams: int = 0
    requests: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    differing: int = 0
    failed: dict[int, list[str]] = field(default_factory=dict)


def random_of(seed: int, number: int) -> Random:
    """Returns the random generator of stream `number`, independent of earlier streams."""
    return Random(f"{seed}/{number}")


async def fuzz(fuzzer: Fuzzer, seed: int, first: int, requests: int, parallel: int, tally: Tally) -> None:
    """Plays streams from number `first` on until a number of requests has been sent."""
    number = first
    reported = time.perf_counter()

    async def worker() -> None:
        nonlocal number, reported
        while tally.requests < requests and len(tally.failed) < 20 * SHOWN:
            mine, number = number, number + 1
            stream = fuzzer.drawn(random_of(seed, mine))
            tally.streams += 1
            tally.requests += stream.requests
            heard: list[str] = await fuzzer.played(stream, tally.answers)
            if heard:
                tally.differing += 1
                tally.failed[mine] = heard
                print(f"stream {mine}: {heard[0][:300]}", file=sys.stderr, flush=True)
            if time.perf_counter() - reported > REPORT_S:
                reported = time.perf_counter()
                print(f"{tally.requests} requests, {tally.differing} differ", file=sys.stderr, flush=True)

    await asyncio.gather(*(worker() for _ in range(parallel)))


def smaller(stream: Stream) -> Iterator[Stream]:
    """Yields smaller streams: without one connection or request, or with a connection's bytes unsplit."""
    scripts = stream.scripts
    for i in range(len(scripts)):
        if len(scripts) > 1:
            order = tuple(turn - (turn > i) for turn in stream.order if turn != i)
            yield Stream(scripts[:i] + scripts[i + 1 :], order)
    for i, script in enumerate(scripts):
        for j in range(len(script.asks) - 1):
            yield _with(stream, i, _one_by_one(replace(script, asks=script.asks[:j] + script.asks[j + 1 :])))
        if len(script.pieces) > len(script.asks):
            yield _with(stream, i, _one_by_one(script))


def _one_by_one(script: Script) -> Script:
    """Returns the same requests, each sent whole and after the answer to the previous one."""
    pieces = tuple(Piece(ask.raw, after=i, read=True) for i, ask in enumerate(script.asks))
    return replace(script, pieces=pieces)


def _with(stream: Stream, i: int, script: Script) -> Stream:
    scripts = (*stream.scripts[:i], script, *stream.scripts[i + 1 :])
    return Stream(scripts, tuple(n for n, own in enumerate(scripts) for _ in own.pieces))


def shrunk(stream: Stream, bundle: Bundle, clicks: Path) -> tuple[Stream, list[str]]:
    """Returns the smallest stream found that differs on a fresh server, and the differences.

    Differences are empty if they need earlier streams.
    """
    lines: list[str] = []
    steps = 0

    def differs(candidate: Stream) -> list[str]:
        nonlocal steps
        steps += 1
        with served(bundle, clicks) as fuzzer:
            return fuzzer.run(candidate)

    lines = differs(stream)
    changed = bool(lines)
    while changed and steps < STEPS_A_SHRINK:
        changed = False
        for candidate in smaller(stream):
            found = differs(candidate)
            if found:
                stream, lines, changed = candidate, found, True
                break
            if steps >= STEPS_A_SHRINK:
                break
    return stream, lines


def main() -> int:
    parser = command_parser(__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first stream")
    parser.add_argument("--parallel", type=int, default=8, help="streams at a time")
    parser.add_argument("--shrink", action="store_true", help="make the first streams that differ small")
    args = parser.parse_args()
    logging.getLogger("polyrec").setLevel(logging.ERROR)  # the reference's: operators change its routing
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="polyrec-fuzz-") as folder:
        clicks, bundle = trained(Path(folder))
        begin = time.perf_counter()
        with served(bundle, clicks) as fuzzer:
            played = fuzz(fuzzer, args.seed, args.first, args.requests, args.parallel, tally)
            fuzzer.runner.run(played)
            streams = {n: fuzzer.drawn(random_of(args.seed, n)) for n in list(tally.failed)[:SHOWN]}
            complaints = fuzzer.complaints
        seconds = time.perf_counter() - begin
        for number, stream in streams.items():
            found = tally.failed[number]
            if args.shrink:
                stream, alone = shrunk(stream, bundle, clicks)
                found = alone or [*found, "(not on a fresh server)"]
            print(f"stream {number} of seed {args.seed}:", *found, sep="\n  ")
            print(f"  {stream!r}")
    print(
        f"{tally.requests} requests in {tally.streams} streams, {seconds:.0f} s "
        f"({tally.requests / seconds:.0f}/s): {tally.differing} streams differ"
    )
    print("answers by status: " + ", ".join(f"{s}: {n}" for s, n in sorted(tally.answers.items())))
    if complaints:
        print(f"the server's log, {len(complaints)} characters, begins:\n{complaints[:2000]}")
    return 1 if tally.differing or complaints else 0


if __name__ == "__main__":
    sys.exit(main())
