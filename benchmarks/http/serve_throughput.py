"""Measures one server's throughput on one core with the client on another, and how its time is divided.

    python benchmarks/http/serve_throughput.py                      # trains a small model on generated data
    python benchmarks/http/serve_throughput.py --bundle DIR --data FILE --json

Workloads are rows of a data file as predict, rank or inference-protocol requests, with no two equal requests
in succession; predict and infer repeat in every row the context that rank sends once. For each, a closed loop
over one connection measures the latency alone, and over several connections the throughput. The best of
several runs is kept, because on a shared machine the others measure its neighbors. The division of the
server's time comes from its own metrics: phases as it timed them (queue is waiting, not work), and `http` for
the rest of its CPU time. The client is a plain socket loop. Its share of its core is printed, with a warning
above 80%, since the run then measures the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import cast

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import uvloop

from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.server_pages import get_json, read_metrics
from polyrec.loadtest.machine import processor
from polyrec.loadtest.traffic.queries import Queries, Query, Request, read_rows
from polyrec.loadtest.traffic.request_bodies import INFER, PREDICT, RANK
from polyrec.models.bundle.bundle import load_bundle
from polyrec.server.child import start

OK = (b"200",)
PHASES = ("parse", "queue", "encode", "embed", "dense", "serialise")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
DIFFERENT_REQUESTS = 4096
MAX_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """One run. Times in microseconds per request; the queue is waiting, not work."""

    workload: str
    rows: int
    connections: int
    requests_per_s: float
    rows_per_s: float
    p50_us: float
    p99_us: float
    batch_queries: float
    cpu_us: float
    server_core: float
    client_core: float
    phases_us: dict[str, float]
    http_us: float


class Connection(asyncio.Protocol):
    """Sends requests one after another, each after the previous answer is complete.

    An answer whose status code is not in `expected` is an error.
    """

    def __init__(
        self,
        requests: Iterator[bytes],
        latencies_s: list[float],
        ends_s: float,
        expected: tuple[bytes, ...] = OK,
    ) -> None:
        self._requests = requests
        self._latencies = latencies_s
        self._ends = ends_s
        self._expected = expected
        self._buffer = b""
        self._sent = 0.0
        self._answered = False
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._buffer.find(b"content-length: ") + 16
        if len(self._buffer) < head + 4 + int(self._buffer[at : self._buffer.find(b"\r", at)]):
            return
        if self._buffer[9:12] not in self._expected:
            self.done.set_exception(RuntimeError(self._buffer[:300].decode(errors="replace")))
            self._transport.close()
            return
        self._buffer = b""
        now = time.perf_counter()
        # The first answer waited for the other connections to be accepted.
        if self._answered:
            self._latencies.append(now - self._sent)
        self._answered = True
        if now < self._ends:
            self._send()
        else:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


async def closed_loop(
    host: str,
    port: int,
    requests: Iterator[bytes],
    connections: int,
    seconds: float,
    expected: tuple[bytes, ...] = OK,
) -> list[float]:
    """Returns the latencies in seconds of all answers except the first of each connection."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    ends = time.perf_counter() + seconds
    opened = [
        await loop.create_connection(lambda: Connection(requests, latencies, ends, expected), host, port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in opened))
    return latencies


def prepared(path: str, build: Callable[[Query], Request], rows: int, data_rows: int) -> list[bytes]:
    """Returns requests of `rows` consecutive rows from all over the data; the first row gives the context."""
    random = np.random.default_rng(0)
    requests = []
    for first in random.integers(0, max(1, data_rows - rows), DIFFERENT_REQUESTS).tolist():
        body, headers = build(Query(first, np.arange(first, min(first + rows, data_rows))))
        requests.append(Target(f"http://localhost{path}", headers).request(body))
    return requests


def scrape(url: str, path: str) -> dict[str, float]:
    """Reads the cumulative metrics from which differences are computed."""
    total = read_metrics(url).total
    found = {phase: total("polyrec_phase_seconds_sum", path=path, phase=phase) for phase in PHASES}
    found["cpu"] = total("process_cpu_seconds_total")
    found["queries"] = total("polyrec_batch_queries_total", path=path)
    found["batches"] = total("polyrec_batch_rows_count", path=path)
    return found


def measure(
    url: str, path: str, workload: str, rows: int, requests: Sequence[bytes], connections: int, seconds: float
) -> ThroughputResult:
    host, port = url.removeprefix("http://").split(":")
    everything = cycle(requests)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(closed_loop(host, int(port), everything, connections, min(1.0, seconds / 4)))
        before = scrape(url, path)
        begin, cpu = time.perf_counter(), time.process_time()
        latencies = runner.run(closed_loop(host, int(port), everything, connections, seconds))
        took, cpu = time.perf_counter() - begin, time.process_time() - cpu
        after = scrape(url, path)
    n = len(latencies)
    spent = {key: after[key] - before[key] for key in after}
    phases = {phase: spent[phase] / n * 1e6 for phase in PHASES}
    worked = sum(us for phase, us in phases.items() if phase != "queue")
    p50, p99 = np.quantile(latencies, (0.5, 0.99)) * 1e6
    return ThroughputResult(
        workload=workload,
        rows=rows,
        connections=connections,
        requests_per_s=n / took,
        rows_per_s=n * rows / took,
        p50_us=float(p50),
        p99_us=float(p99),
        batch_queries=spent["queries"] / spent["batches"],
        cpu_us=spent["cpu"] / n * 1e6,
        server_core=spent["cpu"] / took,
        client_core=cpu / took,
        phases_us=phases,
        http_us=spent["cpu"] / n * 1e6 - worked,
    )


def small_model(folder: Path) -> tuple[Path, Path]:
    """Trains a model for a few seconds on generated data; returns (bundle, data)."""
    from polyrec.models.data.reader import open_data
    from polyrec.models.data.synthetic.generator import generate
    from polyrec.models.schema.schema import load_schema
    from polyrec.models.training.pipeline import Learner
    from polyrec.models.training.recipe import default_training

    data = folder / "clicks.parquet"
    generate(data, 100_000, seed=1)
    schema = load_schema("trivago")
    training = default_training(schema).with_recipe({"epochs": 1})
    Learner(open_data(data, schema), schema, training).learn(folder / "bundle")
    return folder / "bundle", data


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the model and the data of requests."""
    parser.add_argument("--bundle", type=Path, help="bundle to execute (default: a small one, trained now)")
    parser.add_argument("--data", type=Path, help="Parquet file whose rows are asked about")


@contextmanager
def model(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """Yields (bundle, data) according to those arguments."""
    if (args.bundle is None) != (args.data is None):
        parser.error("--bundle and --data go together")
    with tempfile.TemporaryDirectory() as folder:
        yield (args.bundle, args.data) if args.bundle else small_model(Path(folder))


def row(result: ThroughputResult) -> str:
    phases = "".join(f"{result.phases_us[p]:9.0f}" for p in PHASES)
    return (
        f"{result.workload:<14}{result.rows:>5}{result.connections:>6}{result.requests_per_s:>9.0f}"
        f"{result.rows_per_s:>9.0f}{result.p50_us:>8.0f}{result.p99_us:>8.0f}{result.batch_queries:>7.1f}"
        f"{phases}{result.http_us:>7.0f}{result.cpu_us:>8.0f}{result.server_core:>8.0%}{result.client_core:>8.0%}"
        + ("  client-bound" if result.client_core > 0.8 else "")
    )


HEAD = (
    f"{'workload':<14}{'rows':>5}{'conns':>6}{'req/s':>9}{'rows/s':>9}{'p50 us':>8}{'p99 us':>8}{'merged':>7}"
    + "".join(f"{p:>9}" for p in PHASES)
    + f"{'http':>7}{'cpu us':>8}{'server':>8}{'client':>8}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="throughput of one server on one core")
    add_model(parser)
    parser.add_argument("--runtime", default="auto", choices=["auto", "torch", "onnx"])
    parser.add_argument("--lane", default="auto", choices=["auto", "inline", "thread", "process"])
    parser.add_argument("--rows", type=int, default=23, help="candidates of a ranking request")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--workload", action="append", help="only these (predict, rank, infer)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, the best is kept")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})
    with model(parser, args) as (bundle_path, data_path):
        bundle = load_bundle(bundle_path)
        schema = bundle.manifest.schema_
        data = read_rows(data_path, schema, MAX_ROWS)
        queries = Queries(data, schema, bundle.encoder)
        many = args.rows
        workloads: list[tuple[str, int, str, Callable[[Query], Request]]] = [
            ("predict JSON", 1, PREDICT, queries.predict),
            ("infer binary", 1, INFER, queries.infer),
            ("rank JSON", many, RANK, queries.rank),
            ("rank binary", many, INFER, queries.infer_ranking),
            ("predict JSON", many, PREDICT, queries.predict),
            ("infer binary", many, INFER, queries.infer),
        ]
        settings = {
            "bundle": bundle_path,
            "runtime": args.runtime,
            "lane": args.lane,
            "default_budget_ms": 60_000,
            "drain_grace_s": 0,
        }
        results = []
        with start(settings, core=SERVER_CORE) as server:
            path = get_json(server.url, "/v1/paths")["paths"][0]
            if not args.json:
                print(f"{path['name']}, {path['runtime']}, {path['bundle']['bytes']:,} bytes; {machine()}")
                print(HEAD)
            for workload, rows, endpoint, build in workloads:
                if args.workload and workload.split()[0] not in args.workload:
                    continue
                requests = prepared(endpoint, build, rows, data.num_rows)
                for connections in args.connections:
                    result = max(
                        (
                            measure(
                                server.url, path["name"], workload, rows, requests, connections, args.seconds
                            )
                            for _ in range(args.repeat)
                        ),
                        key=lambda r: r.requests_per_s,
                    )
                    results.append(result)
                    if not args.json:
                        print(row(result), flush=True)
    if args.json:
        print(
            json.dumps(
                {"machine": machine(), "path": path, "results": [asdict(r) for r in results]}, indent=2
            )
        )
    return 0


def machine() -> str:
    where = "client on another" if CLIENT_CORE != SERVER_CORE else "client on THE SAME"
    return f"{processor()}, server on one core, {where}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
