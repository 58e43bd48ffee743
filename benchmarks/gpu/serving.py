"""Compares a server on a GPU with one on a CPU core, and with plain FastAPI and torch on the same GPU.

    python -m benchmarks.gpu.serving --folder /tmp/peers --out docs/results/gpu-serving.json
    python -m benchmarks.gpu.serving --folder /tmp/peers --device cpu --seconds 0.5      # to try the steps

Uses the Kaggle-size model of benchmarks/peers, or --model large, and requests of independent rows as JSON.
The servers take turns with closed loops of 16 connections and of one. Every answer is compared with a float64
reference. Servers may use all cores except the driver's; `binary` sends tensors instead of JSON.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.command import ROOT, command_parser, free_port, save
from benchmarks.gpu.page import closed_table
from benchmarks.peers.__main__ import PeerCase, PeerTally, case_of, closed_loops
from benchmarks.peers.models import MODELS, open_model
from benchmarks.peers.queries import json_body
from benchmarks.peers.servers.starting import (
    INFER,
    LARGE_REQUESTS,
    RunningServer,
    ServerName,
    wait_until_it_answers,
)
from polyrec.loadtest.machine import processor
from polyrec.models.bundle.bundle import Bundle
from polyrec.server.child import start

ROWS = (23, 270, 2048)


@dataclass(frozen=True, slots=True)
class Served:
    """A server to compare. kind: polyrec or plain. device: the device of its lane."""

    label: str
    kind: str
    device: str
    runtime: str = "torch"
    precision: str = "fp32"
    binary: bool = False
    lane: str = "auto"

    @property
    def name(self) -> ServerName:
        return ServerName(self.label, self.kind, self.precision, binary=self.binary)


def servers_on(device: str) -> tuple[Served, ...]:
    """Returns the servers to compare on a device."""
    return (
        Served(f"polyrec, {device}", "polyrec", device),
        Served(f"polyrec, {device}, bf16", "polyrec", device, precision="bf16"),
        Served(f"polyrec, {device}, binary", "polyrec", device, binary=True),
        Served(f"polyrec, {device}, process lane", "polyrec", device, lane="process"),
        Served(f"plain FastAPI, {device}", "plain", device),
        Served("polyrec, one CPU lane", "polyrec", "cpu", "auto"),
    )


@contextmanager
def running(served: Served, bundle: Bundle, folder: Path, probe: bytes) -> Iterator[RunningServer]:
    """Runs a server within the context. Raises StartFailed or PeerFailed."""
    if served.kind == "polyrec":
        settings: dict[str, object] = {"bundle": bundle.path, "precision": served.precision}
        settings |= {"device": served.device, "runtime": served.runtime, "lane": served.lane}
        settings |= {"drain_grace_s": 0, **LARGE_REQUESTS}
        with start(settings) as own:
            yield RunningServer(served.name, own.url + INFER, own.process)
        return
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.gpu.plain_server"]
    command += [str(bundle.path), served.device, str(port)]
    with (folder / "plain.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    server = RunningServer(served.name, f"http://127.0.0.1:{port}{INFER}", process)
    try:
        wait_until_it_answers(server, probe)
        yield server
    finally:
        process.kill()
        process.wait()


def compare(
    up: Sequence[RunningServer], case: PeerCase, turns: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Measures all servers in turns with requests of one size; returns medians by server."""
    tallies = {server.name.name: PeerTally() for server in up}
    known = {server.name.name: case.known(server) for server in up}
    for _ in range(turns):
        closed_loops(known, tallies, seconds)
    return {
        name: {"closed_requests_per_s": median(tally.closed), "alone_ms": 1e3 * median(tally.alone_s)}
        for name, tally in tallies.items()
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the model")
    parser.add_argument("--model", default="kaggle", choices=list(MODELS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a closed loop")
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    bundle = open_model(args.model, folder)
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    report: dict[str, Any] = {"device": name, "processor": processor(), "cores": len(cores)}
    report |= {"torch": torch.__version__, "model": args.model, "turns": args.turns, "sizes": {}}
    cases = [case_of(bundle, rows, "rows") for rows in args.rows]
    with ExitStack() as stack:
        probe = json_body(cases[0].drawn, 0)
        # servers inherit all cores but the driver's
        os.sched_setaffinity(0, cores[:-1] or cores)
        up = [stack.enter_context(running(s, bundle, folder, probe)) for s in servers_on(args.device)]
        os.sched_setaffinity(0, cores[-1:])
        for case in cases:
            report["sizes"][str(case.rows)] = compare(up, case, args.turns, args.seconds)
            print("\n".join(closed_table(case.rows, report["sizes"][str(case.rows)])), flush=True)
            save(args.out, report)


if __name__ == "__main__":
    main()
