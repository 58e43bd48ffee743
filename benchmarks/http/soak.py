"""Runs a soak test: steady load with reloads, killed lanes, a restarted Redis and misbehaving clients.

    python -m benchmarks.http.soak --minutes 30 --json docs/results/soak.json
    python -m benchmarks.http.soak --seconds 60          # everything compressed, as in `make test-long`

Small bundles are trained on generated clicks and served by real servers (benchmarks/http/soak_servers.py):
one with process lanes, one with part of its rows in Redis. Requests of all forms are sent in open loop, and
every answer is compared with its path's expected answer. Resident memory and descriptors of the servers and
their children are read after the warm-up, each minute and at the end. Exit status 1 if an answer is wrong or
missing, a status is 500, the log has a traceback, memory has grown by more than MAX_GROWTH and SLACK_BYTES,
or descriptors have leaked.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import uvloop

from benchmarks.command import command, command_parser, save
from benchmarks.http.soak_servers import (
    Footprint,
    SoakServer,
    footprint,
    lanes_server,
    opened_store,
    restart,
    tiers_server,
)
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Answer, Pool, Target
from polyrec.loadtest.machine import machine
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.traffic import Arrivals
from tests.models.tiers.redis_server import RedisServer
from tests.server.http.streams.corpus import trained

WARM_UP_S = 5.0
CONNECTIONS = 16
MAX_CONNECTIONS = 256
GRACE_S = 20.0
ABORT_EVERY_S = 0.25
MAX_GROWTH = 1.2
"""Maximum resident memory at the end as a factor of that after the warm-up, plus SLACK_BYTES."""
SLACK_BYTES = 48 * 2**20
MAX_LEAKED = 8
"""Maximum number of additional descriptors at the end, compared with after the warm-up."""


@dataclass(slots=True)
class AnswerCounts:
    """Counts of the answers of one server.

    late: answered 200 after the budget. rejected: 429, 503, 504. flagged: answers 200 that are degraded by a
    failure. wrong: answers 200 with other probabilities; first_wrong: how.
    """

    sent: int = 0
    answered: int = 0
    late: int = 0
    rejected: Counter[int] = field(default_factory=Counter)
    other: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0
    flagged: int = 0
    wrong: int = 0
    first_wrong: list[str] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)

    def document(self) -> dict[str, Any]:
        """Returns the counts as plain data for JSON."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values}

    def count(self, server: SoakServer, which: int, answer: Answer, late: bool) -> None:
        """Checks and counts one answer."""
        if answer.error:
            self.unanswered += 1
            self.first_wrong += [answer.error][: 5 - len(self.first_wrong)]
        elif answer.status == 200:
            self.answered += 1
            self.late += late
            self.paths[answer.path.decode()] += 1
            self.flagged += b'"reason":"failure"' in answer.body
            wrong = server.mismatch(which, answer.body)
            if wrong:
                self.wrong += 1
                self.first_wrong += [wrong][: 5 - len(self.first_wrong)]
        elif answer.status in (429, 503, 504):
            self.rejected[answer.status] += 1
        else:
            self.other[answer.status] += 1
            self.first_wrong += [f"status {answer.status}: {answer.body[:200]!r}"][
                : 5 - len(self.first_wrong)
            ]


async def load(
    server: SoakServer, rate: float, seconds: float, budget_s: float, seed: int, counts: AnswerCounts
) -> None:
    """Sends requests at Poisson times and counts every answer."""
    random = np.random.default_rng(seed)
    due_s = arrival_times(Arrivals(), rate, seconds, random)
    which = random.integers(0, len(server.requests), due_s.size)
    pending: set[int] = set()
    heard = asyncio.Event()

    def answered(index: int, answer: Answer) -> None:
        pending.discard(index)
        late = time.perf_counter() - begin - due_s[index] > budget_s
        counts.count(server, int(which[index]), answer, bool(late))
        heard.set()

    pool = Pool(Target(server.url), MAX_CONNECTIONS, answered, bodies=True)
    await pool.open(CONNECTIONS)
    begin = time.perf_counter()
    for index, due in enumerate(due_s.tolist()):
        if (wait := begin + due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        counts.sent += 1
        pending.add(index)
        pool.send(index, server.requests[which[index]].raw)
    until = time.perf_counter() + GRACE_S
    while pending and time.perf_counter() < until:
        heard.clear()
        try:
            await asyncio.wait_for(heard.wait(), 1)
        except TimeoutError:
            continue
    await pool.close()  # reports what has no answer


def capacity(servers: Sequence[SoakServer], seconds: float) -> list[float]:
    """Returns the requests/s of each server while all are loaded at the same time."""
    answered = [0.0] * len(servers)

    def measure(i: int, server: SoakServer) -> None:
        patient = [a.raw.replace(b"\r\n", b"\r\nX-Latency-Budget-Ms: 60000\r\n", 1) for a in server.requests]
        answered[i] = closed_loop(server.url, patient, 8, seconds) / seconds

    _run_at_once([partial(measure, i, server) for i, server in enumerate(servers)])
    return answered


def _run_at_once(actions: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Disturbances:
    """Actions that are repeated while the load runs. done: number of times, by action. failed: errors."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def every(self, seconds: float, name: str, action: Callable[[int], object]) -> None:
        """Starts to repeat an action. action: called with the number of earlier calls."""

        def run() -> None:
            while not self._over.wait(seconds):
                try:
                    action(self.done[name])
                    self.done[name] += 1
                except Exception as e:
                    self.failed.append(f"{name}: {type(e).__name__}: {e}")

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between disturbances, and between looks at memory and descriptors."""

    reload_s: float
    kill_s: float
    store_s: float
    look_s: float


LONG = Pace(reload_s=60.0, kill_s=120.0, store_s=300.0, look_s=60.0)
SHORT = Pace(reload_s=10.0, kill_s=15.0, store_s=20.0, look_s=10.0)


def settled(servers: Sequence[SoakServer], wanted: int | None = None) -> Footprint:
    """Returns the footprint once there are at most `wanted` descriptors, or after ten seconds."""
    until = time.monotonic() + 10
    while True:
        now = total(servers)
        enough = wanted is not None and now.descriptors <= wanted
        if enough or time.monotonic() > until:
            return now
        time.sleep(0.5)


def total(servers: Sequence[SoakServer]) -> Footprint:
    """Returns the sum of all servers' footprints."""
    each = [footprint(server.child.process.pid) for server in servers]
    return Footprint(
        sum(f.processes for f in each), sum(f.rss_bytes for f in each), sum(f.descriptors for f in each)
    )


def verdict(
    counts: Sequence[AnswerCounts], start: Footprint, end: Footprint, failed: list[str], log: str
) -> list[str]:
    """Returns the failures of a soak test in words; empty if there are none."""
    found = [f"an action failed: {line}" for line in failed[:5]]
    for one in counts:
        if one.wrong or one.unanswered or one.other:
            found.append(
                f"{one.wrong} wrong, {one.unanswered} unanswered, other statuses {dict(one.other)}: "
                + "; ".join(one.first_wrong)
            )
    most = MAX_GROWTH * start.rss_bytes + SLACK_BYTES
    if end.rss_bytes > most:
        found.append(f"memory grew from {start.rss_bytes:,} to {end.rss_bytes:,} bytes")
    if end.descriptors > start.descriptors + MAX_LEAKED:
        found.append(f"descriptors grew from {start.descriptors} to {end.descriptors}")
    if (at := log.find("Traceback")) >= 0:
        found.append(f"the log has a traceback: {log[max(0, at - 500) : at + 2000]}")
    return found


@contextmanager
def opened_servers(folder: Path, budget_ms: float) -> Iterator[tuple[list[SoakServer], RedisServer | None]]:
    """Starts the servers: one with process lanes and, if there is a Redis, one with rows in it.

    Yields the servers, and Redis or None.
    """
    clicks, table = trained(folder)
    _, hybrid = trained(folder, "hybrid")
    with ExitStack() as stack:
        servers = [lanes_server(clicks, {"hybrid@cpu": hybrid, "table@cpu": table}, folder, budget_ms)]
        stack.enter_context(servers[0].child)
        store = opened_store(folder)
        if store is None:
            print("no redis-server here: only the server with lanes is soaked", file=sys.stderr)
        else:
            stack.callback(store.kill)
            servers.append(tiers_server(clicks, table, folder, budget_ms, store))
            stack.enter_context(servers[-1].child)
        yield servers, store


def disturb(
    disturbances: Disturbances, servers: Sequence[SoakServer], store: RedisServer | None, pace: Pace
) -> None:
    """Starts reloads, killed lanes of the first server, aborted clients and restarts of Redis."""

    def reload(_number: int) -> None:
        for server in servers:
            server.reload()

    def abort(number: int) -> None:
        for server in servers:
            server.abort(number)

    disturbances.every(pace.reload_s, "reloads", reload)
    disturbances.every(pace.kill_s, "killed lanes", servers[0].kill_lane)
    disturbances.every(ABORT_EVERY_S, "aborted clients", abort)
    if store is not None:
        disturbances.every(pace.store_s, "restarts of Redis", lambda n: restart(store))


async def load_all(
    servers: Sequence[SoakServer],
    rates: Sequence[float],
    seconds: float,
    budget_s: float,
    seed: int,
    counts: Sequence[AnswerCounts],
) -> None:
    """Loads all servers at the same time. rates, counts: by server."""
    await asyncio.gather(
        *(
            load(server, rate, seconds, budget_s, seed + i, one)
            for i, (server, rate, one) in enumerate(zip(servers, rates, counts, strict=True))
        )
    )


def main() -> int:
    parser = command_parser(__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=30.0)
    length.add_argument("--seconds", type=float, help="a short soak: disturbances follow each other sooner")
    parser.add_argument("--share", type=float, default=0.7, help="of the capacity that is measured first")
    parser.add_argument("--budget-ms", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    seconds = args.seconds or 60 * args.minutes
    pace = SHORT if args.seconds else LONG
    with (
        tempfile.TemporaryDirectory(prefix="polyrec-soak-") as temporary,
        opened_servers(folder := Path(temporary), args.budget_ms) as (servers, store),
    ):
        rates = [args.share * c for c in capacity(servers, WARM_UP_S)]
        for server in servers:
            server.reload()
        start = settled(servers)
        looks = [start]
        counts = [AnswerCounts() for _ in servers]
        disturbances = Disturbances()

        def look(number: int) -> None:
            now = total(servers)
            looks.append(now)
            line = {s.name: {"sent": t.sent, "wrong": t.wrong} for s, t in zip(servers, counts, strict=True)}
            print(json.dumps({"at_s": (number + 1) * pace.look_s} | asdict(now) | line), file=sys.stderr)

        disturbances.every(pace.look_s, "looks", look)
        disturb(disturbances, servers, store, pace)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(load_all(servers, rates, seconds, args.budget_ms / 1e3, args.seed, counts))
        finally:
            disturbances.end()
        end = settled(servers, start.descriptors + MAX_LEAKED)
        log = "".join(file.read_text() for file in sorted(folder.glob("*.log")))
    found = verdict(counts, start, end, disturbances.failed, log)
    document = {
        "command": command(),
        "machine": machine(),
        "seconds": seconds,
        "rates": dict(zip([s.name for s in servers], np.round(rates, 1).tolist(), strict=True)),
        "done": dict(disturbances.done),
        "servers": {s.name: t.document() for s, t in zip(servers, counts, strict=True)},
        "start": asdict(start),
        "end": asdict(end),
        "looks": [asdict(one) for one in looks],
        "found": found,
    }
    save(args.json, document)
    print(json.dumps(document, indent=2))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
