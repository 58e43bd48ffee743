"""Compares two models with different SLOs on shared lanes with one server each, and with the bound.

    python -m benchmarks.lanes.two_models movies=ml1m.plan.json,ratings.parquet,10 \\
        hotels=trivago.plan.json,impressions.parquet,25 --out docs/results/two-models.json

Each model serves the best path of its plan on an inline lane. All servers share one core; the driver has
another. The two separate servers each have at least half of the core: the kernel divides it fairly between
busy processes, and gives either the time that the other does not use.

A model's capacity is the rate that its server answers alone in a closed loop. A load of 100% is half of each
model's capacity. Arrivals are Poisson and the same for both setups, which take turns. The upper bound is the
clairvoyant one for the same requests, with half of the time guaranteed to each model
(planner/simulation/bound.py), batches as fast as in the shared server's run, and the core's time that
reading, answering and rejecting leave (shared_bound.py).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import uvloop

from benchmarks.command import CLIENT_CORE, SERVER_CORE, command_parser, priority, save, timestamp
from benchmarks.lanes.front_time import Front
from benchmarks.lanes.shared_bound import LaneUse, bound_of
from polyrec.loadtest.comparison.simulated import completed
from polyrec.loadtest.drivers.closed_loop import closed_loop
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.load import BUDGET, load_of
from polyrec.loadtest.drivers.open_loop import Limits, drive
from polyrec.loadtest.drivers.server_pages import MetricSamples, get_json, read_metrics
from polyrec.loadtest.machine import core_seconds, processor
from polyrec.loadtest.results.figures import figures
from polyrec.loadtest.results.outcome import Outcome
from polyrec.loadtest.traffic.source import Source, open_source
from polyrec.models.amounts import percent
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.schema.batch import F64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Limits as PlanLimits
from polyrec.planner.plan import load_plan, save_plan
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.simulation.trace import Trace
from polyrec.planner.traffic import Arrivals
from polyrec.report.text import markdown_table
from polyrec.server.child import ServerProcess, start

LOADS = (0.6, 1.0, 1.4)
WAYS = ("shared", "apart")
WARM_UP_S = 1.5
SOURCE_ROWS = 200_000
MARGIN_S = 0.0005
"""Part of a budget that the client reserves for the network."""
CONNECTIONS = 16
DIFFERENT = 256
ENDLESS = "600000"
MAX_LAG_S = 0.004
"""Maximum 99th percentile of the driver's own lag."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One of the models that share the core. rows: per request. plan: file of a plan with its best path."""

    name: str
    source: Source
    slo_s: float
    rows: int
    plan: Path
    limits: PlanLimits

    def requests(self, target: Target, headers: dict[str, str]) -> list[bytes]:
        _, body = self.source.sampled(np.full(DIFFERENT, self.rows, np.int64), 0)
        return [target.request(body(i), headers) for i in range(DIFFERENT)]


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one setup.

    in_time, refused, expired, p99_ms: by model. busy_s: time of lanes. core_s: CPU time of servers. bound:
    largest share of all requests that could be in time; only for the shared server.
    """

    load: float
    turn: int
    way: str
    rates: list[float]
    in_time: list[float]
    refused: list[float]
    expired: list[float]
    p99_ms: list[float | None]
    together: float
    busy_s: float
    core_s: float
    bound: float | None = None


def tenant(text: str, rows: int, folder: Path) -> Tenant:
    """Parses NAME=PLAN,DATA,SLO, with the SLO in ms."""
    name, _, rest = text.partition("=")
    file, data, slo_ms = rest.split(",")
    plan = load_plan(Path(file).resolve())  # its bundles are found from another folder, too
    best = max(plan.paths, key=lambda path: path.quality or 0.0)
    # without a latency, the server measures it as it starts, at the speed that the machine has now
    measured = best.model_copy(update={"latency": None})
    budget = {"default_budget_ms": float(slo_ms)}
    whole = plan.model_copy(update={"paths": (measured,), "differences": (), **budget})
    save_plan(whole, folder / f"{name}.json")
    source = open_source(data, load_bundle(best.bundle), 0, SOURCE_ROWS)
    return Tenant(name, source, float(slo_ms) / 1e3, rows, folder / f"{name}.json", whole.limits)


class Servers:
    """Runs the shared server and the two separate ones."""

    def __init__(self, tenants: Sequence[Tenant], core: int, opened: ExitStack) -> None:
        self.tenants = tenants

        def serve(settings: dict[str, object]) -> ServerProcess:
            settings |= {"drain_grace_s": 0, "max_budget_ms": ENDLESS}
            return opened.enter_context(start(settings, core=core))

        self.shared = serve({"plans": ",".join(f"{t.name}={t.plan}" for t in tenants)})
        self.apart = [serve({"plans": f"{t.name}={t.plan}"}) for t in tenants]
        self.latencies = [self._latency(i) for i in range(len(tenants))]

    def arrangement(self, way: str) -> list[ServerProcess]:
        """Returns the server of each model."""
        return [self.shared] * len(self.tenants) if way == "shared" else self.apart

    def target(self, way: str, index: int) -> Target:
        url = f"{self.arrangement(way)[index].url}/v1/models/{self.tenants[index].name}/rank"
        return Target(url, {"Content-Type": "application/json"})

    def capacity(self, index: int, seconds: float) -> tuple[float, float]:
        """Returns requests/s that a model's own server answers, and its seconds per request outside lanes."""
        target = self.target("apart", index)
        requests = self.tenants[index].requests(target, {BUDGET: ENDLESS})
        closed_loop(target.url, requests, CONNECTIONS, seconds / 4)
        before = Counters.read(self, "apart")
        answered = closed_loop(target.url, requests, CONNECTIONS, seconds)
        spent = Counters.read(self, "apart").since(before)
        # lanes count elapsed time, which is more than the core's where other processes use it
        return answered / seconds, max(0.0, spent.beside_s) / answered

    def traces(self, due_s: Sequence[F64]) -> list[Trace]:
        """Returns requests due at these times, by model, with the latency that its server measured."""
        found = []
        for each, latency, due in zip(self.tenants, self.latencies, due_s, strict=True):
            path = PathSpec(each.name, "cpu", 1.0, latency)
            rows = np.full(due.size, each.rows, np.int64)
            found.append(Trace((path,), each.limits, due, rows, each.slo_s - MARGIN_S))
        return found

    def _latency(self, index: int) -> LatencyModel:
        """Returns the latency of a model's path as its server measured it."""
        tenant = self.tenants[index]
        opened = get_json(self.apart[index].url, f"/v1/models/{tenant.name}/paths")["paths"]
        (path,) = completed(load_plan(tenant.plan), opened).paths
        assert path.latency is not None
        return path.latency


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of servers. core_s: CPU seconds."""

    lanes: LaneUse
    core_s: float

    @property
    def beside_s(self) -> float:
        """CPU seconds outside the lanes."""
        return self.core_s - float(self.lanes.busy_s.sum())

    @staticmethod
    def read(servers: Servers, way: str) -> Counters:
        """Reads the counters of all servers of an arrangement, summed by model."""
        found = servers.arrangement(way)
        pages = {server.url: read_metrics(server.url) for server in found}
        at = [(pages[s.url], t.name) for s, t in zip(found, servers.tenants, strict=True)]

        def totals(name: str) -> F64:
            return np.array([_of_model(page, name, model) for page, model in at])

        return Counters(
            LaneUse(
                totals("polyrec_lane_busy_seconds_total"),
                totals("polyrec_batch_rows_count"),
                totals("polyrec_batch_rows_sum"),
            ),
            sum(core_seconds(pid)[0] for pid in {server.process.pid for server in found}),
        )

    def since(self, before: Counters) -> Counters:
        return Counters(self.lanes.since(before.lanes), self.core_s - before.core_s)


def _of_model(page: MetricSamples, name: str, model: str) -> float:
    """Returns the total of a model's metric; a server of a single model has no model label."""
    return page.total(name, model=model) or page.total(name)


async def drive_both(servers: Servers, way: str, due_s: Sequence[F64], seconds: float) -> list[Outcome]:
    """Sends the requests of both models at their scheduled times."""
    loads = []
    for index, (each, due) in enumerate(zip(servers.tenants, due_s, strict=True)):
        target = servers.target(way, index)
        rows, body = each.source.sampled(np.full(due.size, each.rows, np.int64), 1)
        budgets = {"budget_s": each.slo_s, "sent_budget_s": each.slo_s - MARGIN_S}
        loads.append((target, load_of(target, due, seconds, body, rows=rows, prepare=True, **budgets)))
    return list(await asyncio.gather(*(drive(target, load, Limits()) for target, load in loads)))


def measure(
    servers: Servers,
    way: str,
    load: float,
    turn: int,
    rates: Sequence[float],
    seconds: float,
    answer_s: Sequence[float],
) -> Run | None:
    """Measures one load; returns None if the driver was late. answer_s: by model, as in Front."""
    random = np.random.default_rng((turn, round(1000 * load)))
    whole_s = WARM_UP_S + seconds
    due_s = [arrival_times(Arrivals(), rate, whole_s, random) for rate in rates]
    before = Counters.read(servers, way)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcomes = runner.run(drive_both(servers, way, due_s, whole_s))
    spent = Counters.read(servers, way).since(before)
    counted = [outcome.since(WARM_UP_S) for outcome in outcomes]
    if max(float(np.quantile(o.lag_s, 0.99)) for o in counted) > MAX_LAG_S:
        return None
    found = [figures(outcome, {}) for outcome in counted]
    total = sum(f.requests for f in found)
    answered = [int((outcome.status == 200).sum()) for outcome in outcomes]
    front = Front(
        spent.beside_s,
        sum(due.size for due in due_s),
        sum(answered),
        float(np.average(answer_s, weights=answered)),
    )
    return Run(
        load,
        turn,
        way,
        list(rates),
        [f.ok for f in found],
        [f.refused for f in found],
        [f.expired for f in found],
        [f.p99_ms for f in found],
        sum(f.ok * f.requests for f in found) / total,
        float(spent.lanes.busy_s.sum()),
        spent.core_s,
        bound_of(servers.traces(due_s), spent.lanes, whole_s, front) if way == "shared" else None,
    )


def page(found: dict[str, Any]) -> str:
    """Returns the results page as Markdown."""
    models = found["models"]
    rows, of_bound = [], {}
    for load in LOADS:
        runs = [run for run in found["runs"] if run["load"] == load]
        ways = {way: [run for run in runs if run["way"] == way] for way in WAYS}
        if not all(ways.values()):
            continue
        shared, apart = ways["shared"], ways["apart"]
        cells = [percent(load), " + ".join(f"{rate:,.0f}" for rate in runs[0]["rates"])]
        for of in (shared, apart):
            cells += [percent(median(run["in_time"][i] for run in of)) for i in range(len(models))]
            cells.append(percent(median(run["together"] for run in of)))
        bound = median(run["bound"] for run in shared)
        of_bound[load] = median(run["together"] / run["bound"] for run in shared)
        cells += [percent(bound), percent(of_bound[load])]
        rows.append(cells)
    names = [model["name"] for model in models]
    head = ["load", "requests/s", *(f"shared: {n}" for n in (*names, "both"))]
    head += [*(f"apart: {n}" for n in (*names, "both")), "bound", "shared, of the bound"]
    about = "; ".join(
        f"`{m['name']}`: {m['slo_ms']:g} ms, {m['rows']} candidates a request, "
        f"{m['capacity']:,.0f} requests/s alone"
        for m in models
    )
    return "\n".join(
        [
            "# Results: two models on one core",
            "",
            "One server with two models reaches "
            f"{', '.join(percent(share) for share in of_bound.values())} of the bound at "
            f"{', '.join(percent(load) for load in of_bound)} load, and answers more in time than two "
            "servers on the same core.",
            "",
            "The table has the share of requests answered within their budget, by the client's clock, "
            f"medians of {found['turns']} turns of {found['seconds']:g} s; {found['machine']}, "
            f"{found['made'][:10]}.",
            "",
            f"    {found['command']}",
            "",
            f"- Models: {about}. A load of 100% is half of the capacity of each.",
            "- Shared: one server with both models. Apart: two servers on the same core, to each of which "
            "the kernel gives at least half of it and what the other leaves.",
            "- The bound knows all arrivals, guarantees each model half, and has the time that reading, "
            "answering and rejecting leave of the core; each further answer costs what it takes beyond a "
            "rejection.",
            "",
            *markdown_table(head, rows),
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("models", nargs=2, metavar="NAME=PLAN,DATA,SLO_MS")
    parser.add_argument("--rows", type=int, default=100, help="candidates of every request (100)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a run (4)")
    parser.add_argument(
        "--first", action="store_true", help="run the driver before all others: nice -20 (needs root)"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON; the page is written beside it")
    args = parser.parse_args(argv)
    os.sched_setaffinity(0, {CLIENT_CORE})
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        tenants = [tenant(text, args.rows, Path(folder)) for text in args.models]
        servers = Servers(tenants, SERVER_CORE, opened)
        opened.enter_context(priority(args.first))
        capacity, answer_s = zip(*(servers.capacity(i, 2.0) for i in range(len(tenants))), strict=True)
        print(f"alone: {', '.join(f'{rate:,.0f}' for rate in capacity)} requests/s", flush=True)
        for turn in range(args.turns):
            for load in LOADS:
                rates = [load * rate / len(tenants) for rate in capacity]
                for way in WAYS[:: -1 if turn % 2 else 1]:
                    run = measure(servers, way, load, turn, rates, args.seconds, answer_s)
                    print(run or f"{way} at {load:.0%}: left out, as the driver was late", flush=True)
                    if run is not None:
                        runs.append(run)
    found = {
        "command": "python -m benchmarks.lanes.two_models "
        + " ".join(
            "=".join((m.partition("=")[0], ",".join(Path(p).name for p in m.partition("=")[2].split(","))))
            for m in args.models
        )
        + f" --out {args.out}",
        "machine": processor(),
        "made": timestamp(),
        "turns": args.turns,
        "seconds": args.seconds,
        "models": [
            {"name": t.name, "slo_ms": 1e3 * t.slo_s, "rows": t.rows, "capacity": rate, "answer_s": each_s}
            for t, rate, each_s in zip(tenants, capacity, answer_s, strict=True)
        ],
        "runs": [asdict(run) for run in runs],
    }
    save(args.out, found)
    args.out.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
