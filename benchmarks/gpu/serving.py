"""A server with the GPU, beside one on a CPU core and plain FastAPI with torch on the same GPU.

    python -m benchmarks.gpu.serving --folder /tmp/peers --out docs/results/gpu-serving.json
    python -m benchmarks.gpu.serving --folder /tmp/peers --device cpu --seconds 0.5      # to try the steps

The Kaggle-size model of benchmarks/peers, or --model large; requests of independent rows as JSON. In turns,
of each server: closed loops of 16 connections and of one; then the highest open-loop Poisson rate with p99
within 10, 25 and 80 ms for 23, 270 and 2,048 rows. Every answer is compared with a float64 reference. Servers
may use all cores but the driver's; `binary` sends tensors instead of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.__main__ import CONNECTIONS, PeerCase, PeerTally, case_of
from benchmarks.peers.load import closed, trial
from benchmarks.peers.models import MODELS, open_model
from benchmarks.peers.queries import json_body
from benchmarks.peers.servers.starting import (
    INFER,
    ROOT,
    RunningServer,
    ServerName,
    free_port,
    wait_until_it_answers,
)
from polyrec.loadtest.comparison.capacity_search import CapacitySearch
from polyrec.loadtest.machine import processor
from polyrec.models.bundle.bundle import Bundle
from polyrec.report.text import markdown_table
from polyrec.server.child import start

ROWS = (23, 270, 2048)
GROWTH, PRECISION, VERDICTS = 1.5, 1.1, 10
"""Growth of the rate, precision and most trials of the search for the knee."""
KNEES = (", cuda:0", ", cpu", "binary", "lane")
"""How the names of servers end whose knee is searched."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is compared. kind: polyrec or plain. device: where its lane executes."""

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
    """Starts a server, stops it at the end. Raises StartFailed or PeerFailed."""
    if served.kind == "polyrec":
        settings: dict[str, object] = {"bundle": bundle.path, "precision": served.precision}
        settings |= {"device": served.device, "runtime": served.runtime, "lane": served.lane}
        settings |= {"max_request_rows": 2**13, "max_queued_rows": 2**17, "drain_grace_s": 0}
        with start(settings) as own:
            yield RunningServer(served.name, own.url + INFER, own.process)
        return
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.plain_server",
        str(bundle.path),
        served.device,
        str(port),
    ]
    with (folder / "plain.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    server = RunningServer(served.name, f"http://127.0.0.1:{port}{INFER}", process)
    try:
        wait_until_it_answers(server, probe)
        yield server
    finally:
        process.kill()
        process.wait()


def compare(up: Sequence[RunningServer], case: PeerCase, args: Namespace) -> dict[str, Any]:
    """Measures all servers in turns with requests of one size; the knee of those in KNEES only."""
    tallies = {server.name.name: PeerTally() for server in up}
    known = {server.name.name: case.known(server) for server in up}
    for number in range(args.turns):
        for name, requests in known.items():
            closed(requests, CONNECTIONS, 0.3)
            tallies[name].closed.append(closed(requests, CONNECTIONS, args.seconds).requests_per_s)
        for name, requests in known.items():
            tallies[name].alone_s.append(closed(requests, 1, args.seconds / 2).p50_s)
        for name, requests in known.items():
            tally, search = (
                tallies[name],
                CapacitySearch(0.7 * tallies[name].closed[-1], PRECISION, GROWTH, max_verdicts=VERDICTS),
            )
            while not args.no_knee and name.endswith(KNEES) and search.rate is not None:
                seed = 1000 * number + len(tally.trials)
                tried = trial(requests, search.rate, args.seconds, case.limit_s, seed, case.limit_s)
                tally.trials.append(tried)
                search.record(search.rate, tried.held(case.limit_s))
            tally.knee.append(search.met or 0.0)
    return {"limit_ms": 1e3 * case.limit_s, "servers": {n: t.figures() for n, t in tallies.items()}}


def table(rows: int, found: dict[str, Any]) -> str:
    """The figures of one size as a table; the last column is the knee over plain FastAPI's."""
    plain = next(f for name, f in found["servers"].items() if name.startswith("plain"))
    cells = []
    for name, one in found["servers"].items():
        rate, knee = one["closed_requests_per_s"], one["knee_requests_per_s"]
        times = knee / plain["knee_requests_per_s"] if plain["knee_requests_per_s"] else float("nan")
        figures = [
            f"{rate:,.0f}",
            f"{one['alone_ms']:.2f}",
            f"{knee:,.0f}",
            f"{rows * knee:,.0f}",
            f"{times:.2f}",
        ]
        cells.append([name, *figures])
    head = ["server", "closed loop, /s", "alone, ms", "knee, /s", "rows/s at the knee", "of plain FastAPI"]
    return "\n".join([f"{rows} rows, p99 within {found['limit_ms']:g} ms", "", *markdown_table(head, cells)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the model")
    parser.add_argument("--model", default="kaggle", choices=list(MODELS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--no-knee", action="store_true", help="closed loops alone")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a closed loop; of a trial, at least")
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
    cases = [case_of(bundle, rows, "rows", None) for rows in args.rows]
    with ExitStack() as stack:
        probe = json_body(cases[0].drawn, 0)
        # servers inherit all cores but the driver's
        os.sched_setaffinity(0, cores[:-1] or cores)
        up = [stack.enter_context(running(s, bundle, folder, probe)) for s in servers_on(args.device)]
        os.sched_setaffinity(0, cores[-1:])
        for case in cases:
            found = compare(up, case, args)
            report["sizes"][str(case.rows)] = found
            print(table(case.rows, found), flush=True)
            if args.out:
                args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
