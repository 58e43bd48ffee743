"""Measures hot queries of a server with an eighth of its model in memory, beside queries with rows on disk.

    python -m benchmarks.tiers.popular_first --json docs/results/popular-first.json

Makes a model in Criteo's shape (benchmarks/tiers/served_model.py). Three cases take turns, each in its own
process: all rows in memory, and an eighth of them with and without `popular_first` (without it, rows are
prefetched for queries that wait for a busy lane). A share of the queries is hot: drawn by Zipf's law from the
hottest eighth of the rows in memory. The others are drawn from all ranks. Each case is measured in a closed
loop (rows/s), then with Poisson arrivals at --load of the slower tiered case's rate in its first turn. Runs
in process without sockets, so that differences come from dispatcher and tiers. `calm` percentiles leave out
queries that a stall of the machine may have delayed (benchmarks/stalls.py).

With --store-delay-ms the other rows are in a Redis server instead of on disk, which answers after a delay,
like one in another zone or a busy one (delayed_store.py). --pin keeps that server, its proxy and the client
off the core of the measured server, as if they were on other machines.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.command import CLIENT_CORE, CORES, SERVER_CORE, answer_of, command_parser, save
from benchmarks.tiers.popular_first.delayed_store import delayed_store
from benchmarks.tiers.served_model import WIDTH, bundle_of, plan_of
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.embeddings.cuts import tiers_within
from polyrec.models.runtimes import open_runtime
from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.app.opening import measure

SHARE = 8
"""The model's bytes divided by those of its memory."""
STORE_TIMEOUT_MS = 50.0
LARGE_ROWS, EXPONENT = 300_000, 1.05
"""Rows of each of five tables (400 MB in all), and the exponent of Zipf's law."""
ROWS = 16
"""Rows of a query."""


def one(case: dict[str, Any]) -> dict[str, Any]:
    """Runs a case in a separate process."""
    command = [sys.executable, "-m", "benchmarks.tiers.popular_first.case", json.dumps(case)]
    return answer_of(command)  # type: ignore[no-any-return]


def store_cuts(bundle: Bundle, memory: int) -> dict[str, TierCuts]:
    """Returns cuts of tables whose other rows are in a store, in which case no memory is used as a cache."""
    cuts = tiers_within(bundle.encoder.vocabularies, 4 * WIDTH, {"host": memory, "remote": 1 << 60})
    return {table: TierCuts(**rows) for table, rows in cuts.items()}


def tiered_plan(bundle: Bundle, directory: Path, memory: int, cuts: dict[str, TierCuts], url: str) -> Plan:
    """Returns the plan of a server with some memory. cuts, url: of a store; without one, a disk is used."""
    plan = plan_of(bundle, directory, memory, True)
    if not url:
        return plan
    assert plan.placement is not None
    (path,) = plan.placement.paths
    paths = (path.model_copy(update={"tables": cuts}),)
    remote = RemoteStore(url=url, timeout_ms=STORE_TIMEOUT_MS)
    return plan.model_copy(
        update={"placement": plan.placement.model_copy(update={"paths": paths, "remote": remote})}
    )


def hot_rows(plan: Plan, bundle: Bundle) -> list[int]:
    """Returns the number of hot rows per table: an eighth of those in memory, or all if all are in memory.

    Of a table with rows on disk, half of what memory holds is static prefix, and its colder part is released
    to the cache.
    """
    assert plan.placement is not None
    cuts = plan.placement.paths[0].tables
    return [
        v.size if t not in cuts or cuts[t].host >= v.rows else max(cuts[t].host // 8, 1)
        for t, v in bundle.encoder.vocabularies.items()
    ]


def kept_bundle(folder: Path) -> Bundle:
    """Opens the model; makes it if it is not there."""
    model = folder / f"popular-first-{LARGE_ROWS}-{EXPONENT:g}"
    return load_bundle(model) if model.exists() else bundle_of(model, LARGE_ROWS, EXPONENT)


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("--directory", type=Path, default=Path("/var/tmp"), help="a real disk; the model is kept there")
    add("--hot-share", type=float, default=0.5, help="of the queries (0.5)")
    add("--load", type=float, default=0.6, help="of the tiered server's rows/s (0.6)")
    add("--budget-ms", type=float, default=100.0)
    add("--seconds", type=float, default=3.0, help="of a closed loop (3)")
    add("--open-s", type=float, default=6.0, help="of Poisson arrivals (6)")
    add("--turns", type=int, default=3)
    add("--store-delay-ms", type=float, help="rows beyond the memory are in a Redis server so far away")
    add("--lane", default="inline", choices=["thread", "inline", "process"])
    add("--pin", action="store_true", help="one core for the server, another for its client and the store")
    add("--json", type=Path)
    args = parser.parse_args()
    server_cores, client_cores = ([SERVER_CORE], [CLIENT_CORE]) if args.pin else (CORES, CORES)
    # inherited by the store and its proxy
    os.sched_setaffinity(0, client_cores)
    bundle = kept_bundle(args.directory)
    memory = bundle.bytes // SHARE
    latency = measure(open_runtime("onnx", bundle), bundle.encoder)
    with ExitStack() as opened:
        made = opened.enter_context(tempfile.TemporaryDirectory(dir=args.directory))
        cuts, url = store_cuts(bundle, memory), ""
        if args.store_delay_ms is not None:
            url = opened.enter_context(delayed_store(bundle, cuts, args.store_delay_ms / 1e3, Path(made)))
        tiered = tiered_plan(bundle, args.directory, memory, cuts, url)
        files = {}
        for name in ("memory", "popular first", "read ahead"):
            plan = plan_of(bundle, args.directory, None, True) if name == "memory" else tiered
            if plan.placement is not None:
                placement = plan.placement.model_copy(update={"popular_first": name == "popular first"})
                plan = plan.model_copy(update={"placement": placement})
            lane = plan.lanes[0].model_copy(update={"kind": args.lane})
            path = plan.paths[0].model_copy(update={"latency": latency})
            files[name] = Path(made) / f"{name.replace(' ', '-')}.json"
            save_plan(plan.model_copy(update={"lanes": (lane,), "paths": (path,)}), files[name])
        base = {
            "rows": ROWS, "exponent": EXPONENT, "hot_share": args.hot_share,
            "hot_rows": hot_rows(tiered, bundle), "seconds": args.seconds, "open_s": args.open_s,
            "budget_s": args.budget_ms / 1e3, "warm_s": 2.0,
            "server_cores": server_cores, "client_cores": client_cores,
        }  # fmt: skip
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in files}
        rate = 0.0
        for turn in range(-1, args.turns):
            for name, file in files.items():
                case = base | {"plan": str(file), "seed": turn + 1, "rate_rows_s": rate or 100.0}
                if turn < 0:
                    # only for the load
                    case |= {"open_s": 0.2}
                found = one(case)
                if turn >= 0:
                    results[name].append(found)
                    shown = {k: v for k, v in found.items() if k != "answers"}
                    print(name, turn, shown, file=sys.stderr, flush=True)
                else:
                    results.setdefault("first", []).append(found | {"name": name})
            if turn < 0:
                first = results.pop("first")
                rate = args.load * min(f["rows_per_s"] for f in first if f["name"] != "memory")
        report(results, rate, args.json, vars(args))


HEAD = (
    "rows/s",
    "hot p50",
    "p99 ms",
    "calm p99",
    "cold p50",
    "p99 ms",
    "calm p99",
    "lost",
    "degraded",
    "tail loss",
    "longer",
)


def report(
    results: dict[str, list[dict[str, Any]]], rate: float, file: Path | None, args: dict[str, Any]
) -> None:
    """Prints medians over the turns. tail loss: quantile loss of predicted tails over the mean batch time."""
    print(f"{rate:,.0f} rows/s offered\n{'':<15}" + "".join(f"{name:>11}" for name in HEAD))
    expected = [np.array(a) for a in results["memory"][0]["answers"]]
    cases: dict[str, Any] = {}
    for name, turns in results.items():
        if not turns:
            continue
        found = {"rows_per_s": median(t["rows_per_s"] for t in turns)}
        for kind, key in product(("hot", "cold"), ("p50_ms", "p99_ms")):
            found[f"{kind}_{key}"] = median(t[kind][key] for t in turns)
            if key == "p99_ms":
                found[f"calm_{kind}_{key}"] = median(t[f"calm {kind}"][key] for t in turns)
        found |= {"lost": sum(t["lost"] for t in turns), "degraded": sum(t["degraded"] for t in turns)}
        found["tail_loss"] = median(t["tails"]["loss"] for t in turns)
        found["longer"] = median(t["tails"]["longer"] for t in turns)
        print(f"{name:<15}" + "".join(f"{value:>11,.4g}" for value in found.values()))
        differs = [np.abs(np.array(a) - e).max() for a, e in zip(turns[0]["answers"], expected, strict=True)]
        found["answers_differ_by"] = float(max(differs))
        cases[name] = found | {"turns": [{k: v for k, v in t.items() if k != "answers"} for t in turns]}
    print("answers differ by " + ", ".join(f"{c['answers_differ_by']:.1e}" for c in cases.values()))
    if file:
        settings = {k: v for k, v in args.items() if isinstance(v, int | float | str)}
        out = {"settings": settings, "offered_rows_per_s": rate, "cases": cases}
        save(file, out)


if __name__ == "__main__":
    main()
