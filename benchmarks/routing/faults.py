"""Breaks lanes under load: one is killed, one slowed tenfold, one stalled for two seconds.

    python -m benchmarks.routing.faults --profile runs/profile.json \\
        --data ../shared/data/trivago/impressions.parquet

Serves a plan with process lanes. For each fault, an open-loop Poisson load at a share of its capacity runs
for some seconds, with the fault in the middle. Reports how many requests were answered in time, rejected,
expired or unavailable, whether any got no answer or another 5xx, and the maximum time that an answer came
after its deadline. Lanes are killed by SIGKILL, stalled by SIGSTOP, and slowed by a duty cycle of SIGSTOP and
SIGCONT (1 of 10 ms), without changes to the server. `none` is the same load without a fault, to show the
machine's own influence.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.command import command, command_parser, save
from benchmarks.routing.plans import plan_of
from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import Load, load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import get_json
from polyrec.loadtest.machine import machine
from polyrec.loadtest.results.outcome import Fate, Outcome
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import Source, open_source
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.traffic import Arrivals

WARM_UP_S, STALL_S, SLOW_S = 1.0, 2.0, 2.0
CYCLE_S, SHARE = 0.010, 0.1


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stall(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STALL_S)
    os.kill(pid, signal.SIGCONT)


def slow(pid: int) -> None:
    """Slows a lane to a tenth of its time."""
    end = time.perf_counter() + SLOW_S
    while time.perf_counter() < end:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(CYCLE_S * (1 - SHARE))
        os.kill(pid, signal.SIGCONT)
        time.sleep(CYCLE_S * SHARE)


FAULTS: dict[str, Callable[[int], None]] = {
    "none": lambda pid: None,
    "killed": kill,
    "slowed": slow,
    "stalled": stall,
}


def lanes(url: str) -> list[dict[str, object]]:
    """Returns each lane of /v1/paths with its circuit breaker."""
    page = get_json(url, "/v1/paths")
    views = {view["name"]: view for view in page["routing"]["lanes"]}
    return [lane | views[lane["name"]] for lane in page["lanes"]]


def inject(url: str, fault: Callable[[int], None], at_s: float, times_s: list[float]) -> None:
    """Injects a fault into the first lane, and records the time until all lanes work again."""
    time.sleep(at_s)
    pid = lanes(url)[0]["pid"]
    assert isinstance(pid, int)
    start = time.perf_counter()
    fault(pid)
    until = time.perf_counter() + 5
    while time.perf_counter() < until:
        now = lanes(url)
        if all(lane["alive"] and lane["breaker"] == "closed" for lane in now) and now[0]["pid"]:
            times_s.append(time.perf_counter() - start)
            return
        time.sleep(0.02)


def prepared_load(
    url: str, source: Source, rate: float, seconds: float, budget_s: float, seed: int, steady: bool = False
) -> tuple[Target, Load]:
    """Returns requests of the source's own sizes, at Poisson or regular times."""
    due_s = (
        np.arange(0.0, seconds, 1 / rate)
        if steady
        else arrival_times(Arrivals(), rate, seconds, np.random.default_rng(seed))
    )
    rows, body = source.shuffled(due_s.size, seed)
    target = Target(url + RANK, {"Content-Type": "application/json"})
    return target, load_of(target, due_s, seconds, body, rows=rows, budget_s=budget_s, prepare=True)


def measure(
    url: str, name: str, rate: float, slo_s: float, seconds: float, source: Source, seed: int
) -> dict[str, Any]:
    """Measures one fault under load."""
    load = prepared_load(url, source, rate, WARM_UP_S + seconds, slo_s, seed)
    back: list[float] = []
    injector = threading.Thread(target=inject, args=(url, FAULTS[name], WARM_UP_S + seconds / 4, back))
    injector.start()
    outcome = run(*load, Limits()).since(WARM_UP_S)
    injector.join()
    return result_of(name, outcome, slo_s, back[0] if back and name != "none" else None)


def result_of(name: str, outcome: Outcome, slo_s: float, back_s: float | None) -> dict[str, Any]:
    """Returns the figures of one run; shares are of all requests.

    lateness_ms: maximum time of any answer after its deadline, by the client's clock. back_s: time from the
    fault until every lane got work again.
    """
    fate = outcome.fate
    late = 1e3 * (outcome.latency_s - outcome.lag_s - slo_s)
    heard = np.isfinite(late)
    return {
        "fault": name,
        "requests": fate.size,
        "rate": round(fate.size / outcome.seconds, 1),
        "in_time": round(float((fate == Fate.OK).mean()), 5),
        "fates": count_fates(outcome),
        "statuses": {str(k): v for k, v in sorted(Counter(outcome.status.tolist()).items())},
        "unanswered": int((outcome.status == 0).sum()),
        "p99_ms": round(1e3 * float(np.percentile(outcome.latency_s[outcome.answered], 99)), 3),
        "lateness_ms": round(float(late[heard].max()), 3),
        "over_5_ms_late": int((late[heard] > 5).sum()),
        "back_s": None if back_s is None else round(back_s, 3),
    }


def count_fates(outcome: Outcome) -> dict[str, int]:
    """Returns the number of requests by fate; omits fates that no request had."""
    return {f.name.lower(): n for f in Fate if (n := int((outcome.fate == f).sum()))}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--profile", type=Path, required=True, help="of this machine, by polyrec profile")
    parser.add_argument("--paths", nargs="+", default=["hybrid-hot@cpu", "table@cpu"])
    parser.add_argument("--data", help="rows of requests (default: synthetic rows of the bundle)")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--rate", type=float, default=700.0, help="requests/s: 70%% of what this plan does")
    parser.add_argument("--slo-ms", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=8.0, help="of load for each fault")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--core", type=int, help="of the server's front; lanes and driver use any")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    plan = plan_of(args.profile, args.paths, args.lanes, "process", args.slo_ms)
    source = open_source(args.data, load_bundle(plan.paths[0].bundle), 0)
    results = []
    cores = os.sched_getaffinity(0) if args.core is None else {args.core}
    with PolicyServer(plan, ("priced",), cores, {}) as server:
        server.set_policy("priced")
        for repeat in range(args.repeats):
            for name in FAULTS:
                result = measure(server.url, name, args.rate, args.slo_ms / 1e3, args.seconds, source, repeat)
                results.append(result)
                print(json.dumps(result), file=sys.stderr)
    document = {
        "command": command(),
        "machine": machine(),
        "plan": plan.model_dump(mode="json", exclude={"paths": {"__all__": {"latency"}}}, exclude_none=True),
        "slo_ms": args.slo_ms,
        "results": results,
    }
    save(args.out, document)


if __name__ == "__main__":
    main()
