"""Compares ingresses of a cluster, and measures requests during a replica's death, a roll and a resize.

    python -m benchmarks.fleet.cluster PLAN --other PLAN --json docs/results/cluster.json

Runs two logical Ray nodes (127.0.0.1 and 127.0.0.2) with one replica each on one machine, in their own
network, process and mount namespaces, because Ray listens on all interfaces; needs root. Each ingress gets
its own cluster from `polyrec cluster up`. A single server without Ray is measured under the same conditions.

Ingresses: closed loops of 1 and 16 requests in flight, with JSON tensors of --rows rows. Faults: Poisson
arrivals at --rate with a budget, through the balancer, while a server and then a replica's actor are killed,
the plan is rolled, and one replica is removed and added again. A request is lost if its answer is not 200.
The driver shares the cores with the servers, HAProxy and Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.command import answer_of, command_parser, save, timestamp
from benchmarks.fleet import namespaces
from benchmarks.fleet.cluster_page import page
from benchmarks.http.protocols import http_asker, http_request, random_tensors
from benchmarks.operations.rollout import fates
from polyrec.cli.main import main as polyrec
from polyrec.cluster import control, nodes
from polyrec.cluster.spec import Ingress
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.machine import machine
from polyrec.loadtest.traffic.request_bodies import INFER, infer_body
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import load_plan
from polyrec.planner.traffic import Arrivals
from polyrec.server.child import start

WAYS: tuple[Ingress | None, ...] = (None, "balancer", "ray", "ray-haproxy")
"""None: a single server, called directly."""
PORT = 8000
IN_FLIGHT = (1, 16)
DIFFERENT_REQUESTS = 64
INSIDE = "POLYREC_BENCHMARK_INSIDE"
SETTINGS = ("rows", "turns", "seconds", "rate", "budget_ms", "phase_seconds")
PHASES = ("before", "server killed", "actor killed", "rolled", "scaled to 1", "scaled to 2")


@contextmanager
def cluster(way: Ingress, plan: Path, *options: str) -> Iterator[None]:
    """Runs two nodes with one replica each behind PORT. options: of `polyrec cluster up`."""
    one = ["--num-cpus=1"]
    nodes.start_head(way, arguments=one)
    nodes.start_worker("127.0.0.1:6379", "127.0.0.2", way, one)
    replicas = ["--plan", str(plan), "--replicas", "2", "--resource", "CPU=1"]
    call("up", *replicas, "--port", str(PORT), "--way", way, *options)
    try:
        yield
    finally:
        call("down")


def call(*arguments: str) -> None:
    """Runs `polyrec cluster`; raises RuntimeError if it fails."""
    with redirect_stdout(sys.stderr):
        if polyrec(["cluster", *arguments]):
            raise RuntimeError(f"polyrec cluster {' '.join(arguments)} failed")


async def closed_loop(url: str, requests: Sequence[bytes], in_flight: int, seconds: float) -> dict[str, Any]:
    """Returns requests/s and quantiles of one turn."""
    async with AsyncExitStack() as stack:
        numbers, took_s, closed = count(), list[float](), list[float]()

        async def loop(until_s: float) -> None:
            ask = await http_asker(stack, url, requests)
            while (began_s := time.perf_counter()) < until_s:
                number = next(numbers)
                try:
                    await ask(number)
                except (asyncio.IncompleteReadError, ConnectionError):
                    # Serve's HAProxy mode closes connections now and then
                    closed.append(began_s)
                    ask = await http_asker(stack, url, requests)
                    await ask(number)
                took_s.append(time.perf_counter() - began_s)

        await asyncio.gather(*(loop(time.perf_counter() + 1) for _ in range(in_flight)))
        took_s.clear()
        closed.clear()
        began_s = time.perf_counter()
        await asyncio.gather(*(loop(began_s + seconds) for _ in range(in_flight)))
        elapsed_s = time.perf_counter() - began_s
    p50, p99 = (round(1e3 * float(q), 2) for q in np.quantile(took_s, (0.5, 0.99)))
    return {
        "in_flight": in_flight,
        "requests_s": round(len(took_s) / elapsed_s, 1),
        "p50_ms": p50,
        "p99_ms": p99,
        "closed": len(closed),
    }


def measure_way(way: Ingress | None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the turns of one way."""
    bundle = load_bundle(load_plan(args.plan).paths[0].bundle)
    random = np.random.default_rng(0)
    requests = [
        http_request(random_tensors(bundle, args.rows, random), binary=False)
        for _ in range(DIFFERENT_REQUESTS)
    ]
    requests = [request.replace(b"Host: x", f"Host: 127.0.0.1:{PORT}".encode()) for request in requests]

    def turns() -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{PORT}"
        loads = [n for _ in range(args.turns) for n in IN_FLIGHT]
        found = [uvloop.run(closed_loop(url, requests, n, args.seconds)) for n in loads]
        return [{"way": way or "single server", **turn} for turn in found]

    if way is None:
        with start({"plan": args.plan, "port": PORT}):
            return turns()
    with cluster(way, args.plan):
        return turns()


def measure_faults(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the outcomes of the requests in each phase."""
    bundle = load_bundle(load_plan(args.plan).paths[0].bundle)
    random = np.random.default_rng(0)
    bodies = [
        infer_body(random_tensors(bundle, args.rows, random), binary=False)[0]
        for _ in range(DIFFERENT_REQUESTS)
    ]
    seconds = args.phase_seconds * len(PHASES)
    due_s = arrival_times(Arrivals(), args.rate, seconds, np.random.default_rng(0))
    target = Target(f"http://127.0.0.1:{PORT}{INFER}", {"Content-Type": "application/json"})
    budget_s = args.budget_ms / 1e3
    load = load_of(target, due_s, seconds, lambda i: bodies[i % len(bodies)], budget_s=budget_s, prepare=True)
    took: dict[str, float] = {}
    # servers cap longer budgets to a few seconds, which a busy machine can take to start a replica
    with cluster("balancer", args.plan, "--set", f"max_budget_ms={args.budget_ms}"):
        doing = threading.Thread(target=_disturb, args=(args, took))
        doing.start()
        outcome = run(target, load, Limits(grace_s=max(10.0, budget_s)))
        doing.join()
        served = [replica["plan"] for replica in control.replicas()]
    phases = []
    for number, phase in enumerate(PHASES):
        part = outcome.between(number * args.phase_seconds, (number + 1) * args.phase_seconds)
        phases.append({"phase": phase, **fates(part), "took_s": took.get(phase)})
    return {"phases": phases, "all": fates(outcome), "reasons": outcome.reasons, "served": served}


def _disturb(args: argparse.Namespace, took: dict[str, float]) -> None:
    """Causes one disturbance per phase, in the order of PHASES."""
    began = time.monotonic()
    doing = {
        "server killed": lambda: _kill("server_pid"),
        "actor killed": lambda: _kill("pid"),
        "rolled": lambda: call_apart("roll", "--plan", str(args.other)),
        "scaled to 1": lambda: call_apart("scale", "1"),
        "scaled to 2": lambda: call_apart("scale", "2"),
    }
    for number, phase in enumerate(PHASES):
        time.sleep(max(began + number * args.phase_seconds - time.monotonic(), 0))
        if phase in doing:
            at = time.monotonic()
            doing[phase]()
            took[phase] = round(time.monotonic() - at, 2)


def call_apart(*arguments: str) -> None:
    """Runs `polyrec cluster` in a separate process, concurrently with the driver's loop."""
    subprocess.run([sys.executable, "-m", "polyrec", "cluster", *arguments], check=True, stdout=sys.stderr)


def _kill(which: str) -> None:
    """Kills a process of one replica, and waits until there are two again."""
    known = {replica["name"] for replica in control.replicas()}
    victim = control.replicas()[0]
    os.kill(victim[which], signal.SIGKILL)
    while True:
        found = control.replicas()
        there = {replica["name"] for replica in found if replica["state"].startswith("UP")}
        if len(there) == len(known) and victim["name"] not in there:
            return
        time.sleep(0.1)


def apart(argv: Sequence[str]) -> Any:
    """Runs this module with other arguments in its own namespaces; returns the JSON that it prints."""
    with tempfile.TemporaryDirectory(prefix="polyrec-cluster-") as folder:
        environ = {**namespaces.environment(folder), INSIDE: "1"}
        command = [*namespaces.ENTER, sys.executable, "-m", "benchmarks.fleet.cluster", *argv]
        return answer_of(command, env=environ)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--other", type=Path, help="plan to roll to (default: the same)")
    parser.add_argument("--rows", type=int, default=23)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn (4)")
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--budget-ms", type=float, default=1000.0)
    parser.add_argument("--phase-seconds", type=float, default=12.0)
    parser.add_argument("--only", choices=[*(way or "single" for way in WAYS), "faults"], action="append")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="of a whole run, Markdown")
    given = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(given)
    args.plan = args.plan.resolve()
    args.other = (args.other or args.plan).resolve()
    if os.environ.get(INSIDE):
        (only,) = args.only
        found = measure_faults(args) if only == "faults" else measure_way(_way(only), args)
        print(json.dumps(found), flush=True)
        return 0
    chosen = args.only or [*(way or "single" for way in WAYS), "faults"]
    made = timestamp()
    whole: dict[str, Any] = {"made": made, "machine": machine(), "model": about(args.plan), "ways": []}
    whole["settings"] = {name: getattr(args, name) for name in SETTINGS}
    base = [str(args.plan), "--other", str(args.other)]
    for name in SETTINGS:
        base += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    for only in chosen:
        found = apart([*base, "--only", only])
        if only == "faults":
            whole["faults"] = found
        else:
            whole["ways"] += found
        print(json.dumps(found), file=sys.stderr, flush=True)
    save(args.json, whole)
    if not args.json:
        print(json.dumps(whole))
    if args.page:
        args.page.write_text(page(whole))
    return 0


def about(plan: Path) -> str:
    """Describes a plan's first model in a few words."""
    bundle = load_bundle(load_plan(plan).paths[0].bundle)
    rows = sum(vocabulary.rows for vocabulary in bundle.encoder.vocabularies.values())
    return f"{rows:,} rows of width {bundle.shape.width}"


def _way(name: str) -> Ingress | None:
    return next(way for way in WAYS if (way or "single") == name)


if __name__ == "__main__":
    raise SystemExit(main())
