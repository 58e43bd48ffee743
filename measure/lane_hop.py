"""Measures the round trip to a lane on another core, without execution.

    time from submitting a batch to its completion - time that the lane executed
      = two wake-ups, and for a process the transfer through shared memory

Half of the batches follow a pause. `python -m benchmarks.lanes.hop` measures the same by size and load.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import numpy as np
import uvloop

from polyrec.measure.profile.requests import Requests
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import LaneKind, PlannedLane, PlannedPath
from polyrec.planner.profile import Hop
from polyrec.server.clock import clock
from polyrec.server.lanes.lane import Executed, Lane
from polyrec.server.lanes.opening import LaneOpening

KINDS: tuple[LaneKind, ...] = ("thread", "process")
ROWS = 23
BATCHES = 16
A_TURN = 20
WARM = 2
REST_S = 0.002


def measure_hops(path: PlannedPath, bundle: Bundle, seconds: float, seed: int = 0) -> dict[LaneKind, Hop]:
    """Measures thread and process lanes with one CPU path, alternating, for about `seconds`.

    The event loop is pinned to the first usable core, the lanes to the last. Raises the errors of opening a
    lane.
    """
    drawn = Requests(bundle.encoder, np.random.default_rng(seed), bundle.manifest.counted_rows)
    batches = [drawn.encode(*drawn.request(ROWS), ROWS) for _ in range(BATCHES)]
    usable = os.sched_getaffinity(0)
    found: dict[LaneKind, list[float]] = {kind: [] for kind in KINDS}
    try:
        with ExitStack() as opened, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            lanes: dict[LaneKind, Lane] = {}
            for kind in KINDS:
                planned = PlannedLane(name=kind, kind=kind, cores=(max(usable),))
                lanes[kind] = LaneOpening(planned, [(path, bundle)], lambda _: None).open()
                opened.callback(lanes[kind].close)
            os.sched_setaffinity(0, {min(usable)})
            end_s = perf_counter() + seconds
            while perf_counter() < end_s:
                for rest_s in (0.0, REST_S):
                    for kind, lane in lanes.items():
                        took = runner.run(hops(lane, path.name, batches, A_TURN, rest_s))
                        found[kind] += [hop_s for hop_s, _ in took[WARM:]]
    finally:
        os.sched_setaffinity(0, usable)
    return {
        kind: Hop(median_s=max(0.0, median_s), tail_s=max(0.0, median_s, tail_s))
        for kind, took in found.items()
        for median_s, tail_s in [np.quantile(took, (0.5, 0.99)).tolist()]
    }


async def hops(
    lane: Lane, path: str, batches: Sequence[Batch], count: int, rest_s: float
) -> list[tuple[float, float]]:
    """Returns (seconds of the round trip, seconds executed) of `count` batches, with a pause before each."""
    loop = asyncio.get_running_loop()
    lane.attach()
    found = []
    for i in range(count):
        if rest_s:
            await asyncio.sleep(rest_s)
        done: asyncio.Future[tuple[float, Executed | Exception]] = loop.create_future()

        def settle(outcome: Executed | Exception, done: asyncio.Future[Any] = done) -> None:
            done.set_result((clock(), outcome))

        began_s = clock()
        lane.execute(path, batches[i % len(batches)], settle)
        ended_s, outcome = await done
        if isinstance(outcome, Exception):
            raise outcome
        found.append((ended_s - began_s - outcome.took_s, outcome.took_s))
    return found
