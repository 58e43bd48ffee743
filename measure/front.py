"""Measures the server's CPU time outside of lanes, with a real server and real requests.

    CPU time of the server's threads - time of encode, embed and dense (from its metrics)
      = parsing, routing, HTTP, writing; a line through three sizes gives the cost per query and per row

`polyrec profile` stores the result as the profile's front.
"""

from __future__ import annotations

import numpy as np

from polyrec.loadtest.comparison.calibration import ENDLESS, relative_line
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.server_pages import read_metrics
from polyrec.loadtest.machine import core_seconds
from polyrec.loadtest.traffic.request_bodies import PREDICT, RANK, predict_body, rank_body
from polyrec.measure.profile.requests import Requests
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import PlannedPath
from polyrec.planner.profile import Front
from polyrec.server.child import start

ROWS = (1, 23, 270)
CONNECTIONS = 4
DIFFERENT_REQUESTS = 256
ROUNDS = 5
LANE_PHASES = ("encode", "embed", "dense")


def measure_front(path: PlannedPath, bundle: Bundle, seconds: float, seed: int = 0) -> Front:
    """Serves one CPU path in the event loop and loads it in a closed loop, for about `seconds`.

    Raises StartFailed or LoadError.
    """
    drawn = Requests(bundle.encoder, np.random.default_rng(seed), bundle.manifest.counted_rows)
    settings: dict[str, object] = {
        "bundle": path.bundle,
        "runtime": path.runtime,
        "device": path.device,
        "precision": path.precision,
        # keep the server's messages out of the profiler's output
        "log_level": "error",
        "drain_grace_s": 0,
    }
    if path.width is not None:
        settings["width"] = path.width
    # (share of time the server waited for a core, seconds per query)
    costs: dict[int, list[tuple[float, float]]] = {rows: [] for rows in ROWS}
    with start(settings) as child:
        pid = child.process.pid
        requests = {rows: _requests(child.url, drawn, rows) for rows in ROWS}
        each = seconds / (ROUNDS * len(ROWS))
        for _ in range(ROUNDS):
            for rows in ROWS:
                lane, before = lane_seconds(child.url), core_seconds(pid)
                answered = closed_loop(child.url, requests[rows], CONNECTIONS, each)
                after, lane = core_seconds(pid), lane_seconds(child.url) - lane
                had, waited = (b - a for a, b in zip(before, after, strict=True))
                # lane times are wall-clock and include waiting for a core, but CPU time does not
                spent = max(had - lane * had / (had + waited), 0.0)
                costs[rows].append((waited / had, spent / answered))
    # use the round that waited least for a core
    query_s, row_s = relative_line(ROWS, [min(costs[rows])[1] for rows in ROWS])
    return Front(query_s=query_s, row_s=row_s)


def lane_seconds(url: str) -> float:
    """Returns the seconds that the server's lanes have executed so far, by its metrics."""
    counted = read_metrics(url)
    return sum(counted.total("polyrec_phase_seconds_sum", phase=phase) for phase in LANE_PHASES)


def _requests(url: str, drawn: Requests, rows: int) -> list[bytes]:
    """Builds distinct HTTP requests: rankings, or predictions if the schema has only one role."""
    target = Target(url + (RANK if drawn.ranking else PREDICT), ENDLESS)
    made = []
    for _ in range(DIFFERENT_REQUESTS):
        context, candidates = drawn.request(rows)
        if drawn.ranking:
            body = rank_body({name: values[0] for name, values in context.items()}, candidates)
        else:
            body = predict_body(context | candidates)
        made.append(target.request(body))
    return made
