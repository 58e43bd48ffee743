"""Measures the cost of traces per request, off and at several sampling rates, in turns in one run.

A real engine answers the same requests in this process, by way of the server's own HTTP protocol
(in_process.py); the exporter is the real one and sends to a collector that reads and forgets, both in
processes of their own. Blocks of requests take turns; a figure is the median of the differences to the block
without a tracer beside it, in processor time.

    python -m benchmarks.http.tracing_overhead runs/demo/table            # chrt -r 1 in front for a quiet
    figure
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.http.in_process import InProcessClient, opened, run, settle
from polyrec.server.app.engine import Engine
from polyrec.server.http.app import Application
from polyrec.server.tracing.tracer import Tracer, open_tracer

ROUNDS = 60
RATIOS = (0.0, 0.01, 1.0)


class Sink(BaseHTTPRequestHandler):
    """A collector that takes everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def collect(port: Connection) -> None:
    """A process that is a collector."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        port.send(server.server_port)
        server.serve_forever()


async def measure(app: Application, engine: Engine, tracers: Sequence[Tracer | None]) -> list[list[float]]:
    """Seconds a request, of each block, by tracer."""
    found: list[list[float]] = [[] for _ in tracers]
    client = InProcessClient(app)
    for turn in range(ROUNDS + 2):
        for blocks_s, tracer in zip(found, tracers, strict=True):
            engine.tracer = tracer
            took_s = await client.block_s()
            if turn >= 2:
                blocks_s.append(took_s)
    engine.tracer = None
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http.tracing_overhead", description=__doc__)
    parser.add_argument("bundle", help="folder of a bundle")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    engine, app = opened(args.bundle)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    collector = context.Process(target=collect, args=(theirs,), daemon=True)
    collector.start()
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ours.recv()}"}
    tracers: list[Tracer | None] = [None]
    for ratio in RATIOS:
        sampled = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(ratio)}
        os.environ.update(sampled)  # the SDK reads its own environment
        tracers.append(open_tracer(os.environ | endpoint))
    settle()
    off, *on = run(measure(app, engine, tracers))
    result: dict[str, object] = {"request_us_off": round(float(np.median(off)) * 1e6, 1)}
    for ratio, took_s in zip(RATIOS, on, strict=True):
        differences = (np.asarray(took_s) - np.asarray(off)) * 1e6
        quartiles = [round(float(q), 1) for q in np.quantile(differences, (0.25, 0.5, 0.75))]
        result[f"trace_us_at_{ratio:g}"] = quartiles[1]
        result[f"quartiles_at_{ratio:g}"] = [quartiles[0], quartiles[2]]
    for tracer in tracers:
        if tracer is not None:
            tracer.close()
            result["dropped"] = tracer.pipe.dropped
    engine.close()
    collector.terminate()
    print(json.dumps(result) if args.json else "\n".join(f"{k:22} {v}" for k, v in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
