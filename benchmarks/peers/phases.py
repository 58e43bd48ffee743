"""Measures each phase of a request of real size, alone and in the server.

    python -m benchmarks.peers.phases --folder runs/peers --json docs/results/phases.json

Alone: runs the server's own code phase by phase on one thread, for requests of benchmarks/peers/queries.py as
inference-protocol JSON, timed by the thread's CPU clock. Figures are medians over the requests of a turn,
then over turns, which alternate between sizes and forms. Server: a server of the same bundle on one core, in
closed loop from the other. Figures are its process's CPU time (/proc/PID: schedstat of all threads; `user` is
utime of stat) per answered request, and each phase from the server's metrics (`polyrec_phase_seconds`,
elapsed time). `beyond` is the CPU time minus the phases in the server: sockets, HTTP, routing, metrics. With
one connection each request is a batch; with 16, the server merges waiting requests. `--form context` sends
one context with its candidates, `exploded` the same rows with the context in each.
benchmarks/peers/phases_page.py writes docs/results/phases.md from the JSON.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.command import CLIENT_CORE, SERVER_CORE, command, command_parser, medians, save, saved, today
from benchmarks.peers.models import MODELS, open_model, value_of_rank
from benchmarks.peers.phases_page import PHASES, table
from benchmarks.peers.queries import PeerRows, draw, json_body, ranking_body, share_context
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import BUDGET
from polyrec.loadtest.drivers.server_pages import read_metrics
from polyrec.loadtest.machine import core_seconds, processor
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import best_runtime, open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Limits
from polyrec.server.child import ServerProcess, start
from polyrec.server.codecs import oip_codec
from polyrec.server.codecs.rows import encode

LABELS = ("parse", "encode", "embed", "dense", "serialise")
"""Labels of PHASES in the server's histogram polyrec_phase_seconds."""
FORMS = ("rows", "exploded", "context")
DIFFERENT_REQUESTS = {23: 256, 270: 64, 2048: 12}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class PhaseTimer:
    """Executes requests through the server's codecs and a runtime, timing each phase."""

    def __init__(self, bundle: Bundle, runtime: Runtime) -> None:
        manifest = bundle.manifest
        self._codec = oip_codec.OipCodec(manifest.schema_, Limits(), bundle.encoder.vocabularies)
        self._encoder = bundle.encoder
        self._runtime = runtime
        self._version = manifest.version

    def request_s(self, body: bytes) -> list[float]:
        """Returns the CPU seconds of each of PHASES for one request."""
        clock = time.thread_time_ns
        marks = [clock()]
        request = self._codec.decode(body, None)
        marks.append(clock())
        batch = encode([request.rows], self._encoder)
        marks.append(clock())
        embedded = self._runtime.embed(batch)
        marks.append(clock())
        probabilities = self._runtime.dense(embedded)
        marks.append(clock())
        oip_codec.encode(request, probabilities, "dlrm", self._version, "table@cpu")
        marks.append(clock())
        return [(after - before) / 1e9 for before, after in pairwise(marks)]

    def turn_s(self, bodies: Sequence[bytes]) -> dict[str, float]:
        """Returns the median CPU seconds of each phase over the requests."""
        times = np.median([self.request_s(body) for body in bodies], axis=0)
        return dict(zip(PHASES, times.tolist(), strict=True))


def user_s(pid: int) -> float:
    """Returns the user-mode CPU seconds of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * TICK_S


def server_phases_s(url: str) -> dict[str, float]:
    """Returns a server's seconds in each of PHASES so far, from its metrics. url: its root."""
    total = read_metrics(url).total
    return {
        phase: total("polyrec_phase_seconds_sum", phase=label)
        for phase, label in zip(PHASES, LABELS, strict=True)
    }


def server_turn_s(
    server: ServerProcess, requests: list[bytes], connections: int, seconds: float
) -> dict[str, float]:
    """Returns the seconds per request of a server in a closed loop, and the loop's requests per second.

    Seconds are CPU time; those of PHASES are elapsed time.
    """
    pid = server.process.pid
    closed_loop(server.url + INFER, requests, connections, min(0.5, seconds / 4))
    phases = server_phases_s(server.url)
    user, cpu, began = user_s(pid), core_seconds(pid)[0], time.perf_counter()
    answered = closed_loop(server.url + INFER, requests, connections, seconds)
    took = time.perf_counter() - began
    user, cpu = user_s(pid) - user, core_seconds(pid)[0] - cpu
    spent = {name: (s - phases[name]) / answered for name, s in server_phases_s(server.url).items()}
    return {"cpu": cpu / answered, "user": user / answered, "requests_per_s": answered / took} | spent


def bodies_of(drawn: PeerRows, schema: Schema, form: str) -> list[bytes]:
    """Returns JSON bodies of requests in one of FORMS."""
    if form != "rows":
        drawn = share_context(drawn, schema)
    body = ranking_body if form == "context" else json_body
    return [body(drawn, i) for i in range(len(drawn))]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures all sizes in turns; times are in milliseconds."""
    bundle = open_model(args.model, args.folder)
    runtime, device = best_runtime()
    runtime = args.runtime or runtime
    ids, schema = value_of_rank(bundle), bundle.manifest.schema_
    bodies: dict[str, list[bytes]] = {}
    for rows in args.rows:
        drawn = draw(schema, ids, DIFFERENT_REQUESTS.get(rows, 64), rows)
        bodies |= {f"{rows} {form}": bodies_of(drawn, schema, form) for form in args.form}
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {SERVER_CORE})
    retain_freed_memory()
    timer = PhaseTimer(bundle, open_runtime(runtime, bundle, device, args.precision))
    alone: dict[str, list[dict[str, float]]] = {case: [] for case in bodies}
    for case in bodies:
        timer.turn_s(bodies[case])
    for _ in range(args.turns):
        for case in bodies:
            alone[case].append(timer.turn_s(bodies[case]))
    served: dict[str, dict[int, list[dict[str, float]]]] = {
        case: {c: [] for c in args.connections} for case in bodies
    }
    if args.connections:
        os.sched_setaffinity(0, {CLIENT_CORE})
        settings: dict[str, object] = {"bundle": bundle.path, "runtime": runtime, "precision": args.precision}
        settings["max_queued_rows"] = 2**17
        with start(settings, core=SERVER_CORE) as server:
            target = Target(server.url + INFER, {BUDGET: "600000"})
            requests = {case: [target.request(body) for body in of] for case, of in bodies.items()}
            for _ in range(args.turns):
                for case in bodies:
                    for connections in args.connections:
                        turn = server_turn_s(server, requests[case], connections, args.seconds)
                        served[case][connections].append(turn)
    os.sched_setaffinity(0, cores)
    return {
        "model": args.model,
        "runtime": runtime,
        "precision": args.precision,
        "processor": processor(),
        "date": today(),
        "turns": args.turns,
        "cases": {case: _figures(alone[case], served[case]) for case in bodies},
    }


def _figures(alone: list[dict[str, float]], served: dict[int, list[dict[str, float]]]) -> dict[str, Any]:
    phases = {name: 1e3 * s for name, s in medians(alone).items()}
    found: dict[str, Any] = {"phases_ms": phases, "sum_ms": sum(phases.values()), "server": {}}
    for connections, turns in served.items():
        turn = medians(turns)
        inside = {name: 1e3 * turn[name] for name in PHASES}
        found["server"][str(connections)] = {
            "cpu_ms": 1e3 * turn["cpu"],
            "user_ms": 1e3 * turn["user"],
            "requests_per_s": turn["requests_per_s"],
            "phases_ms": inside,
            "beyond_ms": 1e3 * turn["cpu"] - sum(inside.values()),
        }
    return found


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="kaggle", choices=list(MODELS))
    parser.add_argument("--form", nargs="+", default=["rows"], choices=FORMS)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="of the models; made once")
    parser.add_argument("--rows", type=int, nargs="+", default=[23, 270])
    parser.add_argument("--runtime", help="default: the best one here")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 16], help="none: phases only")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each closed loop")
    parser.add_argument("--json", type=Path, help="results of other models, runtimes and precisions are kept")
    args = parser.parse_args()
    result = measure(args)
    result["command"] = command()
    results = saved(args.json)
    results["/".join((args.model, result["runtime"], args.precision))] = result
    save(args.json, results)
    print("\n\n".join(table(case, result["cases"][case]) for case in result["cases"]))


if __name__ == "__main__":
    main()
