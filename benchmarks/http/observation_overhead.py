"""Measures the processor time of metrics or traces per request, on and off in turns.

    python -m benchmarks.http.observation_overhead metrics runs/demo/table
    python -m benchmarks.http.observation_overhead traces runs/demo/table
    # chrt -r 1 in front for a quiet figure

A real engine answers the same requests in this process, through the server's own HTTP protocol
(in_process.py). Blocks of requests take turns; a figure is the median of the differences to the neighboring
unobserved block.

metrics  off means that nothing is observed, not even the protocol's statistics; a scrape is timed too
traces   at several sampling rates; the real exporter sends to a collector that reads and discards, each in
         its own process
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.command import command_parser
from benchmarks.http.in_process import InProcessClient, opened, run, settle
from polyrec.server.app.engine import Engine
from polyrec.server.http.app import Application
from polyrec.server.tracing.tracer import Tracer, open_tracer

ROUNDS = {"metrics": 200, "traces": 60}
WARM_UP = 2
LIMIT_US = 15.0
"""Maximum cost of metrics per request."""
RATIOS = (0.0, 0.01, 1.0)
SCRAPES = 50
Switch = Callable[[], object]


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


class Observers:
    """Attaches or detaches an engine's observers."""

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


class Sink(BaseHTTPRequestHandler):
    """Collector that accepts and discards everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def collect(port: Connection) -> None:
    """Runs a collector in its own process."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        port.send(server.server_port)
        server.serve_forever()


async def measure(app: Application, ways: Mapping[str, Switch], rounds: int) -> dict[str, list[float]]:
    """Returns microseconds per request of each block, by way. ways: functions that switch to a way."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    client = InProcessClient(app)
    for turn in range(rounds + WARM_UP):
        for way, switch in ways.items():
            switch()
            took_us = 1e6 * await client.block_s()
            if turn >= WARM_UP:
                found[way].append(took_us)
    return found


def compared(found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Returns the median when off, and quartiles of each other way's additional time, in microseconds."""
    off = np.asarray(found["off"])
    result: dict[str, Any] = {"request_us_off": round(float(np.median(off)), 1)}
    for way, took_us in found.items():
        if way != "off":
            more = np.quantile(np.asarray(took_us) - off, (0.25, 0.5, 0.75))
            low, result[f"{way}_us"], high = (round(float(q), 1) for q in more)
            result[f"{way}_us_quartiles"] = [low, high]
    return result


def metrics(engine: Engine, app: Application) -> dict[str, Any]:
    """Measures the cost of metrics and of a scrape."""
    observers = Observers(engine)
    ways: dict[str, Switch] = {"off": lambda: observers.turn(False), "metrics": lambda: observers.turn(True)}
    result = compared(run(measure(app, ways, ROUNDS["metrics"])))
    scrapes = []
    for _ in range(SCRAPES):
        start = time.perf_counter()
        text = engine.metrics.render()
        scrapes.append(time.perf_counter() - start)
    return result | {
        "scrape_ms": round(float(np.median(scrapes)) * 1e3, 2),
        "scrape_lines": text.count(b"\n"),
    }


def traces(engine: Engine, app: Application) -> dict[str, Any]:
    """Measures the cost of traces at each of RATIOS."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    collector = context.Process(target=collect, args=(theirs,), daemon=True)
    collector.start()
    theirs.close()  # of a collector that dies, receiving ends
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ours.recv()}"}
    tracers: dict[str, Tracer | None] = {"off": None}
    for ratio in RATIOS:
        sampled = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(ratio)}
        os.environ.update(sampled)  # the SDK reads its own environment
        tracers[f"trace_at_{ratio:g}"] = open_tracer(os.environ | endpoint)
    settle()
    ways: dict[str, Switch] = {
        way: partial(setattr, engine, "tracer", tracer) for way, tracer in tracers.items()
    }
    result = compared(run(measure(app, ways, ROUNDS["traces"])))
    engine.tracer = None
    for tracer in tracers.values():
        if tracer is not None:
            tracer.close()
            result["dropped"] = tracer.pipe.dropped
    collector.terminate()
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if a request's metrics cost no more than the limit, else 1."""
    parser = command_parser(__doc__)
    parser.add_argument("what", choices=list(ROUNDS))
    parser.add_argument("bundle", help="folder of a bundle")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    engine, app = opened(args.bundle)
    settle()
    result = (metrics if args.what == "metrics" else traces)(engine, app)
    engine.close()
    print(json.dumps(result) if args.json else "\n".join(f"{k:22} {v}" for k, v in result.items()))
    return 0 if result.get("metrics_us", 0) <= LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
