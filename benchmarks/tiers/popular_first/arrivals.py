"""A client's process for benchmarks.tiers.popular_first: writes one byte at the time of each arrival.

Timers of the event loop have a resolution of 1 ms, which would be measured as latency of the queries that
arrive while it waits; a server that is woken by a socket has no such delay.
"""

from __future__ import annotations

import array
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from polyrec.server.clock import clock

AHEAD_S = 100e-6
"""Time before an arrival at which sleep ends, since it ends that much too late; the rest is waited out."""


@contextmanager
def arriving(due_s: Sequence[float], cores: Iterable[int]) -> Iterator[int]:
    """Yields a file descriptor with a byte for each arrival. due_s: times of the server's clock, ascending.

    cores: those of the client's process.
    Raises RuntimeError at the end if the client was not ready for the first arrival.
    """
    command = [sys.executable, "-m", "benchmarks.tiers.popular_first.arrivals", *map(str, cores)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(array.array("d", due_s).tobytes())
        client.stdin.close()
        yield client.stdout.fileno()
    if client.returncode:
        raise RuntimeError("the client's process failed, or started after the first arrival")


def main() -> None:
    os.sched_setaffinity(0, map(int, sys.argv[1:]))
    due_s = array.array("d", sys.stdin.buffer.read())
    if due_s and clock() > due_s[0]:
        sys.exit(1)
    for at_s in due_s:
        left_s = at_s - clock() - AHEAD_S
        if left_s > 0:
            time.sleep(left_s)
        while clock() < at_s:
            pass
        os.write(1, b".")


if __name__ == "__main__":
    main()
