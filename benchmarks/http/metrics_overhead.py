"""Measures the cost of metrics per request, and of a scrape, on and off in one run.

A real engine answers the same requests in this process, by way of the server's own HTTP protocol
(in_process.py). Blocks of requests with metrics and without alternate; the figure is the median of the
differences of neighbors, in processor time. Off means that nothing is observed, neither metrics nor the
protocol's statistics.

    python -m benchmarks.http.metrics_overhead runs/demo/table            # chrt -r 1 in front for a quiet
    figure
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.http.in_process import InProcessClient, opened, run, settle
from polyrec.server.app.engine import Engine
from polyrec.server.http.app import Application

BLOCKS = 200
LIMIT_US = 15.0


class Nothing:
    """Accepts all observations and stores none."""

    @property
    def outcomes(self) -> Nothing:
        return self

    def answered(self, *_: object) -> None: ...
    def finished(self, *_: object) -> None: ...
    def succeeded(self, *_: object) -> None: ...
    def executed(self, *_: object) -> None: ...
    def failed(self, *_: object) -> None: ...
    def batch_executed(self, *_: object) -> None: ...
    def lane_alive(self, *_: object) -> None: ...
    def ticked(self, *_: object) -> None: ...


class Switch:
    """An engine's observers, in place or out of it."""

    def __init__(self, engine: Engine) -> None:
        self._dispatcher: Any = engine.serving.dispatcher
        self._observer = self._dispatcher._observer
        self._endpoints = [(path.endpoints, dict(path.endpoints)) for path in engine.serving.paths]
        self._statistics = engine.serving.statistics
        self._serving = engine.serving

    def turn(self, on: bool) -> None:
        observer = self._observer if on else Nothing()
        self._dispatcher._observer = self._dispatcher._executor.observer = observer
        for live, kept in self._endpoints:
            live.update({name: (kept[name] if on else Nothing()) for name in kept})  # type: ignore[misc]
        # the dataclass is frozen for everybody else
        object.__setattr__(self._serving, "statistics", self._statistics if on else Nothing())


async def measure(app: Application, switch: Switch) -> dict[bool, list[float]]:
    """Seconds a request, of each block, by whether metrics were on."""
    found: dict[bool, list[float]] = {True: [], False: []}
    client = InProcessClient(app)
    for block in range(2 * BLOCKS + 4):
        on = block % 2 == 0
        switch.turn(on)
        took_s = await client.block_s()
        if block >= 4:
            found[on].append(took_s)
    switch.turn(True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """0 if a request's metrics cost no more than the limit, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http.metrics_overhead", description=__doc__)
    parser.add_argument("bundle", help="folder of a bundle")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    engine, app = opened(args.bundle)
    settle()
    found = run(measure(app, Switch(engine)))
    on, off = (float(np.median(found[kind])) * 1e6 for kind in (True, False))
    differences = (np.asarray(found[True]) - np.asarray(found[False])) * 1e6
    scrapes = []
    for _ in range(50):
        start = time.perf_counter()
        text = engine.metrics.render()
        scrapes.append(time.perf_counter() - start)
    result = {
        "request_us_on": round(on, 1),
        "request_us_off": round(off, 1),
        "metrics_us": round(float(np.median(differences)), 1),
        "metrics_us_quartiles": [round(float(q), 1) for q in np.quantile(differences, (0.25, 0.75))],
        "scrape_ms": round(float(np.median(scrapes)) * 1e3, 2),
        "scrape_lines": text.count(b"\n"),
    }
    engine.close()
    print(json.dumps(result) if args.json else "\n".join(f"{k:22} {v}" for k, v in result.items()))
    return 0 if result["metrics_us"] <= LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
