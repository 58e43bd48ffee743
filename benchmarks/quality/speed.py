"""Rows per second of every representation on one core: A, B, C, A, B, C ... in one run, medians.

    python -m benchmarks.quality.speed --data ../shared/data/trivago/impressions.parquet

Trains a table, a dhe and a hybrid bundle with trivago's recipe (or takes them from --bundles), derives
int8 rows and the materialized hot prefix, and times `predict` on real test rows, a different batch each
time. Prints a Markdown table and, with --json, writes the figures to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.derive import materialize, quantize_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.dlrm.representation import KINDS
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.registry import runtimes_for
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_training

BATCHES = (1, 64, 512)
HOT_ROWS = 5000


def family(data: str, folder: Path) -> dict[str, Bundle]:
    """Returns every representation of one data set, trained if it does not exist."""
    schema = load_schema("trivago")
    reader = open_data(data, schema)
    bundles = {}
    for kind in KINDS:
        if not (folder / kind).exists():
            Learner(reader, schema, default_training(schema), kind).learn(folder / kind)
        bundles[kind] = load_bundle(folder / kind)
    for name, source, derive in (
        ("table-int8", "table", lambda b: quantize_bundle(b, "int8")),
        ("dhe-hot", "dhe", lambda b: materialize(b, HOT_ROWS)),
        ("hybrid-hot", "hybrid", lambda b: materialize(b, HOT_ROWS)),
    ):
        model, representation = derive(bundles[source])
        bundles[name] = write_bundle(
            folder / name, model, representation, bundles[source].encoder, {}, {}, replace=True
        )
    return bundles


def arguments(doc: str | None, rounds: int) -> argparse.Namespace:
    """Parses the arguments of a benchmark of representations, and keeps to one core."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--bundles", type=Path, default=Path("runs/representations"))
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    retain_freed_memory()
    torch.set_num_threads(1)
    return args


def test_rows(data: str, bundles: Mapping[str, Bundle]) -> EncodedRows:
    """Encodes the test rows."""
    schema = load_schema("trivago")
    reader = open_data(data, schema)
    return encode(reader, bundles["table"].encoder, fit_splitter(reader, schema), (TEST,))


def save(args: argparse.Namespace, figures: Mapping[str, object]) -> None:
    """Writes figures and machine to the file of --json, if given."""
    if args.json:
        about = {"machine": f"{processor()}, one core, torch {torch.__version__}", "unit": "rows/s"}
        args.json.write_text(json.dumps({**about, "rounds": args.rounds, **figures}, indent=2) + "\n")


def seconds(runtime: Runtime, data: EncodedRows, rows: int, start: int, least_s: float) -> float:
    """Seconds of one `predict` of `rows` rows: batches that follow one another, as many as fit `least_s`."""
    spent, calls = 0.0, 0
    while spent < least_s or calls < 3:
        at = (start + calls * rows) % (data.rows - rows)
        batch = data.batch(np.arange(at, at + rows))
        begin = time.perf_counter()
        runtime.predict(batch)
        spent += time.perf_counter() - begin
        calls += 1
    return spent / calls


def main() -> None:
    args = arguments(__doc__, rounds=9)
    bundles = family(args.data, args.bundles)
    data = test_rows(args.data, bundles)
    paths = {f"{b} {r}": open_runtime(r, bundles[b]) for b in bundles for r in runtimes_for("cpu")}
    times: dict[str, dict[int, list[float]]] = {p: {n: [] for n in BATCHES} for p in paths}
    for round_ in range(args.rounds + 1):
        for path, runtime in paths.items():
            for rows in BATCHES:
                taken = seconds(runtime, data, rows, round_ * 977, 0.02)
                if round_:  # the first round warms up
                    times[path][rows].append(taken)
    result = {
        path: {str(n): round(n / float(np.median(t))) for n, t in by_rows.items()}
        for path, by_rows in times.items()
    }
    print("| representation, runtime | " + " | ".join(f"{n} rows" for n in BATCHES) + " |")
    print("|---|" + "---|" * len(BATCHES))
    for path, rates in result.items():
        print(f"| {path} | " + " | ".join(f"{rate:,}" for rate in rates.values()) + " |")
    save(args, {"rates": result})


if __name__ == "__main__":
    main()
