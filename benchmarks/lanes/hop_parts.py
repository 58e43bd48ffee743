"""Measures the parts of the hop to a process lane: signals, and the four steps of the mailbox.

    python -m benchmarks.lanes.hop_parts                          # trains a small model on generated data
    python -m benchmarks.lanes.hop_parts --bundle DIR --data FILE --json

signals: two processes on two cores wake one another, the other one works for 150 us in between: by each way
that there is, and with the server waiting for it in each way that there is. The round trip less the work:
what no lane can do without.

mailbox: the server's writing of a batch, the worker's reading, its answer, the server's reading, both ends in
one process. `again`: one after another. `rested`: a batch is executed before each step, and the process
sleeps for 0.3 ms, as both sides do in between, and the caches are lost.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import uvloop

from benchmarks.http.serve_throughput import add_model, machine, model
from benchmarks.lanes.hop import ROWS, batches_of
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.runtimes import open_runtime
from polyrec.server.lanes.mailbox import Mailbox

CORES = sorted(os.sched_getaffinity(0))
WORK_S = 150e-6
PINGS = 200
WARM = 5
REST_S = 300e-6
clock = time.perf_counter
FUTEX, FUTEX_WAIT, FUTEX_WAKE = 202, 0, 1  # x86-64
KINDS = ("eventfd", "pipe", "socket", "futex")
WAITS = ("blocking", "epoll", "asyncio", "uvloop")


class Signal(Protocol):
    """One direction. fds: what the other process needs of it; readable: what a loop can watch."""

    fds: tuple[int, ...]
    readable: int | None

    def give(self) -> None: ...

    def wait(self) -> None: ...


class FileSignal:
    """Wakes by one or eight bytes, written to a descriptor and read from another or the same one."""

    def __init__(self, *fds: int) -> None:
        """fds: to write to, to read from."""
        self.fds: tuple[int, ...] = fds
        self.readable: int | None = fds[1]

    def give(self) -> None:
        os.write(self.fds[0], b"\x01\0\0\0\0\0\0\0")

    def wait(self) -> None:
        os.read(self.fds[1], 8)


class Futex:
    """Wakes by a futex in shared memory, which an event loop cannot watch."""

    readable: int | None = None

    def __init__(self, fd: int) -> None:
        self.fds: tuple[int, ...] = (fd,)
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)
        self._word = ctypes.c_uint32.from_buffer(self._memory)
        self._call = ctypes.CDLL(None).syscall
        self._at = ctypes.c_void_p(ctypes.addressof(self._word))
        self._seen = 0

    def give(self) -> None:
        self._word.value += 1
        self._call(FUTEX, self._at, FUTEX_WAKE, 1, None, None, 0)

    def wait(self) -> None:
        while self._word.value == self._seen:
            self._call(FUTEX, self._at, FUTEX_WAIT, self._seen, None, None, 0)
        self._seen += 1


def signal_over(kind: str, fds: tuple[int, ...]) -> Signal:
    return Futex(*fds) if kind == "futex" else FileSignal(*fds)


def fresh(kind: str) -> Signal:
    """A new one."""
    if kind == "eventfd":
        fd = os.eventfd(0)
        return FileSignal(fd, fd)
    if kind == "pipe":
        return FileSignal(*reversed(os.pipe()))
    if kind == "socket":
        return FileSignal(*(end.detach() for end in socket.socketpair()))
    fd = os.memfd_create("futex")
    os.ftruncate(fd, mmap.PAGESIZE)
    return Futex(fd)


def answer_for_ever(kind: str, core: int, *fds: int) -> None:
    """The other process."""
    os.sched_setaffinity(0, {core})
    half = len(fds) // 2
    wake, done = signal_over(kind, fds[:half]), signal_over(kind, fds[half:])
    while True:
        wake.wait()
        until = clock() + WORK_S
        while clock() < until:
            pass
        done.give()


def round_trips(wake: Signal, done: Signal, wait: str) -> list[float]:
    """Round trips of PINGS pings without the work, seconds."""
    found = []
    if wait in ("blocking", "epoll"):
        poller = select.epoll() if wait == "epoll" else None
        if poller is not None and done.readable is not None:
            poller.register(done.readable, select.EPOLLIN)
        for _ in range(PINGS):
            start = clock()
            wake.give()
            if poller is not None:
                poller.poll()
            done.wait()
            found.append(clock() - start - WORK_S)
        return found

    async def ping() -> None:
        loop = asyncio.get_running_loop()
        assert done.readable is not None
        for _ in range(PINGS):
            heard = loop.create_future()

            def listen(heard: asyncio.Future[float] = heard) -> None:
                done.wait()
                heard.set_result(clock())

            loop.add_reader(done.readable, listen)
            start = clock()
            wake.give()
            found.append(await heard - start - WORK_S)
        loop.remove_reader(done.readable)

    factory = uvloop.new_event_loop if wait == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(ping())
    return found


def signals(rounds: int) -> list[dict[str, object]]:
    """Every kind and way to wait, in turn; medians and 99th percentiles in us."""
    seen: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as opened:
        pairs = {}
        for kind in KINDS:
            pairs[kind] = wake, done = fresh(kind), fresh(kind)
            fds = (*wake.fds, *done.fds)
            arguments = [kind, CORES[-1], *fds]
            imports = "from benchmarks.lanes.hop_parts import answer_for_ever"
            other = f"{imports}; answer_for_ever(*{arguments!r})"
            process = subprocess.Popen([sys.executable, "-c", other], pass_fds=fds)
            opened.callback(process.wait)
            opened.callback(process.kill)
        for turn in range(rounds + 1):
            for kind, (wake, done) in pairs.items():
                for wait in WAITS:
                    if done.readable is None and wait != "blocking":
                        continue
                    if done.readable is not None:  # loops make it non-blocking
                        os.set_blocking(done.readable, wait in ("blocking", "epoll"))
                    took = round_trips(wake, done, wait)[WARM:]
                    if turn:  # the first one waits for the processes to start
                        seen.setdefault((kind, wait), []).extend(took)
    return [
        {"signal": kind, "wait": wait, "p50_us": _us(took, 0.5), "p99_us": _us(took, 0.99)}
        for (kind, wait), took in seen.items()
    ]


def mailbox(bundle: Bundle, data: Path, count: int) -> list[dict[str, object]]:
    """Medians of each step in us."""
    runtime = open_runtime("onnx", bundle)
    server = Mailbox.create("parts")
    worker = Mailbox(os.dup(server.fd))
    found: list[dict[str, object]] = []
    for rows in ROWS:
        batches = batches_of(bundle, data, rows)
        said = runtime.predict(batches[0])
        for state in ("again", "rested"):
            took: dict[str, list[float]] = {}
            for i in range(count):
                batch = batches[i % len(batches)]
                steps: dict[str, Callable[[], object]] = {
                    "put": partial(server.put, 0, batch),
                    "take": worker.take,
                    "answer": partial(worker.answer, said, 0.0, 0.0),
                    "outcome": server.outcome,
                }
                for part, step in steps.items():
                    if state == "rested":
                        runtime.predict(batch)
                        time.sleep(REST_S)
                    start = clock()
                    step()
                    took.setdefault(part, []).append(clock() - start)
            medians = {part: _us(seconds[len(batches) :], 0.5) for part, seconds in took.items()}
            found.append({"rows": rows, "state": state, **medians})
    server.close()
    worker.close()
    return found


def _us(seconds: list[float], quantile: float) -> float:
    return round(float(np.quantile(seconds, quantile)) * 1e6, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description="what the hop to a process lane is made of")
    add_model(parser)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    retain_freed_memory()
    with model(parser, args) as (bundle_path, data):
        os.sched_setaffinity(0, {CORES[0]})
        by_signal = signals(args.rounds)
        by_part = mailbox(load_bundle(bundle_path), data, 50 * args.rounds)
    if args.json:
        print(json.dumps({"machine": machine(), "signals": by_signal, "mailbox": by_part}, indent=2))
        return 0
    print(machine())
    for found in (by_signal, by_part):
        print("".join(f"{name:>10}" for name in found[0]))
        for row in found:
            print("".join(f"{value!s:>10}" for value in row.values()))
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
