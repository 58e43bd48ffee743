"""Compares live servers of a model larger than a device budget: rows in tiers, and all on the device.

    python -m benchmarks.gpu.tiers --folder /var/tmp/tiers --out docs/results/gpu-tiers.json
    python -m benchmarks.gpu.tiers --folder /var/tmp/tiers --device cpu --small     # to try the steps

The model has Criteo's 26 tables, 4 M rows x 64, ids by Zipf's law. The hottest rows are on the device, a
quarter of all bytes. The others are in host memory, or an eighth of all in host memory and the rest on disk,
with and without `popular_first`. Requests are binary tensors of 128 rows. Every second one is hot: all its
rows are on the device. Servers take turns with a closed loop of 16 connections, then with the same Poisson
arrivals, half of what the slowest answered. No request is sent to a server twice, unless it answers more
than there are. Answers of closed loops are compared with those of the runtime with all rows on the device. A
server that fails is left out, and figures are written as soon as they are measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.command import CORES, device_parser, save
from benchmarks.gpu.page import tiers_table
from benchmarks.peers.load import Known, closed
from benchmarks.peers.models import MODELS, value_of_rank, write_model
from benchmarks.peers.queries import EXPONENT, PeerRows, binary_body, draw
from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import read_metrics
from polyrec.loadtest.machine import processor
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.embeddings.cuts import tiers_within
from polyrec.models.errors import PolyrecError
from polyrec.models.runtimes import open_runtime
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Plan, save_plan
from polyrec.planner.traffic import Arrivals
from polyrec.server.child import ServerProcess, start

ROWS, CONNECTIONS = 128, 16
MODEL_ROWS, SMALL_ROWS = 4_000_000, 40_000
REQUESTS, SMALL_REQUESTS, WARM_UP = 8192, 128, 64
"""Requests of a closed loop, as many again with Poisson arrivals, and those sent before."""
DEVICE_SHARE, HOST_SHARE, CACHE_SHARE = 4, 8, 16
"""All bytes of rows, divided by those in each memory."""
AT_ONCE = 1024
"""Rows whose answers are computed at once."""
LIMIT_S, LOAD = 0.05, 0.5
"""Latency budget, and arrivals relative to the slowest closed loop."""
TOLERANCE = 1e-4
PATH = "table@device"


@dataclass(frozen=True, slots=True)
class TierCase:
    """A server. tiers: of its rows; none: all are on the device."""

    name: str
    tiers: tuple[str, ...] = ()
    popular_first: bool = False


CASES = (
    TierCase("all on the device"),
    TierCase("device and host", ("device", "host")),
    TierCase("device, host and disk", ("device", "host", "disk")),
    TierCase("device, host and disk, popular first", ("device", "host", "disk"), True),
)


def cuts_of(bundle: Bundle, tiers: Sequence[str]) -> dict[str, dict[str, int]]:
    """Returns each table's rows by tier; the last tier takes what the shares leave."""
    shares = {"device": DEVICE_SHARE, "host": HOST_SHARE, "disk": 1}
    budgets = {tier: row_bytes(bundle) // shares[tier] for tier in tiers}
    return tiers_within(bundle.encoder.vocabularies, 4 * bundle.manifest.architecture.width, budgets)


def row_bytes(bundle: Bundle) -> int:
    """Returns the bytes of all rows."""
    rows = sum(v.rows for v in bundle.encoder.vocabularies.values())
    return 4 * bundle.manifest.architecture.width * rows


def plan_of(bundle: Bundle, device: str, case: TierCase, directory: Path) -> Plan:
    """Returns the plan of one lane, a thread."""
    plan: dict[str, object] = {
        "paths": [{"name": PATH, "bundle": bundle.path, "runtime": "torch", "device": device}],
        "lanes": [{"name": "device", "device": device, "kind": "thread"}],
        "default_budget_ms": 60_000,
    }
    if case.tiers:
        placed: dict[str, object] = {"path": PATH, "tables": cuts_of(bundle, case.tiers)}
        placed["cache_bytes"] = row_bytes(bundle) // CACHE_SHARE
        plan["placement"] = {"paths": [placed], "directory": directory, "popular_first": case.popular_first}
    return Plan.model_validate(plan)


def requests_of(bundle: Bundle, count: int) -> PeerRows:
    """Draws requests, of which those with even numbers have all rows on the device of the tiered cases."""
    schema, ids = bundle.manifest.schema_, value_of_rank(bundle)
    drawn = draw(schema, ids, count, ROWS)
    hot = [cut["device"] for cut in cuts_of(bundle, ("device", "host")).values()]
    for i, (table, near) in enumerate(zip(bundle.encoder.vocabularies, hot, strict=True)):
        ranks = bundle.encoder.vocabularies[table].rank_of_id[drawn.sparse[::2, :, i]]
        drawn.sparse[::2, :, i] = ids[i][ranks % max(near, 1)]
    return drawn


def known_requests(bundle: Bundle, device: str, count: int) -> Known:
    """Returns requests with the answers of the torch runtime on the device; the caller sets `url`."""
    drawn = requests_of(bundle, count)
    runtime = open_runtime("torch", bundle, device)
    dense = drawn.dense.reshape(-1, drawn.dense.shape[2])
    sparse = drawn.sparse.reshape(-1, drawn.sparse.shape[2])
    parts = [slice(first, first + AT_ONCE) for first in range(0, len(dense), AT_ONCE)]
    found = [runtime.predict(bundle.encoder.from_ids(dense[some], sparse[some], {})) for some in parts]
    expected = np.concatenate(found).reshape(-1, ROWS).astype(np.float64)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
    bodies = [binary_body(drawn, i) for i in range(len(drawn))]
    return Known("", headers, bodies, expected, TOLERANCE, binary=True)


def start_all(plans: Mapping[str, Path], opened: ExitStack) -> dict[str, ServerProcess]:
    """Starts servers at the same time; returns those that answer, by the name of their case."""

    def started(item: tuple[str, Path]) -> ServerProcess | None:
        try:
            return opened.enter_context(start({"plan": item[1], "drain_grace_s": 0, "log_level": "error"}))
        except PolyrecError as e:
            print(f"{item[0]} is left out: {e}", flush=True)
            return None

    with ThreadPoolExecutor() as pool:
        found = zip(plans, pool.map(started, plans.items()), strict=True)
        return {name: server for name, server in found if server is not None}


def hits(url: str) -> dict[str, float]:
    """Reads the lookups answered by each tier."""
    total = read_metrics(url).total
    return {t: total("polyrec_embedding_hits_total", tier=t) for t in ("device", "host", "cache", "disk")}


def open_loop(known: Known, rate: float, seconds: float) -> dict[str, float | None]:
    """Sends requests at Poisson times; returns the share in time, and quantiles of hot and other requests."""
    due_s = arrival_times(Arrivals(), rate, seconds, np.random.default_rng(0))
    target, count = Target(known.url, known.headers), len(known.bodies)
    load = load_of(target, due_s, seconds, lambda i: known.bodies[i % count], budget_s=LIMIT_S, prepare=True)
    outcome = run(target, load, Limits(grace_s=2.0))
    found: dict[str, float | None] = {
        "in_time": float((outcome.latency_s <= LIMIT_S)[outcome.answered].sum() / due_s.size)
    }
    found["lag_ms"] = 1e3 * float(np.nanquantile(outcome.lag_s, 0.99))
    for kind, first in (("hot", 0), ("other", 1)):
        took_s = outcome.latency_s[first::2][outcome.answered[first::2]]
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            found[f"{kind}_{name}_ms"] = 1e3 * float(np.quantile(took_s, q)) if took_s.size else None
    return found


def part(known: Known, url: str, first: int, last: int) -> Known:
    """Returns some of the requests, for a server."""
    some = slice(first, last)
    return replace(known, url=url + INFER, bodies=known.bodies[some], expected=known.expected[some])


def measure(bundle: Bundle, device: str, folder: Path, count: int, seconds: float, out: Path | None) -> None:
    """Measures all cases; writes the figures after each."""
    known = known_requests(bundle, device, 2 * count + WARM_UP)
    plans = {}
    for number, case in enumerate(CASES):
        plans[case.name] = folder / f"plan-{number}.json"
        save_plan(plan_of(bundle, device, case, folder), plans[case.name])
    kind = torch.cuda.get_device_name(device) if device != "cpu" else "cpu"
    report: dict[str, Any] = {"device": kind, "processor": processor(), "cores": len(CORES)}
    report |= {"rows": sum(v.rows for v in bundle.encoder.vocabularies.values()), "requests": count}
    found: dict[str, dict[str, float | None]] = {}
    report["cases"] = found
    rates = []
    with ExitStack() as opened:
        # servers inherit all cores but the driver's
        os.sched_setaffinity(0, CORES[:-1] or CORES)
        up = start_all(plans, opened)
        os.sched_setaffinity(0, CORES[-1:])
        for name, server in up.items():
            try:
                closed(part(known, server.url, 0, WARM_UP), CONNECTIONS, seconds / 4)
                before = hits(server.url)
                loop = closed(part(known, server.url, WARM_UP, WARM_UP + count), CONNECTIONS, seconds)
                moved = {tier: n - before[tier] for tier, n in hits(server.url).items()}
            except LoadError as e:
                print(f"{name} is left out: {e}", flush=True)
                continue
            rates.append(loop.requests_per_s)
            found[name] = {tier: n / max(1.0, sum(moved.values())) for tier, n in moved.items()}
            found[name]["rows_per_s"] = loop.requests_per_s * ROWS
            save(out, report)
        report["rate"] = rate = LOAD * min(rates, default=0.0)
        for name, figures in found.items():
            asked = part(known, up[name].url, WARM_UP + count, WARM_UP + 2 * count)
            figures |= open_loop(asked, rate, 1.5 * seconds)
            save(out, report)
    print("\n".join(tiers_table(report)))


def main() -> None:
    parser = device_parser(__doc__, "a small model, few requests", 1.5, "of a closed loop")
    parser.add_argument("--folder", type=Path, required=True, help="of model and files; a real disk")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = replace(MODELS["large"], rows=SMALL_ROWS if args.small else MODEL_ROWS)
    bundle = write_model(model, folder / "model", EXPONENT)
    count = SMALL_REQUESTS if args.small else REQUESTS
    measure(bundle, args.device, folder, count, args.seconds, args.out)


if __name__ == "__main__":
    main()
