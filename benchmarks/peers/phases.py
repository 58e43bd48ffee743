"""CPU time of each phase of a request of real size, alone and in the server.

    python -m benchmarks.peers.phases --folder runs/peers --json phases.json

Alone: the server's own code, phase by phase on one thread, for requests of benchmarks/peers/queries.py as
inference-protocol JSON, by the thread's CPU clock; medians over the requests of a turn, then over turns,
which alternate between sizes and forms. Server: a server of the same bundle pinned to one core, closed loop
from the other; the CPU time of its process (/proc/PID: schedstat of all threads; `user` is the utime of
stat) divided by the requests that it answered. `beyond` is that time less the sum of the phases alone. With
one connection each request is a batch; with 16 the server merges waiting requests. `--form context` sends
one context with its candidates, `exploded` the same rows with the context in each.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.peers.models import MODELS, open_model, value_of_rank
from benchmarks.peers.queries import PeerRows, draw, json_body, ranking_body, share_context
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import BUDGET
from polyrec.loadtest.machine import core_seconds, processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import best_runtime, open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Limits
from polyrec.server.child import start
from polyrec.server.codecs import oip_codec
from polyrec.server.codecs.rows import encode

PHASES = ("parse", "encode", "embed", "dense", "answer")
FORMS = ("rows", "exploded", "context")
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
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
        """CPU seconds of each of PHASES for one request."""
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
        """Median CPU seconds of each phase over the requests."""
        times = np.median([self.request_s(body) for body in bodies], axis=0)
        return dict(zip(PHASES, times.tolist(), strict=True))


def user_s(pid: int) -> float:
    """CPU seconds of a process outside the kernel so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * TICK_S


def server_turn_s(
    url: str, pid: int, requests: list[bytes], connections: int, seconds: float
) -> dict[str, float]:
    """CPU seconds per request of a whole server over a closed loop, and the loop's requests per second."""
    closed_loop(url, requests, connections, min(0.5, seconds / 4))
    user, cpu, began = user_s(pid), core_seconds(pid)[0], time.perf_counter()
    answered = closed_loop(url, requests, connections, seconds)
    took = time.perf_counter() - began
    user, cpu = user_s(pid) - user, core_seconds(pid)[0] - cpu
    return {"cpu": cpu / answered, "user": user / answered, "requests_per_s": answered / took}


def bodies_of(drawn: PeerRows, schema: Schema, form: str) -> list[bytes]:
    """JSON bodies of requests in one of FORMS."""
    if form != "rows":
        drawn = share_context(drawn, schema)
    body = ranking_body if form == "context" else json_body
    return [body(drawn, i) for i in range(len(drawn))]


def medians(turns: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median of each figure over the turns."""
    return {key: median(turn[key] for turn in turns) for key in turns[0]}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures all sizes in turns; times in milliseconds."""
    bundle = open_model(args.model, args.folder)
    if bundle.widths:
        bundle = bundle.at_width(args.width or bundle.widths[-1])
    runtime, device = best_runtime(bundle)
    runtime = args.runtime or runtime
    ids, schema = value_of_rank(bundle), bundle.manifest.schema_
    bodies = {}
    for rows in args.rows:
        drawn = draw(schema, ids, DIFFERENT_REQUESTS.get(rows, 64), rows)
        bodies |= {f"{rows} {form}": bodies_of(drawn, schema, form) for form in args.form}
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
        if bundle.width is not None:
            settings["width"] = bundle.width
        with start(settings, core=SERVER_CORE) as server:
            url = f"{server.url}/v2/models/dlrm/infer"
            target = Target(url, {BUDGET: "600000"})
            requests = {case: [target.request(body) for body in of] for case, of in bodies.items()}
            for _ in range(args.turns):
                for case in bodies:
                    for connections in args.connections:
                        turn = server_turn_s(
                            url, server.process.pid, requests[case], connections, args.seconds
                        )
                        served[case][connections].append(turn)
    return {
        "model": args.model,
        "width": bundle.width,
        "runtime": runtime,
        "precision": args.precision,
        "processor": processor(),
        "date": time.strftime("%Y-%m-%d"),
        "turns": args.turns,
        "cases": {case: _figures(alone[case], served[case]) for case in bodies},
    }


def _figures(alone: list[dict[str, float]], served: dict[int, list[dict[str, float]]]) -> dict[str, Any]:
    phases = {name: 1e3 * s for name, s in medians(alone).items()}
    found: dict[str, Any] = {"phases_ms": phases, "sum_ms": sum(phases.values()), "server": {}}
    for connections, turns in served.items():
        turn = medians(turns)
        found["server"][str(connections)] = {
            "cpu_ms": 1e3 * turn["cpu"],
            "user_ms": 1e3 * turn["user"],
            "requests_per_s": turn["requests_per_s"],
            "beyond_ms": 1e3 * turn["cpu"] - found["sum_ms"],
        }
    return found


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    names = [*PHASES, "sum"]
    lines = [
        f"| CPU ms a request | {' | '.join(result['cases'])} |",
        "|---" * (len(result["cases"]) + 1) + "|",
    ]
    for name in names:
        cells = [
            figures["sum_ms"] if name == "sum" else figures["phases_ms"][name]
            for figures in result["cases"].values()
        ]
        lines.append(f"| {name} | {' | '.join(f'{ms:.3f}' for ms in cells)} |")
    for connections in next(iter(result["cases"].values()))["server"]:
        turns = [figures["server"][connections] for figures in result["cases"].values()]
        cells = [
            f"{t['cpu_ms']:.3f} (beyond {t['beyond_ms']:.3f}; {t['requests_per_s']:,.0f}/s)" for t in turns
        ]
        lines.append(f"| server, {connections} connections | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.phases",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--model", default="kaggle", choices=list(MODELS))
    parser.add_argument("--form", nargs="+", default=["rows"], choices=FORMS)
    parser.add_argument("--width", type=int, help="of the nested model (default: the widest)")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="of the models; made once")
    parser.add_argument("--rows", type=int, nargs="+", default=[23, 270])
    parser.add_argument("--runtime", help="default: the best one here")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 16], help="none: phases only")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each closed loop")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
