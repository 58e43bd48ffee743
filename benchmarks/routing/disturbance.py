"""Records the paths and losses of a live server under disturbances at low load.

    polyrec demo --once --out runs/demo
    python -m benchmarks.routing.disturbance runs/demo/plan.json --json docs/results/disturbance.json

At rest: 10 requests/s for some seconds after a disturbance (the server's start, its whole process stopped for
0.3 s by SIGSTOP, or its lane slowed to a tenth for 2 s, as in benchmarks/routing/faults.py). Reports the
share of answers from the plan's best path from SETTLED_S after the disturbance on, the reasons of the others,
and how many requests were rejected, expired or answered late.

Neighbor: a process on the server's core computes for 50 ms and sleeps for 50 ms, in alternation (--busy-ms,
--idle-ms), while requests arrive at a tenth of the capacity (--share, --rate) with a budget of 20 ms
(--budget-ms). Every static path and `priced` take turns on one server. Reports the share of lost requests
(rejected, expired or late). Capacity is the rate that the cheapest static path answers in time at the best of
RATES, without the neighbor. With --first, the server, the neighbor and the driver have priority over
everything else on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.command import CLIENT_CORE, SERVER_CORE, command, command_parser, priority, save
from benchmarks.lanes.memory import process_tree
from benchmarks.routing.faults import count_fates, prepared_load, slow
from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import get_json, read_metrics
from polyrec.loadtest.machine import machine
from polyrec.loadtest.results.outcome import Fate, Outcome
from polyrec.loadtest.traffic.source import Source, open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.plan import Plan, load_plan
from polyrec.report.text import markdown_table

RATE = 10.0
BEFORE_S, SETTLED_S, STOP_S = 3.0, 5.0, 0.3
RATES = (500.0, 1000.0, 2000.0, 4000.0, 8000.0)
"""Requests/s to try; the capacity is the highest rate answered in time."""
NEIGHBOR = """
import sys, time
busy_s, idle_s = map(float, sys.argv[1:])
while True:
    until = time.perf_counter() + busy_s
    while time.perf_counter() < until:
        pass
    if idle_s:
        time.sleep(idle_s)
"""


Figures = dict[str, Any]


def stop(pid: int) -> None:
    """Stops the whole process including lanes for STOP_S."""
    pids = process_tree(pid)
    for each in pids:
        os.kill(each, signal.SIGSTOP)
    time.sleep(STOP_S)
    for each in pids:
        os.kill(each, signal.SIGCONT)


def slow_lane(pid: int) -> None:
    """Slows the first lane by slowing its process, which may be the server's."""
    slow([*process_tree(pid), pid][1])


DISTURBANCES: dict[str, Callable[[int], None] | None] = {
    "start": None,
    "whole process stopped 0.3 s": stop,
    "lane slow for 2 s": slow_lane,
}


def send_load(
    url: str, source: Source, rate: float, seconds: float, budget_s: float, seed: int, steady: bool = False
) -> Outcome:
    """Sends requests of the source's own sizes, at Poisson or regular times."""
    return run(*prepared_load(url, source, rate, seconds, budget_s, seed, steady), Limits())


def best_path(url: str) -> str:
    """Returns the plan's path of the highest quality."""
    paths: list[dict[str, float | str]] = get_json(url, "/v1/paths")["paths"]
    return str(max(paths, key=lambda p: p["quality"])["name"])


def reasons(url: str) -> dict[str, float]:
    """Returns the degraded answers so far, by reason."""
    found: dict[str, float] = {}
    for labels, value in read_metrics(url).series("polyrec_degraded_total"):
        found[labels["reason"]] = found.get(labels["reason"], 0.0) + value
    return found


def share_of(outcome: Outcome, path: str) -> float:
    """Returns the share of answers that came from a path."""
    at = outcome.paths.index(path) if path in outcome.paths else -2
    return float((outcome.path[outcome.answered] == at).mean()) if outcome.answered.any() else 0.0


def at_rest(plan: Plan, name: str, budget_s: float, seconds: float, source: Source, seed: int) -> Figures:
    """Starts a server, disturbs it, and records its answers."""
    with PolicyServer(plan, ("priced",), {SERVER_CORE}, {}) as server:
        disturb = DISTURBANCES[name]
        if disturb is None:
            send_load(server.url, source, RATE, SETTLED_S, budget_s, seed, steady=True)
        else:
            striker = threading.Timer(BEFORE_S, disturb, (server.pid,))
            striker.start()
            took_s = 2.0 if disturb is slow_lane else STOP_S
            send_load(server.url, source, RATE, BEFORE_S + took_s + SETTLED_S, budget_s, seed, steady=True)
            striker.join()
        before = reasons(server.url)
        outcome = send_load(server.url, source, RATE, seconds, budget_s, seed + 1, steady=True)
        after = reasons(server.url)
        latency_ms = 1e3 * outcome.latency_s[outcome.answered]
        return {
            "disturbance": name,
            "requests": outcome.due_s.size,
            "best": round(share_of(outcome, best_path(server.url)), 4),
            # of other answers, from /metrics
            "reasons": {k: int(n) for k, v in after.items() if (n := v - before.get(k, 0.0))},
            "fates": count_fates(outcome),
            "p50_ms": round(float(np.median(latency_ms)), 2),
            "slowest_ms": round(float(latency_ms.max()), 2),
        }


@contextmanager
def neighbor(busy_s: float, idle_s: float) -> Iterator[None]:
    """Wants the server's core for busy_s of every busy_s + idle_s."""
    process = subprocess.Popen(
        [sys.executable, "-c", NEIGHBOR, str(busy_s), str(idle_s)],
        preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def beside(plan: Plan, source: Source, args: argparse.Namespace) -> tuple[float, list[Figures]]:
    """Returns the capacity in requests/s, and every policy's figures beside the neighbor, in turns."""
    budget_s, seconds, repeats = args.budget_ms / 1e3, args.seconds, args.repeats
    static = [f"static:{path.name}" for path in plan.paths]
    found = []
    with PolicyServer(plan, (*static, "priced"), {SERVER_CORE}, {}) as server:
        best = best_path(server.url)
        capacity = 0.0
        for policy in static if args.rate is None else ():
            server.set_policy(policy)
            for rate in RATES:
                outcome = send_load(server.url, source, rate, 1.0, budget_s, 0)
                capacity = max(capacity, float((outcome.fate == Fate.OK).sum()) / outcome.seconds)
        time.sleep(2.0)
        with neighbor(args.busy_ms / 1e3, args.idle_ms / 1e3):
            for turn in range(repeats):
                for policy in server.policies:
                    server.set_policy(policy)
                    rate = args.rate or args.share * capacity
                    send_load(server.url, source, rate, 1.0, budget_s, 1000 + turn)
                    outcome = send_load(server.url, source, rate, seconds, budget_s, turn)
                    one: Figures = {"policy": policy, "requests": outcome.due_s.size, "rate": round(rate, 1)}
                    one["lost"] = round(float((outcome.fate != Fate.OK).mean()), 5)
                    one |= {"fates": count_fates(outcome), "best": round(share_of(outcome, best), 4)}
                    found.append(one)
                    print(json.dumps(found[-1]), file=sys.stderr)
    return capacity, found


def verdict(found: Sequence[Figures]) -> dict[str, float]:
    """Returns the mean share of lost requests by policy."""
    names = dict.fromkeys(each["policy"] for each in found)
    return {name: round(mean(each["lost"] for each in found if each["policy"] == name), 5) for name in names}


def measured(plan: Plan, source: Source, budget_s: float, args: argparse.Namespace) -> Figures:
    """Runs all cases; prints and returns their figures."""
    document: Figures = {
        "command": command(),
        "machine": machine(),
        "paths": [path.name for path in plan.paths],
        "lanes": [f"{lane.name} ({lane.kind})" for lane in plan.all_lanes()],
        "budget_ms": 1e3 * budget_s,
    }
    if args.only != "neighbor":
        rest = []
        for repeat in range(args.repeats):
            for name in DISTURBANCES:
                rest.append(at_rest(plan, name, budget_s, args.seconds, source, 10 * repeat))
                print(json.dumps(rest[-1]), file=sys.stderr)
        document["at_rest"] = rest
        rows = []
        for name in DISTURBANCES:
            own = [each for each in rest if each["disturbance"] == name]
            why: Counter[str] = sum((Counter(each["reasons"]) for each in own), Counter())
            requests = sum(each["requests"] for each in own)
            lost = requests - sum(each["fates"].get("ok", 0) for each in own)
            best, p50_ms = (mean(each[key] for each in own) for key in ("best", "p50_ms"))
            words = ", ".join(f"{reason} {n}" for reason, n in why.items()) or "none"
            rows.append([name, f"{best:.1%}", words, f"{lost} of {requests}", f"{p50_ms:.1f}"])
        head = ["at rest, after", "best path", "other answers", "not answered in time", "p50 ms"]
        print(*markdown_table(head, rows), sep="\n")
    if args.only != "rest":
        capacity, found = beside(plan, source, args)
        rate = found[0]["rate"]
        document["neighbor"] = {"capacity": round(capacity, 1), "rate": rate, "lost": verdict(found)}
        document["neighbor"]["turns"] = found
        rows = []
        for policy, lost_share in verdict(found).items():
            best = mean(each["best"] for each in found if each["policy"] == policy)
            rows.append([policy, f"{lost_share:.2%}", f"{best:.1%}"])
        of = "" if args.rate else f" of a capacity of {capacity:,.0f}"
        print(f"\nBeside a neighbor, {rate:,.0f} requests/s{of}\n")
        print(*markdown_table(["policy", "lost", "answers by the best path"], rows), sep="\n")
    return document


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("plan", type=Path, help="of two paths or more")
    parser.add_argument("--data", help="rows of requests; without, they are made up from the bundle")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a measurement (10)")
    parser.add_argument("--repeats", type=int, default=3, help="of each case (3)")
    parser.add_argument("--busy-ms", type=float, default=50.0, help="of the neighbor (50)")
    parser.add_argument("--idle-ms", type=float, default=50.0, help="of the neighbor (50)")
    parser.add_argument("--rate", type=float, help="requests/s beside it, instead of a share of the capacity")
    parser.add_argument("--share", type=float, default=0.1, help="of the capacity, beside it (0.1)")
    parser.add_argument("--budget-ms", type=float, default=20.0, help="beside it (20)")
    parser.add_argument("--only", choices=["rest", "neighbor"])
    parser.add_argument("--first", action="store_true", help="run before all others: nice -20 (needs root)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    plan = plan.model_copy(
        update={"paths": tuple(p.model_copy(update={"bundle": p.bundle.resolve()}) for p in plan.paths)}
    )
    source = open_source(args.data, load_bundle(plan.paths[0].bundle), 0)
    budget_s = plan.default_budget_ms / 1e3
    os.sched_setaffinity(0, {CLIENT_CORE})
    with priority(args.first):
        document = measured(plan, source, budget_s, args)
    save(args.json, document)


if __name__ == "__main__":
    main()
