"""Drives a Polyrec server with MLPerf LoadGen: its Server scenario, with DLRM-v2's query sizes, over HTTP.

    python -m polyrec.loadtest.drivers.loadgen http://127.0.0.1:8000 --bundle runs/demo/table --qps 200 \
        --slo-ms 60

LoadGen decides when each query is issued (Poisson, by its own clock) and whether the run is valid. A sample
is one query; its ranking of 100 to 700 candidates (polyrec.planner.traffic) is built beforehand. LoadGen
issues queries from its own thread; an asyncio loop beside it sends them and reports completions. Requires
mlcommons-loadgen, from the extra `loadtest`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from polyrec.loadtest.arguments import non_negative_int, positive_float, positive_int
from polyrec.loadtest.drivers.connection import Answer, LoadError, Pool, Target
from polyrec.loadtest.drivers.load import BUDGET
from polyrec.loadtest.drivers.server_pages import Buckets, request_buckets
from polyrec.loadtest.parser import Parser
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.errors import PolyrecError
from polyrec.planner.traffic import parse_sizes

INVALID = 4
"""Exit status of a run that LoadGen found invalid, or that had errors."""
MAX_CONNECTIONS = 1024
SWITCH_S = 5e-5


@dataclass(frozen=True, slots=True)
class Verdict:
    """LoadGen's verdict on a run.

    reasons: why a run is invalid. Latencies are of all queries, in milliseconds.
    failed: queries without a 2xx answer, which LoadGen counts as completed because it ignores statuses.
    """

    valid: bool
    reasons: tuple[str, ...]
    queries: int
    qps: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    failed: int


class Sender:
    """Sends prepared requests from LoadGen's thread, and reports each answer to it."""

    def __init__(self, target: Target, requests: Sequence[bytes], connections: int) -> None:
        self.answered = 0
        self.failed = 0
        self._lg = loadgen()
        self._requests = requests
        self._target = target
        self._connections = connections
        self._ready = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sending", daemon=True)

    def __enter__(self) -> Sender:
        """Starts the loop. Raises LoadError if no server listens."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def issue(self, samples: Sequence[Any]) -> None:
        """Sends queries; called by LoadGen."""
        for sample in samples:
            # sample ids are addresses, too sparse to index an array
            self._loop.call_soon_threadsafe(self._send, sample.id, sample.index)

    def _send(self, identifier: int, index: int) -> None:
        self._pool.send(identifier, self._requests[index])

    def _complete(self, identifier: int, answer: Answer) -> None:
        self.answered += 1
        self.failed += not 200 <= answer.status < 300
        self._lg.QuerySamplesComplete([self._lg.QuerySampleResponse(identifier, 0, 0)])

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._pool = Pool(self._target, MAX_CONNECTIONS, self._complete)
        try:
            await self._pool.open(self._connections)
        except LoadError as e:
            self._error = e
            self._ready.set()
            return
        self._ready.set()
        await self._stop.wait()
        await self._pool.close()


def loadgen() -> Any:
    """Imports the library. Raises PolyrecError if it is not installed."""
    try:
        import mlperf_loadgen
    except ImportError:
        raise PolyrecError("MLPerf LoadGen is not installed: pip install 'polyrec[loadtest]'") from None
    return mlperf_loadgen


def drive(
    target: Target,
    requests: Sequence[bytes],
    *,
    qps: float,
    slo_s: float,
    seconds: float,
    logs: Path,
    connections: int = 64,
    seed: int = 0,
) -> Verdict:
    """Runs the Server scenario for at least `seconds`; it is valid if 99% of the queries end within slo_s."""
    lg = loadgen()
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.Server
    settings.mode = lg.TestMode.PerformanceOnly
    settings.server_target_qps = qps
    settings.server_target_latency_ns = int(slo_s * 1e9)
    settings.server_target_latency_percentile = 0.99
    settings.min_duration_ms = int(seconds * 1e3)
    settings.min_query_count = 100
    settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = seed + 1
    output = lg.LogOutputSettings()
    output.outdir = str(logs)
    output.copy_summary_to_stdout = False
    log = lg.LogSettings()
    log.log_output = output
    log.enable_trace = False
    count = len(requests)
    interval = sys.getswitchinterval()
    with Sender(target, requests, connections) as sender:
        # otherwise LoadGen's thread would wait 5 ms for the interpreter while answers are read
        sys.setswitchinterval(SWITCH_S)
        sut = lg.ConstructSUT(sender.issue, lambda: None)
        qsl = lg.ConstructQSL(count, count, lambda samples: None, lambda samples: None)
        try:
            lg.StartTestWithLogSettings(sut, qsl, settings, log)
        finally:
            lg.DestroyQSL(qsl)
            lg.DestroySUT(sut)
            sys.setswitchinterval(interval)
    summary = (logs / "mlperf_log_summary.txt").read_text(encoding="utf-8")
    return read_summary(summary, sender.answered, sender.failed)


def read_summary(text: str, queries: int, failed: int) -> Verdict:
    """Parses LoadGen's summary. Raises LoadError if it is not one."""

    def number(name: str) -> float:
        found = re.search(rf"^{re.escape(name)}\s*:\s*([0-9.eE+]+)", text, re.MULTILINE)
        if found is None:
            raise LoadError(f"LoadGen's summary has no '{name}'")
        return float(found[1])

    result = re.search(r"^Result is : (\w+)", text, re.MULTILINE)
    if result is None:
        raise LoadError("LoadGen's summary has no result")
    reasons = re.findall(r"^\s*(?:\* )?(.*satisfied ?: NO.*)$", text, re.MULTILINE)
    return Verdict(
        valid=result[1] == "VALID",
        reasons=tuple(reason.strip() for reason in reasons),
        queries=queries,
        qps=number("Completed samples per second"),
        p50_ms=number("50.00 percentile latency (ns)") / 1e6,
        p90_ms=number("90.00 percentile latency (ns)") / 1e6,
        p99_ms=number("99.00 percentile latency (ns)") / 1e6,
        max_ms=number("Max latency (ns)") / 1e6,
        failed=failed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m polyrec.loadtest.drivers.loadgen",
        description="Drive a server with MLPerf LoadGen: Server scenario, DLRM-v2's query sizes.",
    )
    add = parser.add_argument
    add("url", help="http://host:port")
    add("--bundle", required=True, metavar="DIR", help="the served bundle, for its schema and vocabularies")
    add("--data", metavar="FILE", help="real rows to request (default: synthetic rows)")
    add("--qps", type=positive_float, required=True, help="target queries per second")
    add(
        "--slo-ms",
        type=positive_float,
        default=60.0,
        help="maximum p99 of a valid run (default 60)",
    )
    add("--seconds", type=positive_float, default=60.0, help="minimum time (default 60; MLPerf requires 600)")
    add("--sizes", default="mlperf", help="rows per query (default mlperf)")
    add("--samples", type=positive_int, default=2048, help="number of different queries (default 2048)")
    add(
        "--seed",
        type=non_negative_int,
        default=0,
        help="seed of requests and of LoadGen's schedule (default 0)",
    )
    add("--logs", metavar="DIR", help="folder for LoadGen's logs")
    add("--json", action="store_true", help="print the verdict as JSON")
    return parser


def _requests(args: argparse.Namespace, target: Target) -> list[bytes]:
    sizes = parse_sizes(args.sizes)
    random = np.random.default_rng(args.seed)
    source = open_source(args.data, load_bundle(args.bundle), args.seed)
    _, body = source.sampled(sizes.sample(args.samples, random), args.seed)
    return [target.request(body(i)) for i in range(args.samples)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs LoadGen; returns the exit status: 0 for a valid run, 2 for a user's mistake, 4 for an invalid
    run.
    """
    args = _parser().parse_args(argv)
    url = args.url.rstrip("/")
    try:
        loadgen()
        headers = {"Content-Type": "application/json", BUDGET: f"{args.slo_ms:g}"}
        target = Target(url + RANK, headers)
        requests = _requests(args, target)
        before = _served(url)
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(args.logs or folder)
            logs.mkdir(parents=True, exist_ok=True)
            verdict = drive(
                target,
                requests,
                qps=args.qps,
                slo_s=args.slo_ms / 1e3,
                seconds=args.seconds,
                logs=logs,
                seed=args.seed,
            )
        result: dict[str, Any] = asdict(verdict)
        after = _served(url)
        if after is not None and after.total:
            served = after if before is None else after - before
            result["served"] = {
                "queries": served.total,
                "p50_ms": round(1e3 * served.quantile(0.5), 3),
                "p99_ms": round(1e3 * served.quantile(0.99), 3),
            }
    except PolyrecError as e:
        print(f"loadgen: {e}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:10} {value}")
    return 0 if verdict.valid and not verdict.failed else INVALID


def _served(url: str) -> Buckets | None:
    """Returns the server's own latency histogram of rankings; None if it is not a Polyrec server."""
    try:
        return request_buckets(url, endpoint="rank")
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main())
