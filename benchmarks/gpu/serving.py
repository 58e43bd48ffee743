"""Compares a server on a GPU with one on a CPU core, and with plain FastAPI and torch on the same GPU.

    python -m benchmarks.gpu.serving --folder /tmp/peers --out docs/results/gpu-serving.json
    python -m benchmarks.gpu.serving --folder /tmp/peers --device cpu --seconds 0.5      # to try the steps

Uses the Kaggle-size model of benchmarks/peers, or --model large, and requests of independent rows as JSON.
The servers take turns with closed loops of 16 connections and of one; then the knees of three are searched,
the highest Poisson rate with 99% of the requests answered within a limit, as in benchmarks/peers. Every
answer is compared with a float64 reference. Servers may use all cores except the driver's; `binary` sends
tensors instead of JSON. A server that fails is left out, and figures are written as soon as they are
measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.command import CORES, ROOT, command_parser, free_port, save
from benchmarks.gpu.page import closed_table
from benchmarks.peers.__main__ import PeerCase, PeerTally, case_of, closed_loops, knees
from benchmarks.peers.load import PATIENT
from benchmarks.peers.models import MODELS, open_model
from benchmarks.peers.queries import json_body
from benchmarks.peers.servers.starting import (
    LARGE_REQUESTS,
    RunningServer,
    ServerName,
    wait_until_it_answers,
)
from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.drivers.load import BUDGET
from polyrec.loadtest.machine import processor
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import PolyrecError
from polyrec.server.child import start

ROWS = (23, 270, 2048)


@dataclass(frozen=True, slots=True)
class Served:
    """A server to compare. kind: polyrec or plain. device: of its lane. knee: whether to search its knee."""

    label: str
    kind: str
    device: str
    runtime: str = "torch"
    precision: str = "fp32"
    binary: bool = False
    lane: str = "auto"
    knee: bool = False

    @property
    def name(self) -> ServerName:
        return ServerName(self.label, self.kind, self.precision, binary=self.binary)


def servers_on(device: str) -> tuple[Served, ...]:
    """Returns the servers to compare on a device."""
    return (
        Served(f"polyrec, {device}", "polyrec", device, knee=True),
        Served(f"polyrec, {device}, bf16", "polyrec", device, precision="bf16"),
        Served(f"polyrec, {device}, binary", "polyrec", device, binary=True),
        Served(f"polyrec, {device}, process lane", "polyrec", device, lane="process", knee=True),
        Served(f"plain FastAPI, {device}", "plain", device, knee=True),
        Served("polyrec, one CPU lane", "polyrec", "cpu", "auto"),
    )


@contextmanager
def running(served: Served, bundle: Bundle, probe: bytes) -> Iterator[RunningServer]:
    """Runs a server within the context. Raises StartFailed or PeerFailed."""
    if served.kind == "polyrec":
        settings: dict[str, object] = {"bundle": bundle.path, "precision": served.precision}
        settings |= {"device": served.device, "runtime": served.runtime, "lane": served.lane}
        settings |= {
            "drain_grace_s": 0,
            "log_level": "error",
            "max_budget_ms": PATIENT[BUDGET],
            **LARGE_REQUESTS,
        }
        with start(settings) as own:
            yield RunningServer(served.name, own.url + INFER, own.process)
        return
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gpu.plain_server"]
    command += [str(bundle.path), served.device, str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    server = RunningServer(served.name, f"http://127.0.0.1:{port}{INFER}", process)
    try:
        wait_until_it_answers(server, probe)
        yield server
    finally:
        process.kill()
        process.wait()


def start_all(
    servers: Sequence[Served], bundle: Bundle, probe: bytes, opened: ExitStack
) -> dict[str, RunningServer]:
    """Starts the servers at the same time; returns those that answer, by label."""

    def started(served: Served) -> RunningServer | None:
        try:
            return opened.enter_context(running(served, bundle, probe))
        except PolyrecError as e:
            print(f"{served.label} is left out: {e}", flush=True)
            return None

    with ThreadPoolExecutor() as pool:
        found = zip(servers, pool.map(started, servers), strict=True)
        return {served.label: server for served, server in found if server is not None}


def figures(tallies: dict[str, PeerTally]) -> dict[str, dict[str, float]]:
    """Returns medians by server, of what has been measured."""
    return {
        name: {"closed_requests_per_s": median(tally.closed), "alone_ms": 1e3 * median(tally.alone_s)}
        | ({"knee_requests_per_s": median(tally.knee)} if tally.knee else {})
        for name, tally in tallies.items()
        if tally.alone_s
    }


def compare(
    up: dict[str, RunningServer],
    case: PeerCase,
    searched: Sequence[str],
    args: Namespace,
    measured: Callable[[dict[str, dict[str, float]]], object],
) -> None:
    """Measures servers in turns with requests of one size; calls `measured` with the figures so far.

    up: by label; servers that give a wrong answer, or none, are left out. searched: those with a knee.
    """
    tallies = {name: PeerTally() for name in up}
    known = {name: case.known(server) for name, server in up.items()}
    for turn in range(args.turns):
        for name in list(known):
            try:
                closed_loops({name: known[name]}, tallies, args.seconds)
            except LoadError as e:
                print(f"{name} is left out with {case.rows} rows: {e}", flush=True)
                del known[name], tallies[name]
            measured(figures(tallies))
        of_knees = {name: known[name] for name in searched if name in known}
        try:
            knees(of_knees, case, tallies, args.seconds, 100 * turn, args.trials)
        except LoadError as e:
            print(f"no knees with {case.rows} rows: {e}", flush=True)
        measured(figures(tallies))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the model")
    parser.add_argument("--model", default="kaggle", choices=list(MODELS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.7, help="of a closed loop; of a trial, at least")
    parser.add_argument("--trials", type=int, default=8, help="of a knee's search in a turn; 0: no knees")
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    args = parser.parse_args()
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    bundle = open_model(args.model, folder)
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    report: dict[str, Any] = {"device": name, "processor": processor(), "cores": len(CORES)}
    report |= {"torch": torch.__version__, "model": args.model, "turns": args.turns, "sizes": {}}
    servers = servers_on(args.device)
    searched = [served.label for served in servers if served.knee]
    with ExitStack() as opened:
        cases = [case_of(bundle, rows, "rows") for rows in args.rows]
        # servers inherit all cores but the driver's
        os.sched_setaffinity(0, CORES[:-1] or CORES)
        up = start_all(servers, bundle, json_body(cases[0].drawn, 0), opened)
        os.sched_setaffinity(0, CORES[-1:])
        for case in cases:

            def measured(found: dict[str, dict[str, float]], rows: int = case.rows) -> None:
                report["sizes"][str(rows)] = found
                save(args.out, report)

            compare(up, case, searched, args, measured)
            print("\n".join(closed_table(case.rows, report["sizes"][str(case.rows)])), flush=True)


if __name__ == "__main__":
    main()
