"""The same server with its lane in the loop, in a thread, in a process: what clients see of the difference.

Part of benchmarks/lanes/hop.py. A bundle's own representation, and an untrained hybrid beside it (a batch
that takes milliseconds: weights do not change that). All servers are up the whole time and asked in turn, a
fraction of a second each: ranking requests as JSON in a closed loop, over one connection for the latency
alone, over sixteen for the throughput. The server's loop has the first core, the client the last; a lane
shares the one or the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.http.serve_throughput import CLIENT_CORE, SERVER_CORE, closed_loop, prepared
from polyrec.loadtest.traffic.queries import Queries, read_rows
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm.dlrm import DLRM, DenseNet, dense_slots
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.computed import Encoding
from polyrec.planner.plan import Plan, PlannedLane, PlannedPath, Routing, save_plan
from polyrec.server.child import start

ALONE, MANY = 1, 16
ROWS = 23
MAX_ROWS = 200_000
PATH = "path"
ENCODING = Encoding(k=1024, hidden=(256,))


def lane(kind: str, *cores: int, name: str = "lane") -> PlannedLane:
    return PlannedLane.model_validate({"name": name, "kind": kind, "cores": cores})


LANES: Mapping[str, tuple[PlannedLane, ...]] = {
    "inline": (lane("inline"),),
    "thread, loop's core": (lane("thread", SERVER_CORE),),
    "thread, client's core": (lane("thread", CLIENT_CORE),),
    "process, loop's core": (lane("process", SERVER_CORE),),
    "process, client's core": (lane("process", CLIENT_CORE),),
    "2 processes": (lane("process", SERVER_CORE), lane("process", CLIENT_CORE, name="second")),
}


@dataclass(frozen=True, slots=True)
class ServedHop:
    """Medians over rounds, latencies in us. alone: over one connection; many: over sixteen."""

    model: str
    lane: str
    rows: int
    alone_p50_us: int
    alone_p99_us: int
    requests_per_s: int
    best_requests_per_s: int
    many_p50_us: int
    many_p99_us: int


COLUMNS = {
    "model": ("model", 8),
    "lane": ("lane", 24),
    "rows": ("rows", 6),
    "alone_p50_us": ("alone p50 us", 14),
    "alone_p99_us": ("p99 us", 9),
    "requests_per_s": ("16: req/s", 11),
    "best_requests_per_s": ("best round", 12),
    "many_p50_us": ("p50 us", 9),
    "many_p99_us": ("p99 us", 9),
}


def served(
    bundle: Bundle, data: Path, runtime: str, rounds: int, seconds: float, folder: Path
) -> list[ServedHop]:
    """Every kind of lane with both models."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    models = {bundle.name: bundle, "hybrid": hybrid_of(bundle, folder / "hybrid")}
    table = read_rows(data, bundle.manifest.schema_, MAX_ROWS)
    requests = prepared(RANK, Queries(table, bundle.manifest.schema_).rank, ROWS, table.num_rows)
    found = []
    for model, own in models.items():
        with ExitStack() as up:
            urls = {
                name: up.enter_context(server(folder, own, lanes, runtime)) for name, lanes in LANES.items()
            }
            found += turns(urls, model, requests, rounds, seconds)
    return found


def hybrid_of(bundle: Bundle, out: Path) -> Bundle:
    """An untrained hybrid of the bundle's shape."""
    schema, shape = bundle.manifest.schema_, bundle.manifest.architecture
    representation = Representation(kind="hybrid", encoding=ENCODING)
    stage = initial_stage(representation, schema, bundle.encoder.vocabularies, shape.width, 0)
    net = DenseNet(shape, dense_slots(schema), stage.slots)
    return write_bundle(out, DLRM(stage, net), representation, bundle.encoder, {}, {}, replace=True)


@contextmanager
def server(folder: Path, bundle: Bundle, lanes: tuple[PlannedLane, ...], runtime: str) -> Iterator[str]:
    """The URL of a server of one path, without a deadline that would matter."""
    path = {"name": PATH, "bundle": bundle.path.resolve(), "runtime": runtime}
    plan = Plan(
        paths=(PlannedPath.model_validate(path),),
        lanes=lanes,
        routing=Routing(policy=f"static:{PATH}"),
        default_budget_ms=60_000,
    )
    file = folder / "plan.json"
    save_plan(plan, file)
    with start({"plan": file, "drain_grace_s": 0}, core=SERVER_CORE) as child:
        yield child.url


def turns(
    urls: Mapping[str, str], model: str, requests: list[bytes], rounds: int, seconds: float
) -> list[ServedHop]:
    """The servers' figures; each round asks all of them."""
    runs: dict[tuple[str, int], list[NDArray[Any]]] = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for turn in tqdm(range(rounds + 1), model, leave=False):
            for connections in (ALONE, MANY):
                for name, url in urls.items():
                    host, port = url.removeprefix("http://").split(":")
                    asked = closed_loop(host, int(port), cycle(requests), connections, seconds)
                    took = np.array(runner.run(asked))
                    if turn:  # the first one warms up
                        runs.setdefault((name, connections), []).append(took)

    def middle(name: str, connections: int, quantile: float) -> int:
        return round(float(np.median([np.quantile(t, quantile) for t in runs[name, connections]])) * 1e6)

    found = []
    for name in urls:
        rates = [took.size / seconds for took in runs[name, MANY]]
        found.append(
            ServedHop(
                model=model,
                lane=name,
                rows=ROWS,
                alone_p50_us=middle(name, ALONE, 0.5),
                alone_p99_us=middle(name, ALONE, 0.99),
                requests_per_s=round(float(np.median(rates))),
                best_requests_per_s=round(max(rates)),
                many_p50_us=middle(name, MANY, 0.5),
                many_p99_us=middle(name, MANY, 0.99),
            )
        )
    return found
