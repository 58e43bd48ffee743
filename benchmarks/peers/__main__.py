"""Compares Polyrec with other servers on models of real size: one core each, load from another, in turns.

    python -m benchmarks.peers --rows 23 --servers polyrec,fastapi,mosec --turns 3 \\
        --out docs/results/peers.json

For each request size, a turn measures every server: a closed loop of 16 connections (requests/s), a single
connection (latency), and the highest open-loop Poisson rate at which p99 stays within the limit and 99% of
the requests are answered correctly in time. The searches of all servers advance trial by trial, so that noise
affects all equally; figures are medians over turns. Open-loop requests carry the limit as their latency
budget, as a client with that SLO would send it; peers ignore the header. Every answer is compared with the
reference (benchmarks/peers/reference.py). `session` is the dense graph's ONNX Runtime session without any
server.

Names of servers: benchmarks/peers/servers/starting.py. `--form context` sends one context with its candidates
to Polyrec, and the exploded rows to the others. The peers' environment and the
models are made on first use.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
from tqdm import tqdm

from benchmarks.command import (
    CLIENT_CORE,
    SERVER_CORE,
    command,
    command_parser,
    priority,
    revision,
    save,
    saved,
    today,
)
from benchmarks.peers.graphs import peer_files
from benchmarks.peers.load import Known, Trial, closed, trial
from benchmarks.peers.models import MODELS, open_model, value_of_rank
from benchmarks.peers.page import table
from benchmarks.peers.queries import PeerRows, binary_body, draw, json_body, ranking_body, share_context
from benchmarks.peers.reference import Reference
from benchmarks.peers.servers.starting import RunningServer, ServerName, start_server
from polyrec.loadtest.comparison.capacity_search import CapacitySearch
from polyrec.loadtest.machine import machine
from polyrec.measure.machine.cpu import vectors
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import F64

LIMIT_MS = {23: 10.0, 270: 25.0, 2048: 80.0}
"""Limit of p99 by rows per request; the last is that of MLPerf DLRM v3."""
REQUESTS = {23: 512, 270: 64, 2048: 16}
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "int8": 5e-2}
"""Maximum error of a probability; for int8, of a row with inputs beyond the static ranges."""
CONNECTIONS = 16
MAX_TRIAL_S = 5.0
TRIAL_REQUESTS = 150
LATE_TRIALS = 3
FIRST, GROWTH, PRECISION, MAX_TRIALS = 0.7, 1.25, 1.05, 14
"""Search for the knee: first rate relative to the closed loop, growth, precision, trials per turn."""


@dataclass(slots=True)
class PeerCase:
    """Requests of one size with their answers. limit_s: limit of p99."""

    rows: int
    limit_s: float
    drawn: PeerRows
    form: str
    expected: F64

    def known(self, server: RunningServer) -> Known:
        """Returns the requests in the form that a server takes."""
        name, count = server.name, len(self.drawn)
        headers = {"Content-Type": "application/json"}
        body = json_body
        if name.binary:
            headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
            body = binary_body
        elif self.form == "context" and name.kind == "polyrec":
            body = ranking_body
        bodies = [body(self.drawn, i) for i in range(count)]
        return Known(server.url, headers, bodies, self.expected, TOLERANCE[name.precision], name.binary)


@dataclass(slots=True)
class PeerTally:
    """Figures of one server, one value per turn. alone_s: median latency of a single connection."""

    closed: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    knee: list[float] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Returns medians over the turns, and the figures of each turn."""
        return {
            "closed_requests_per_s": median(self.closed),
            "alone_ms": 1e3 * median(self.alone_s),
            "knee_requests_per_s": median(self.knee),
            "turns": {
                "closed_requests_per_s": self.closed,
                "alone_ms": [1e3 * s for s in self.alone_s],
                "knee_requests_per_s": self.knee,
            },
            "trials": len(self.trials),
        }


def case_of(bundle: Bundle, rows: int, form: str) -> PeerCase:
    """Draws the requests of one size and computes their answers."""
    schema = bundle.manifest.schema_
    drawn = draw(schema, value_of_rank(bundle), REQUESTS[rows], rows)
    if form == "context":
        drawn = share_context(drawn, schema)
    reference = Reference(bundle)
    expected = np.stack([reference(*request) for request in zip(drawn.dense, drawn.sparse, strict=True)])
    return PeerCase(rows, LIMIT_MS[rows] / 1e3, drawn, form, expected)


def session_rows_per_s(files: Path, case: PeerCase, seconds: float) -> float:
    """Returns rows/s of the dense graph's session alone, on the servers' core, with random vectors."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {SERVER_CORE})
    try:
        session = ort.InferenceSession(str(files / "dense.onnx"), options, providers=["CPUExecutionProvider"])
        shape = next(i for i in session.get_inputs() if i.name == "candidate").shape
        vectors = np.random.default_rng(0).random((case.rows, *shape[1:]), np.float32) - np.float32(0.5)
        given = [{"dense_candidate": dense, "candidate": vectors} for dense in case.drawn.dense]
        runs, ends = 0, 0.0
        for warm in (True, False):
            runs, began = 0, time.perf_counter()
            ends = began + (seconds / 4 if warm else seconds)
            while time.perf_counter() < ends:
                session.run(None, given[runs % len(given)])
                runs += 1
            took = time.perf_counter() - began
        return runs * case.rows / took
    finally:
        os.sched_setaffinity(0, cores)


def turn(
    servers: Sequence[RunningServer],
    case: PeerCase,
    tallies: dict[str, PeerTally],
    args: argparse.Namespace,
    seed: int,
) -> None:
    """Measures all running servers once."""
    known = {server.name.name: case.known(server) for server in servers}
    closed_loops(known, tallies, args.seconds)
    knees(known, case, tallies, args.seconds, seed, verbose=args.verbose)


def knees(
    known: Mapping[str, Known],
    case: PeerCase,
    tallies: Mapping[str, PeerTally],
    seconds: float,
    seed: int,
    max_trials: int = MAX_TRIALS,
    verbose: bool = False,
) -> None:
    """Searches the knee of each server, from the rate of its last closed loop; trials take turns.

    seconds: of a trial, at least. seed: of the first trial.
    """

    def held(name: str, rate: float) -> bool:
        return _held(known[name], rate, case, tallies[name], seconds, seed, verbose)

    searches = {}
    for name in known:
        rate = FIRST * tallies[name].closed[-1]
        searches[name] = CapacitySearch(rate, PRECISION, GROWTH, max_verdicts=max_trials)
    while any(search.rate is not None for search in searches.values()):
        for name, search in searches.items():
            if search.rate is not None:
                seed += 1
                search.record(search.rate, held(name, search.rate))
    for name, search in searches.items():
        tallies[name].knee.append(search.met or 0.0)


def closed_loops(known: Mapping[str, Known], tallies: Mapping[str, PeerTally], seconds: float) -> None:
    """Measures a closed loop of each server, then a single connection of each."""
    for name, requests in known.items():
        closed(requests, CONNECTIONS, 0.3)
        tallies[name].closed.append(closed(requests, CONNECTIONS, seconds).requests_per_s)
    for name, requests in known.items():
        tallies[name].alone_s.append(closed(requests, 1, seconds / 2).p50_s)


def _held(
    known: Known, rate: float, case: PeerCase, tally: PeerTally, least_s: float, seed: int, verbose: bool
) -> bool:
    """Returns whether a rate is held; repeats trials that failed while the sender itself was late."""
    seconds = min(MAX_TRIAL_S, max(least_s, TRIAL_REQUESTS / rate))
    for attempt in range(LATE_TRIALS):
        tried = trial(known, rate, seconds, case.limit_s, 1000 * seed + attempt)
        held = tried.held(case.limit_s)
        if held or tried.counts:
            break
    tally.trials.append(tried)
    if verbose:
        tqdm.write(
            f"{known.url} {rate:8.1f}/s p99 {1e3 * tried.p99_s:7.2f} ms, right in time "
            f"{tried.right_in_time:.4f}, rejected {tried.rejected:.4f}, lag {1e3 * tried.lag_s:.2f} ms: "
            f"{'held' if held else 'missed'}",
            file=sys.stderr,
        )
    return held


def compare(bundle: Bundle, files: Path, case: PeerCase, args: argparse.Namespace) -> dict[str, Any]:
    """Measures all servers in turns; returns the figures of one request size."""
    names = [ServerName.parse(name) for name in args.servers.split(",")]
    tallies = {name.name: PeerTally() for name in names}
    probe = json_body(case.drawn, 0)
    session = []
    with ExitStack() as stack:
        running = []
        for name in names:
            running.append(start_server(name, bundle, files, SERVER_CORE, probe))
            stack.callback(running[-1].stop)
        began = time.monotonic()
        for number in tqdm(range(args.turns), desc=f"{case.rows} rows", leave=False):
            if (time.monotonic() - began) * (number + 1) > 60 * args.minutes * max(1, number):
                break
            session.append(session_rows_per_s(files, case, args.seconds))
            turn(running, case, tallies, args, 100 * number)
    return {
        "limit_ms": 1e3 * case.limit_s,
        "session_rows_per_s": median(session),
        "servers": {name: tally.figures() for name, tally in tallies.items()},
    }


def versions(folder: Path) -> dict[str, str]:
    """Returns the package versions in the peers' environment."""
    wanted = {"fastapi", "mosec", "numpy", "onnxruntime-gpu", "orjson", "uvicorn"}
    paths = [str(p) for p in folder.glob("venv/lib/*/site-packages")]
    found = {d.name.lower().replace("_", "-"): d.version for d in distributions(path=paths)}
    return {name: found[name] for name in sorted(wanted & found.keys())}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="kaggle", choices=list(MODELS))
    parser.add_argument("--form", default="rows", choices=["rows", "context"])
    parser.add_argument("--rows", type=int, nargs="+", default=[23], choices=list(LIMIT_MS))
    parser.add_argument("--servers", default="polyrec,fastapi,mosec", help="separated by commas")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="for each size; turns that would not fit are left out"
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="of a closed loop; of a trial, at least")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="of models and environment")
    parser.add_argument("--out", type=Path, help="JSON; results of other models, forms and sizes are kept")
    parser.add_argument(
        "--first", action="store_true", help="run servers and load before all others: nice -20 (needs root)"
    )
    parser.add_argument("--verbose", action="store_true", help="print each trial")
    args = parser.parse_args()
    # so that no server outlives a benchmark that is ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    bundle = open_model(args.model, folder)
    files = peer_files(bundle, folder)
    results = saved(args.out)
    os.sched_setaffinity(0, {CLIENT_CORE})
    for rows in args.rows:
        case = case_of(bundle, rows, args.form)
        with priority(args.first):
            about = machine() | {"vectors": ", ".join(vectors())}
            found = compare(bundle, files, case, args)
        found |= {
            "command": command(),
            "date": today(),
            "revision": revision(),
            "machine": about,
            "versions": versions(files.parent),
        }
        results[f"{args.model}/{args.form}/{rows}"] = found
        print(table(args.model, args.form, rows, found), flush=True)
        save(args.out, results)


if __name__ == "__main__":
    main()
