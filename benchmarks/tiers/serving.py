"""A server whose rows lie on disk: read ahead for queries that wait, or not, against all rows in memory.

    chrt -r 1 python -m benchmarks.tiers.serving --json docs/results/tier-serving.json

Makes a model in Criteo's shape with untrained rows (five large tables, Zipf's accesses), and a plan whose
host memory holds an eighth of it, a fifth of that for pages. A server opens it on one thread lane, reading
ahead or not, beside one with the same model in memory. Servers have one core, the client the other; they
take turns (A B C A B C). Requests are tensors of the inference protocol, each of its own rows, over so many
connections in a closed loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import orjson
import torch
from tqdm import tqdm

from benchmarks.http.serve_throughput import CLIENT_CORE, SERVER_CORE, closed_loop
from benchmarks.tiers.generated_model import model as criteo
from benchmarks.tiers.generated_model import zipf
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.drivers.server_pages import read_metrics
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.cuts import tiers_within
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.child import start

WIDTH = 64
REQUESTS = 4096
CASES = ("in memory", "read ahead", "not ahead")


def bundle_of(folder: Path, large_rows: int, exponent: float, width: int = WIDTH) -> Bundle:
    """Integer vocabularies in the order of their ids, with the counts that the traffic will have."""
    shape = criteo(large_rows)
    vocabularies = {}
    for table, rows in shape.tables.items():
        heat = np.arange(1, rows + 3, dtype=np.float64) ** -exponent
        # every table is looked up once a row
        counts = (1e8 / heat.sum() * heat).astype(np.int64)
        vocabularies[table] = Vocabulary(table, "integer", rows, np.arange(rows + 2), counts)
    encoder = Encoder(shape.schema, vocabularies, {})
    representation = Representation(kind="table")
    stage = initial_stage(representation, shape.schema, vocabularies, width, 0)
    net = DenseNet(
        Architecture(width=width, bottom=(128,), top=(128,), interaction="dot"),
        dense_slots(shape.schema),
        stage.slots,
    )
    return write_bundle(folder, DLRM(stage, net), representation, encoder, {}, {})


def plan_of(bundle: Bundle, directory: Path, memory: int | None, prefetch: bool) -> Plan:
    """memory: bytes of host memory for rows and pages; None: all rows."""
    latency = {"rows": [1, 1024], "median_s": [3e-4, 2e-2], "tail_s": [1e-3, 4e-2]}
    path = {"name": "table@cpu", "bundle": bundle.path, "runtime": "onnx", "latency": latency}
    plan: dict[str, object] = {
        "paths": [path],
        "lanes": [{"name": "cpu", "device": "cpu", "kind": "thread"}],
        "default_budget_ms": 60_000,
        "limits": {"max_batch_rows": 128},
    }
    if memory is not None:
        budgets = {"host": round(0.8 * memory), "disk": 1 << 60}
        cuts = tiers_within(bundle.encoder.vocabularies, 4 * WIDTH, budgets)
        placed = {"path": "table@cpu", "tables": cuts, "cache_bytes": memory - budgets["host"]}
        plan["placement"] = {"paths": [placed], "directory": directory, "prefetch": prefetch}
    return Plan.model_validate(plan)


def requests_of(bundle: Bundle, rows: int, exponent: float) -> list[bytes]:
    """Returns requests with binary tensors."""
    random = np.random.default_rng(0)
    sizes = [v.size for v in bundle.encoder.vocabularies.values()]
    schema = bundle.manifest.schema_
    found = []
    for _ in range(REQUESTS):
        sparse = np.stack([zipf(random, size, exponent, rows) for size in sizes], 1)
        dense = random.random((rows, len(schema.dense)), np.float32)
        inputs = [
            {
                "name": name,
                "datatype": kind,
                "shape": list(x.shape),
                "parameters": {"binary_data_size": x.nbytes},
            }
            for name, kind, x in (("dense", "FP32", dense), ("sparse", "INT64", sparse))
        ]
        head = orjson.dumps({"inputs": inputs})
        target = Target(f"http://localhost{INFER}", {"Inference-Header-Content-Length": str(len(head))})
        found.append(target.request(head + dense.tobytes() + sparse.tobytes()))
    return found


def counted(url: str) -> dict[str, float]:
    """Reads the counters that this benchmark takes differences of."""
    total = read_metrics(url).total
    found = {
        "cache_lookups": total("polyrec_embedding_lookups_total", tier="cache"),
        "cache_hits": total("polyrec_embedding_hits_total", tier="cache"),
        "pages_ahead": total("polyrec_embedding_prefetched_pages_total"),
    }
    for phase in ("embed", "dense"):
        for part in ("sum", "count"):
            found[f"{phase}_{part}"] = total(f"polyrec_phase_seconds_{part}", path="table@cpu", phase=phase)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers.serving")
    add = parser.add_argument
    add("--large-rows", type=int, default=300_000, help="of each of five tables (300,000: 400 MB in all)")
    add("--exponents", type=float, nargs="+", default=[1.0], help="of Zipf's law (1.0)")
    add("--rows", type=int, default=32, help="of a request (32)")
    add("--connections", type=int, default=16)
    add("--seconds", type=float, default=4.0, help="of a run (4)")
    add("--repeats", type=int, default=3, help="turns of each (3)")
    add("--directory", type=Path, default=Path("/var/tmp"), help="of models and files; a real disk")
    add("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    runs = []
    for exponent in args.exponents:
        with tempfile.TemporaryDirectory(dir=args.directory) as made, ExitStack() as up:
            folder = Path(made)
            bundle = bundle_of(folder / "table", args.large_rows, exponent)
            memory = bundle.bytes // 8
            urls = {}
            for case in CASES:
                plan = plan_of(bundle, folder, None if case == "in memory" else memory, case == "read ahead")
                save_plan(plan, folder / "plan.json")
                server = up.enter_context(
                    start({"plan": folder / "plan.json", "drain_grace_s": 0}, core=SERVER_CORE)
                )
                urls[case] = server.url
            requests = requests_of(bundle, args.rows, exponent)
            os.sched_setaffinity(0, {CLIENT_CORE})
            turn = cycle(requests)
            for repeat in tqdm(range(args.repeats), file=sys.stderr):
                for case, url in urls.items():
                    host, port = url.removeprefix("http://").split(":")
                    before = counted(url)
                    took = asyncio.run(closed_loop(host, int(port), turn, args.connections, args.seconds))
                    after = counted(url)
                    moved = {k: after[k] - before[k] for k in before}
                    runs.append(
                        {
                            "exponent": exponent,
                            "case": case,
                            "repeat": repeat,
                            "rows_per_s": len(took) * args.rows / args.seconds,
                            "p50_ms": 1e3 * float(np.quantile(took, 0.5)),
                            "p99_ms": 1e3 * float(np.quantile(took, 0.99)),
                            "embed_ms": 1e3 * moved["embed_sum"] / max(moved["embed_count"], 1),
                            "dense_ms": 1e3 * moved["dense_sum"] / max(moved["dense_count"], 1),
                            "pages_ahead": moved["pages_ahead"],
                            "cache_lookups": moved["cache_lookups"],
                            "cache_hits": moved["cache_hits"],
                        }
                    )
    for exponent in args.exponents:
        print(
            f"\nZipf {exponent:g}: {'rows/s':>14}{'p50 ms':>9}{'p99 ms':>9}{'embed ms':>10}{'in cache':>10}"
        )
        for case in CASES:
            own = [r for r in runs if r["case"] == case and r["exponent"] == exponent]
            m = {k: median(float(r[k]) for r in own) for k in own[0] if k not in ("case",)}
            hits = m["cache_hits"] / m["cache_lookups"] if m["cache_lookups"] else 1.0
            print(
                f"{case:<12}{m['rows_per_s']:>12,.0f}{m['p50_ms']:>9.2f}{m['p99_ms']:>9.2f}"
                f"{m['embed_ms']:>10.2f}{hits:>10.3f}"
            )
    if args.json:
        args.json.write_text(
            json.dumps({"runs": runs, "rows": args.rows, "connections": args.connections}, indent=1)
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
