"""Finds the times at which the whole machine is slow, so that a benchmark can leave them out.

Some virtual machines run all cores at a tenth of their speed for 10 to 70 ms, several times a second, without
any sign in the guest's counters (no steal, no preemption). A 99th percentile of a few milliseconds then
measures the host. A process that does nothing else sees such stalls in the CPU time of a fixed piece of work.

    with watched() as stalls:
        ...
    calm = outside(stalls, begun_s, ended_s)

As a command it prints this machine's stalls:

    python -m benchmarks.stalls --seconds 10
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import command_parser

PERIOD_S = 1e-3
PIECE = 800
"""Iterations in a piece of work, which take some 20 us."""
SLOWER = 3.0
"""CPU time over the median from which a piece is slow. Empty caches and a lower clock rate cost less."""
SLOW_PIECES = 3
"""Slow pieces in a row that are a stall; fewer are interrupts."""
JOINED_S = 10e-3
"""Stalls that are closer together are one."""
AFTER = 3.0
"""Time in which the queue of a stall may still be worked off, as a multiple of its length. At a load of 70%
the queue takes 2.3 times as long as the stall."""

Stalls = list[tuple[float, float]]
"""Start and end of each stall in order, as `time.monotonic` has it."""


@contextmanager
def watched() -> Iterator[Stalls]:
    """Watches for stalls in another process; the list that it yields is filled at the end of the context."""
    stalls: Stalls = []
    command = [sys.executable, "-m", "benchmarks.stalls", "--until-closed"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()
        yield stalls
        out, _ = watch.communicate()
    stalls += stalls_of(np.array(json.loads(out)).reshape(-1, 2))


def stalls_of(pieces: NDArray[np.float64]) -> Stalls:
    """Returns the stalls. pieces: when each piece of work ended, and its CPU time: float64 [pieces, 2]."""
    if not len(pieces):
        return []
    slower = np.diff(pieces[:, 1] > SLOWER * np.median(pieces[:, 1]), prepend=False, append=False)
    edges = np.flatnonzero(slower).reshape(-1, 2)
    stalls: Stalls = []
    for first, after in edges[np.diff(edges, axis=1)[:, 0] >= SLOW_PIECES].tolist():
        # it may have begun any time after the last quick piece
        start, end = pieces[max(first - 1, 0), 0], pieces[after - 1, 0]
        if stalls and start - stalls[-1][1] <= JOINED_S:
            start = stalls.pop()[0]
        stalls.append((float(start), float(end)))
    return stalls


def outside(stalls: Stalls, begun_s: NDArray[np.float64], ended_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns which intervals touch neither a stall nor the time AFTER it: bool [intervals]."""
    starts = np.array([start for start, _ in stalls] + [np.inf])
    until = np.maximum.accumulate([end + AFTER * (end - start) for start, end in stalls])
    # of each interval, the first stall that it could touch
    return np.asarray(starts[np.searchsorted(until, begun_s)] > ended_s)


def pieces_until(closed: threading.Event) -> list[tuple[float, float]]:
    """Works until `closed`; returns when each piece of work ended, and its CPU time."""
    pieces = []
    while not closed.wait(PERIOD_S):
        begun_s = time.thread_time()
        for _ in range(PIECE):
            pass
        pieces.append((time.monotonic(), time.thread_time() - begun_s))
    return pieces


def _wait_for_end(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--until-closed", action="store_true", help="watch until standard input is closed")
    args = parser.parse_args()
    if args.until_closed:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        closed = threading.Event()
        threading.Thread(target=_wait_for_end, args=(closed,), daemon=True).start()
        print("watching", flush=True)
        print(json.dumps(pieces_until(closed)))
        return
    with watched() as stalls:
        time.sleep(args.seconds)
    for start, end in stalls:
        print(f"at {start:.3f} s: {1e3 * (end - start):.1f} ms")
    print(f"{sum(end - start for start, end in stalls) / args.seconds:.1%} of {args.seconds:g} s")


if __name__ == "__main__":
    main()
