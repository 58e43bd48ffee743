"""Measures a server's latency during a feed of row updates, and the time until a new value is served.

    python -m benchmarks.operations.update_feed --folder /var/tmp/feed --pin --json update-feed.json

Trains a model on generated clicks (kept in the folder), reserves rows in its item table, and serves it with
half of each table on disk and with an update log. Each turn measures the highest rate in a closed loop,
since the speed of a virtual machine changes by the minute, and then sends Poisson arrivals at a share of it,
in three slices of a few seconds: alone; with so many more requests as take the processor time of the
updates; and with updates of 4,000 rows each, so many rows a second. Which comes first changes by turn. A
slice with updates also adds a new item and asks for its score until it differs from an unknown item's. p99
is the median of the slices of a kind, less the beginning of each, so that a stall of the machine counts
once; the intervals are bootstrapped over the turns. Also prints the processor time that the server, idle
otherwise, takes for an update of 4,000 rows and for one of 20,000. --pin gives the server one core and the
clients all others: without it they share all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.command import command_parser, save
from benchmarks.operations.update_load import (
    BINARY,
    CALL,
    CALL_ROWS,
    TIMEOUT_S,
    TOKEN,
    UpdateLoad,
    feed_and_add,
    update_body,
)
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import Load
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.machine import machine
from polyrec.loadtest.results.outcome import Outcome
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import open_source
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.models.data.reader import open_data
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.batch import F64
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Plan, save_plan
from polyrec.planner.traffic import Arrivals
from polyrec.server.child import start

CONNECTIONS = 16
IDLE_CALLS = 200
FAILED_MS = 1000.0
"""Budget, and the latency that a failed request is counted with."""
DISTINCT = 20_000
"""Number of different request bodies."""
SETTLES_S = 0.5
"""Seconds at the start of each slice that are not counted."""
HIGHEST_S = 1.0
"""Seconds of the closed loop before each turn's slices."""
PAUSE_S = 1.0
"""Seconds before a turn's slices, and for the answers after them."""
BEGINS_S = 0.2
"""Seconds that the driver takes to begin, roughly."""
STARTS_S = 6.0
"""Seconds for the feed to start."""
WARMS_S = 6.0
KINDS = ("alone", "more requests", "updates")


def bundle_in(folder: Path, rows: int, items: int, width: int) -> Bundle:
    """Returns the bundle in the folder, after training it if it does not exist."""
    if not (folder / "bundle").exists():
        schema = load_schema("trivago")
        data = generate(folder / "clicks.parquet", rows, seed=7, items=items, users=items).path
        shape = Architecture(width=width, bottom=(256, 128), top=(512, 256))
        training = RecipeFile(architecture=shape, recipe=Recipe(epochs=1, batch_rows=4096))
        trained = Learner(open_data(data, schema), schema, training).learn(folder / "trained")
        model, encoder = reserve(trained, {"item": 10_000})
        write_bundle(folder / "bundle", model, trained.manifest.representation, encoder, {}, {})
    return load_bundle(folder / "bundle")


def plan_of(bundle: Bundle, folder: Path, lane: str) -> Path:
    """Writes the plan: one path, half of each table on disk, a tenth of the rows' bytes for the cache."""
    cuts = {
        t: {"host": v.rows // 2, "disk": v.rows - v.rows // 2} for t, v in bundle.encoder.vocabularies.items()
    }
    placed = {"path": "table@cpu", "tables": cuts, "cache_bytes": bundle.rows_bytes // 10}
    plan = Plan.model_validate(
        {
            "paths": [{"name": "table@cpu", "bundle": bundle.path, "runtime": "onnx"}],
            "lanes": [{"name": "cpu.0", "device": "cpu", "kind": lane}],
            "placement": {"paths": [placed], "directory": folder},
            "default_budget_ms": 1000,
        }
    )
    save_plan(plan, folder / "plan.json")
    return folder / "plan.json"


def settings_of(bundle: Bundle, folder: Path, lane: str) -> dict[str, Any]:
    """Returns the server's settings: plan, token, and an update log in the folder `log`."""
    return {
        "plan": plan_of(bundle, folder, lane),
        "admin_token": TOKEN,
        "update_log": folder / "log",
        "default_budget_ms": 1000,
    }


def idle_ms(url: str, server: psutil.Process, items: int, width: int, rows: int) -> float:
    """Returns the CPU milliseconds that an otherwise idle server takes for an update."""
    random = np.random.default_rng(1)
    bodies = [update_body(random, items, width, rows) for _ in range(IDLE_CALLS)]
    before = cpu_ms(server)
    with httpx.Client(base_url=url, headers=BINARY, timeout=TIMEOUT_S) as client:
        for body in bodies:
            client.post(CALL, content=body, params={"time": time.time()}).raise_for_status()
            time.sleep(0.02)
    return (cpu_ms(server) - before) / IDLE_CALLS


def cpu_ms(process: psutil.Process) -> float:
    """Returns the CPU milliseconds that a process has used."""
    times = process.cpu_times()
    return 1e3 * float(times.user + times.system)


def arrivals(rates: Sequence[float], seconds: float) -> F64:
    """Returns the times of Poisson arrivals in slices of equal length, each with its own rate."""
    random = np.random.default_rng(7)
    return np.concatenate(
        [i * seconds + arrival_times(Arrivals(), rate, seconds, random) for i, rate in enumerate(rates)]
    )


def load_run(target: Target, made: Sequence[bytes], due_s: F64, candidates: int) -> Outcome:
    """Sends requests at given times, repeating them if there are more times than requests."""
    rows = np.full(due_s.size, candidates)
    no_budget = np.full(due_s.size, np.inf)
    load = Load(due_s, float(due_s[-1]) + 1e-6, rows, no_budget, lambda i: made[i % len(made)])
    return run(target, load, Limits())


def compare(slices: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Returns the figures of each kind of slice, and its p99 over that of `alone` with a 95% interval.

    slices: by kind, one a turn, without their beginnings. p99: the median of the slices' p99.
    """
    latency_ms = {
        kind: [np.where(one.status == 200, 1e3 * one.latency_s, FAILED_MS) for one in outcomes]
        for kind, outcomes in slices.items()
    }
    p99_ms = np.array([[np.quantile(one, 0.99) for one in latency_ms[kind]] for kind in KINDS]).T
    drawn = np.random.default_rng(1).integers(0, len(p99_ms), (10_000, len(p99_ms)))
    medians = np.median(p99_ms[drawn], axis=1)
    found: dict[str, Any] = {}
    for at, kind in enumerate(KINDS):
        lag_s = np.concatenate([one.lag_s for one in slices[kind]])
        found[kind] = {
            "requests": lag_s.size,
            "failed": sum(int((one.status != 200).sum()) for one in slices[kind]),
            "p50_ms": round(float(np.median(np.concatenate(latency_ms[kind]))), 3),
            "p99_ms": round(float(np.median(p99_ms[:, at])), 3),
            "driver_lag_p99_ms": round(1e3 * float(np.quantile(lag_s, 0.99)), 3),
            "p99_ms_of_slices": p99_ms[:, at].round(1).tolist(),
        }
        if at:
            low, high = np.quantile(medians[:, at] / medians[:, 0], (0.025, 0.975)).round(2).tolist()
            ratio = found[kind]["p99_ms"] / found["alone"]["p99_ms"]
            found[kind] |= {"p99_over_alone": round(ratio, 2), "interval": [low, high]}
    return found


def highest_rate(url: str, requests: Sequence[bytes], seconds: float) -> float:
    """Returns the requests/s of a closed loop."""
    return closed_loop(url, requests, CONNECTIONS, seconds) / seconds


def measured_alone(
    server: psutil.Process,
    target: Target,
    requests: Sequence[bytes],
    updates: UpdateLoad,
    args: argparse.Namespace,
) -> tuple[dict[int, float], float]:
    """Returns the processor milliseconds of updates, by rows, and of a request."""
    url = updates.url
    highest_rate(url, requests, 3.0)
    took_ms = {}
    for rows in (5 * CALL_ROWS, CALL_ROWS):
        took_ms[rows] = round(idle_ms(url, server, updates.items, updates.width, rows), 3)
        print(f"processor time of an update of {rows} rows: {took_ms[rows]:.2f} ms", flush=True)
    due_s = arrivals([args.load * highest_rate(url, requests, 3.0)], WARMS_S)
    before = cpu_ms(server)
    load_run(target, requests, due_s, args.candidates)
    return took_ms, (cpu_ms(server) - before) / due_s.size


def measured_beside(
    target: Target,
    requests: Sequence[bytes],
    extra: Sequence[float],
    updates: UpdateLoad,
    request: dict[str, Any],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Measures slices of all kinds in turns. extra: requests/s beyond the share, by kind.

    updates: without its slices. request: a ranking of one candidate, to ask for new items.
    """
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    begins = time.monotonic() + STARTS_S
    turn_s = HIGHEST_S + PAUSE_S + len(KINDS) * args.seconds + PAUSE_S
    loads = [begins + turn * turn_s + HIGHEST_S + PAUSE_S for turn in range(args.turns)]
    orders = [np.roll(np.arange(len(KINDS)), turn).tolist() for turn in range(args.turns)]
    fed = KINDS.index("updates")
    at = [load_s + order.index(fed) * args.seconds for load_s, order in zip(loads, orders, strict=True)]
    feeder = spawn.Process(target=feed_and_add, args=(replace(updates, slices=at), request, said))
    feeder.start()
    said.get()
    slices: dict[str, list[Outcome]] = {kind: [] for kind in KINDS}
    highest: list[float] = []
    late_s: list[float] = []
    for load_s, order in zip(loads, orders, strict=True):
        time.sleep(max(load_s - PAUSE_S - HIGHEST_S - time.monotonic(), 0))
        highest.append(highest_rate(updates.url, requests, HIGHEST_S))
        due_s = arrivals([args.load * highest[-1] + extra[kind] for kind in order], args.seconds)
        # the driver takes some time to begin
        time.sleep(max(load_s - BEGINS_S - time.monotonic(), 0))
        outcome = load_run(target, requests, due_s, args.candidates)
        late_s.append(outcome.started_s - load_s)
        for place, kind in enumerate(order):
            first = place * args.seconds
            slices[KINDS[kind]].append(outcome.between(first + SETTLES_S, first + args.seconds))
    rows, waited = said.get()
    new = said.get()
    feeder.join()
    found = compare(slices)
    found["updates"] |= {
        "loads_begin_late_s": [round(min(late_s), 3), round(max(late_s), 3)],
        "rows_s": round(rows / args.seconds / args.turns),
        "longest_update_ms": round(1e3 * waited, 1),
        "new_values": len(new),
        "new_value_ms": round(1e3 * median(new), 1),
        "longest_new_value_ms": round(1e3 * max(new), 1),
    }
    return found | {"highest_requests_s": [round(rate) for rate in highest]}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="of the model, the tiers and the log; a disk"
    )
    parser.add_argument("--rows", type=int, default=400_000, help="of generated clicks (400,000)")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=23)
    parser.add_argument("--lane", default="inline", choices=["inline", "thread", "process"])
    parser.add_argument("--load", type=float, default=0.7, help="share of the highest rate (.7)")
    parser.add_argument("--updates", type=float, default=10_000, help="rows a second (10,000)")
    parser.add_argument("--seconds", type=float, default=2.4, help="of a slice (2.4)")
    parser.add_argument("--turns", type=int, default=18, help="slices of each kind (18)")
    parser.add_argument("--pin", action="store_true", help="a core for the server, the others for clients")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    bundle = bundle_in(args.folder, args.rows, args.items, args.width)
    items = bundle.encoder.vocabularies["item"].size - 10_000
    source = open_source(None, bundle, 1)
    many, body = source.sampled(np.full(DISTINCT, args.candidates), 0)
    _, one = source.sampled(np.full(1, 1), 0)
    core = None
    if args.pin:
        # before threads start, which inherit it
        core, *others = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, others)
    with start(settings_of(bundle, args.folder, args.lane), lifeline=True, core=core) as server:
        target = Target(server.url + RANK, {"Content-Type": "application/json"})
        requests = [target.request(body(i), {}) for i in range(many.size)]
        updates = UpdateLoad(server.url, items, args.width, args.updates, (), args.seconds)
        process = psutil.Process(server.process.pid)
        took_ms, request_ms = measured_alone(process, target, requests, updates, args)
        # requests that take the processor time of the updates
        more = took_ms[CALL_ROWS] * args.updates / CALL_ROWS / request_ms
        found = measured_beside(target, requests, (0.0, more, 0.0), updates, json.loads(one(0)), args)
        for kind, figures in found.items():
            print(kind, json.dumps(figures), flush=True)
        metrics = httpx.get(f"{server.url}/metrics").text.splitlines()
    if args.json:
        whole = {
            "machine": machine(),
            "cores": os.cpu_count(),
            "settings": {k: str(v) for k, v in vars(args).items() if k != "json"},
            "update_cpu_ms": took_ms,
            "kinds": found,
            "metrics": [line for line in metrics if line.startswith(("polyrec_update", "polyrec_reserved"))],
        }
        save(args.json, whole)


if __name__ == "__main__":
    main()
