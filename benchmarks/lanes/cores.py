"""Measures the gain of a second core with a model of real size, and the memory of the processes.

    python -m benchmarks.lanes.cores offered --folder runs/peers --out docs/results/cores.json
    python -m benchmarks.lanes.cores_page docs/results/cores.json docs/results/cores.md

offered: parsed queries of the Kaggle-size model of benchmarks/peers are offered to the dispatcher
within the server's process (benchmarks/lanes/offered.py), so that no core is needed for a load generator; the
driver's share of the CPU time is reported. `two servers` are two such processes with one core each that share
only the mapped rows, which shows what the hardware can do. All cases have the same
total number of outstanding queries.

served: `polyrec serve` with one process pinned to the first core and the load on the second, and with two
unpinned processes and the load on both cores. In the latter, the load generator takes part of what is
measured, so CPU time per request is reported in addition to requests/s.

memory: proportional set size (PSS) of a server's processes, one server at a time, ready and after load.

All cases of a part are open at the same time and take turns of some seconds. Figures are medians over turns,
and ratios are within a turn. A run keeps the parts and sizes in --out that it does not measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


from benchmarks.command import (
    CLIENT_CORE,
    SERVER_CORE,
    command,
    command_parser,
    in_turns,
    medians,
    priority,
    revision,
    save,
    saved,
    today,
)
from benchmarks.lanes.memory import process_tree, pss_bytes
from benchmarks.peers.models import open_model, value_of_rank
from benchmarks.peers.queries import draw, json_body
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import BUDGET
from polyrec.loadtest.machine import core_seconds, machine
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import PlannedLane, save_plan, single_path_plan
from polyrec.server.child import start

FIRST, SECOND = BOTH = SERVER_CORE, CLIENT_CORE
Turn = dict[str, float]


@dataclass(frozen=True, slots=True)
class OfferedCase:
    """A case of offered queries.

    processes: cores of each server process. lanes: kind and cores of the lanes of each.
    """

    processes: tuple[tuple[int, ...], ...]
    lanes: tuple[tuple[str, tuple[int, ...]], ...]


ANY: tuple[int, ...] = ()
OFFERED: Mapping[str, OfferedCase] = {
    "1 core: inline": OfferedCase(((FIRST,),), (("inline", ANY),)),
    "2 cores: two servers, inline": OfferedCase(((FIRST,), (SECOND,)), (("inline", ANY),)),
    "2 cores: 2 process lanes": OfferedCase((BOTH,), 2 * (("process", ANY),)),
    "2 cores: 3 process lanes": OfferedCase((BOTH,), 3 * (("process", ANY),)),
    "2 cores: 2 thread lanes": OfferedCase((BOTH,), 2 * (("thread", ANY),)),
}


class Offered:
    """Runs the processes of one case."""

    def __init__(self, case: OfferedCase, plan: Path, rows: int) -> None:
        command = [sys.executable, "-m", "benchmarks.lanes.offered", str(plan), str(rows)]
        self._processes = []
        before = os.sched_getaffinity(0)
        for cores in case.processes:
            os.sched_setaffinity(0, cores)  # of this thread, which a child inherits
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        os.sched_setaffinity(0, before)

    def wait_ready(self) -> None:
        for process in self._processes:
            _read(process)

    def turn(self, seconds: float, outstanding: int) -> Turn:
        """Runs a closed loop in all processes at once."""
        fronts = [process.pid for process in self._processes]
        lanes = [pid for front in fronts for pid in process_tree(front) if pid != front]
        before = _cpu_s(fronts), _cpu_s(lanes)
        each = outstanding // len(self._processes)
        command = json.dumps({"seconds": seconds, "outstanding": each}) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(command)
            process.stdin.flush()
        answers = [_read(process) for process in self._processes]
        front_s, lanes_s = _cpu_s(fronts) - before[0], _cpu_s(lanes) - before[1]
        requests = sum(a["requests"] for a in answers)
        driver_s = sum(a["driver_s"] for a in answers)
        return {
            "requests_per_s": sum(a["requests"] / a["seconds"] for a in answers),
            "batch_rows": sum(a["batch_rows"] for a in answers) / len(answers),
            "front_ms": 1e3 * front_s / requests,
            "lanes_ms": 1e3 * lanes_s / requests,
            "driver_share": driver_s / (front_s + lanes_s),
            "busy_cores": (front_s + lanes_s) / max(a["seconds"] for a in answers),
        }

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()


def _read(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(core_seconds(pid)[0] for pid in pids)


def save_case(bundle: Bundle, case: OfferedCase, args: argparse.Namespace, file: Path) -> Path:
    """Writes the plan of a case."""
    plan = single_path_plan(
        bundle.path.resolve(), bundle.name, args.runtime, "cpu", args.precision, bundle.width
    )
    lanes = tuple(
        PlannedLane.model_validate({"name": f"cpu.{i}", "kind": kind, "cores": cores})
        for i, (kind, cores) in enumerate(case.lanes)
    )
    changed = {
        "lanes": lanes,
        "default_budget_ms": 60_000,
        "limits": plan.limits.model_copy(update={"max_queued_rows": 2**17}),
    }
    save_plan(plan.model_copy(update=changed), file)
    return file


def offered(bundle: Bundle, rows: int, args: argparse.Namespace) -> dict[str, Turn]:
    """Measures all cases with one request size."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, ExitStack() as stack:
        opened = {}
        for i, (name, case) in enumerate(OFFERED.items()):
            plan = save_case(bundle, case, args, Path(folder) / f"{i}.json")
            opened[name] = Offered(case, plan, rows)
            stack.callback(opened[name].close)
        for case_open in opened.values():
            case_open.wait_ready()
        turns = {
            name: lambda own=own: own.turn(args.seconds, args.outstanding) for name, own in opened.items()
        }
        return relative(turns, args.turns)


def relative(cases: Mapping[str, Callable[[], Turn]], count: int) -> dict[str, Turn]:
    """Returns medians over turns. `times`: requests/s relative to the first case of the same turn."""
    found = in_turns(cases, count, warm_up=1)
    (base, *_) = found.values()
    for turns in found.values():
        for turn, first in zip(turns, base, strict=True):
            turn["times"] = turn["requests_per_s"] / first["requests_per_s"]
    return {name: medians(turns) for name, turns in found.items()}


SERVED: Mapping[str, tuple[dict[str, object], int | None]] = {
    "1 core: one process": ({}, FIRST),
    "2 cores: one process, 2 process lanes": ({"lanes": 2, "lane": "process"}, None),
    "2 cores: two processes": ({"processes": 2}, None),
}
"""Settings and core of the server; None: any core, also for the load generator."""


def served(bodies: Sequence[bytes], bundle: Path, args: argparse.Namespace) -> dict[str, Turn]:
    """Measures all servers with one request size."""
    with ExitStack() as stack:
        turns = {}
        for name, (settings, core) in SERVED.items():
            server = stack.enter_context(start(_settings(settings, bundle, args), core=core))
            load = {SECOND} if core is not None else set(BOTH)

            def turn(url: str = server.url, pid: int = server.process.pid, load: set[int] = load) -> Turn:
                return served_turn(url, pid, bodies, load, args)

            turns[name] = turn
        return relative(turns, args.turns)


def served_turn(
    url: str, pid: int, bodies: Sequence[bytes], load: set[int], args: argparse.Namespace
) -> Turn:
    """Runs a closed loop over HTTP. load: cores of the load generator.

    front_ms: CPU time of the started process. least_share: CPU time of the least busy other process relative
    to the busiest.
    """
    os.sched_setaffinity(0, load)
    url += INFER
    target = Target(url, {BUDGET: "600000"})
    requests = [target.request(body) for body in bodies]
    pids = process_tree(pid)
    before = [_cpu_s([one]) for one in pids]
    client_s, began = time.process_time(), time.perf_counter()
    answered = closed_loop(url, requests, args.outstanding, args.seconds)
    took_s = time.perf_counter() - began
    each_s = [_cpu_s([one]) - s for one, s in zip(pids, before, strict=True)]
    server_s = sum(each_s)
    client_s = time.process_time() - client_s
    return {
        "requests_per_s": answered / took_s,
        "server_ms": 1e3 * server_s / answered,
        "front_ms": 1e3 * each_s[0] / answered,
        "least_share": min(each_s[1:], default=server_s) / max(each_s[1:], default=server_s),
        "server_cores": server_s / took_s,
        "load_cores": client_s / took_s,
    }


def memory(bodies: Sequence[bytes], bundle: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the PSS of each server, ready and after a closed loop."""
    found = {}
    for name, (settings, core) in SERVED.items():
        with start(_settings(settings, bundle, args), core=core) as server:
            pid = server.process.pid
            ready = pss_bytes(pid)
            for _ in range(2):
                served_turn(server.url, pid, bodies, set(BOTH), args)
            found[name] = {"processes": len(process_tree(pid)), "ready": ready, "loaded": pss_bytes(pid)}
    return found


def _settings(settings: Mapping[str, object], bundle: Path, args: argparse.Namespace) -> dict[str, object]:
    given = {"bundle": bundle, "runtime": args.runtime, "precision": args.precision}
    return {**given, "max_queued_rows": 2**17, "drain_grace_s": 0, **settings}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one size of request and one part."""
    bundle = open_model(args.model, args.folder)
    if args.part == "offered":
        return {"cases": offered(bundle, args.rows, args)}
    schema = bundle.manifest.schema_
    drawn = draw(schema, value_of_rank(bundle), args.requests, args.rows)
    bodies = [json_body(drawn, i) for i in range(len(drawn))]
    path, rows_bytes = bundle.path, bundle.rows_bytes
    del bundle, drawn  # a mapping here would take its share of the servers' PSS
    if args.part == "served":
        return {"cases": served(bodies, path, args)}
    return {"cases": memory(bodies, path, args), "rows_bytes": rows_bytes}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("part", choices=["offered", "served", "memory"])
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="of the models; made once")
    parser.add_argument("--model", default="kaggle", choices=["kaggle", "large"])
    parser.add_argument("--rows", type=int, default=23)
    parser.add_argument("--runtime", default="onnx")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--requests", type=int, default=256, help="different ones, for served and memory")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--outstanding", type=int, default=32, help="queries, or connections")
    parser.add_argument("--first", action="store_true", help="run before all others: nice -20 (needs root)")
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    with priority(args.first):
        about = machine()
        found = measure(args)
    found |= {
        "command": command(),
        "date": today(),
        "revision": revision(),
        "machine": about,
        "outstanding": args.outstanding,
    }
    print(json.dumps(found, indent=2))
    if args.out:
        save(args.out, saved(args.out) | {f"{args.part}/{args.model}/{args.rows}": found})


if __name__ == "__main__":
    main()
