"""Compares a warm start on the next day of trivago's clicks with training from scratch.

    python -m benchmarks.training.warm_start --data ../shared/data/trivago/impressions.parquet \\
        --json docs/results/warm-start.json

Rows are split by time: the first day, the next day until 16:00, and the hours after, which are the test rows
of all models. A bundle of the first day is continued with the next day, and compared with trainings from
scratch on both days and on the second alone, and with the unchanged first bundle. All use trivago's shipped
recipe, validate on the last tenth of their rows, and run with every seed. Time is the process's (one thread),
from files to a bundle, including measuring the test rows. Step sizes of a warm start are compared on these
rows, and within the first day: trained to 12:00, continued to 20:00, measured on the rest. Prints the tables
of docs/results/warm-start.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.command import command_parser, save, spread, today
from polyrec.loadtest.machine import processor
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST
from polyrec.models.evaluation.comparison import compare
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.schema.schema import Schema, Split, load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_recipe_file
from polyrec.models.training.warm.start import WarmStart
from polyrec.report.text import markdown_table

DAY_S, HOUR_S = 86_400, 3600
CUTS_H = (24.0, 40.0, 48.0)
"""Ends of the first rows, the new rows and the test rows, in hours."""
WITHIN_A_DAY_H = (12.0, 20.0, 24.0)
STEP_SIZES = (0.05, 0.1, 0.2, 0.5, 1.0)
PARTS = {"first day": (0,), "next day": (1,), "both days": (0, 1)}
FORGET = 2
WAYS = (
    "first day as it is",
    "warm start",
    f"warm start, --forget-unseen {FORGET}",
    "next day alone",
    "both days",
)
BASELINE = "both days"
METRICS = ("auc", "log_loss", "information", "mrr")


def by_split_column() -> Schema:
    """Returns trivago's schema with the split that `write_parts` writes."""
    split = Split.model_validate({"rule": "column", "columns": ["split"]})
    return load_schema("trivago").model_copy(update={"split": split})


def write_parts(data: Path, folder: Path, cuts_h: Sequence[float]) -> dict[str, dict[str, int]]:
    """Writes a file for each of PARTS, by ends as CUTS_H; returns its rows by split."""
    table = pq.read_table(data)
    seconds = table["timestamp"].to_numpy() - int(table["timestamp"].to_numpy()[0]) // DAY_S * DAY_S
    part = np.searchsorted(np.array(cuts_h) * HOUR_S, seconds, side="right")
    request = table["request_id"].to_numpy()
    # a request lies in the part of its first row
    first = np.concatenate(([0], np.flatnonzero(np.diff(request)) + 1))
    part = part[np.repeat(first, np.diff(np.append(first, request.size)))]
    sizes = {}
    for name, which in PARTS.items():
        own = np.flatnonzero(np.isin(part, which))
        cut = request[own[round(own.size * 0.9)]]
        split = np.where(part == 2, "test", np.where(request >= cut, "validation", "train"))
        kept = np.isin(part, (*which, 2))
        out = table.append_column("split", pa.array(split)).filter(pa.array(kept))
        pq.write_table(out, folder / f"{name}.parquet")
        values, counts = np.unique(split[kept], return_counts=True)
        sizes[name] = {str(v): int(n) for v, n in zip(values, counts, strict=True)}
    return sizes


def learned(
    folder: Path, part: str, way: str, seed: int, start: WarmStart | None = None
) -> tuple[Bundle, float]:
    """Trains on a part; returns the bundle and the process time in seconds."""
    schema = by_split_column()
    training = default_recipe_file(schema).with_recipe({"seed": seed})
    reader = open_data(folder / f"{part}.parquet", schema)
    begin = time.process_time()
    learner = Learner(reader, schema, training, baselines=False, start=start)
    bundle = learner.learn(folder / f"{way} {seed}")
    return bundle, time.process_time() - begin


def measure(folder: Path, seeds: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
    """Trains every way with every seed; returns test metrics, seconds and best step."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for seed in seeds:
        bundles: dict[str, tuple[Bundle, float]] = {}
        bundles[WAYS[0]] = learned(folder, "first day", WAYS[0], seed)
        old = bundles[WAYS[0]][0]
        bundles[WAYS[1]] = learned(folder, "next day", WAYS[1], seed, WarmStart(old))
        bundles[WAYS[2]] = learned(folder, "next day", WAYS[2], seed, WarmStart(old, forget=FORGET))
        bundles[WAYS[3]] = learned(folder, "next day", WAYS[3], seed)
        bundles[WAYS[4]] = learned(folder, "both days", WAYS[4], seed)
        predicted = predict_all({w: b for w, (b, _) in bundles.items()}, folder / "next day.parquet", (TEST,))
        compared = compare(predicted.label, predicted.probabilities, BASELINE, predicted.group)
        for way, (bundle, seconds) in bundles.items():
            difference = compared[way].to_baseline
            training = bundle.manifest.training
            found[way].append(
                {
                    "seed": seed,
                    **{m: bundle.test_metrics[m] for m in METRICS},
                    "seconds": seconds,
                    "best_step": training["best_step"],
                    "rows": sum(v.rows for v in bundle.encoder.vocabularies.values()),
                    "tables": training.get("from", {}).get("tables"),
                    "log_loss_to_baseline": difference
                    and [getattr(difference["log_loss"], k) for k in ("value", "low", "high")],
                }
            )
            print(way, found[way][-1], flush=True)
    return found


def by_step_size(folder: Path, seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """Returns the mean metrics of a warm start on the test rows, by step size."""
    found: dict[str, dict[str, float]] = {}
    for size in STEP_SIZES:
        metrics = []
        for seed in seeds:
            name = folder / f"{WAYS[0]} {seed}"
            old = load_bundle(name) if name.exists() else learned(folder, "first day", WAYS[0], seed)[0]
            start = WarmStart(old, step_size=size)
            metrics.append(learned(folder, "next day", f"step size {size}", seed, start)[0].test_metrics)
        found[str(size)] = {m: float(np.mean([run[m] for run in metrics])) for m in METRICS}
        print(f"step size {size}: {found[str(size)]}", flush=True)
    return found


def markdown(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the table of docs/results/warm-start.md: mean (minimum to maximum) over the seeds."""
    rows = []
    for way, runs in found.items():
        cells = [spread([r[m] for r in runs], 4 if m != "log_loss" else 5) for m in METRICS]
        cells += [spread([r["seconds"] for r in runs], 0), f"{np.mean([r['rows'] for r in runs]):,.0f}"]
        by_seed = [r["log_loss_to_baseline"] for r in runs]
        cells.append("; ".join(f"{d[0]:+.5f} [{d[1]:+.5f}, {d[2]:+.5f}]" for d in by_seed if d is not None))
        rows.append([way, *cells])
    head = ["", "AUC", "log-loss", "information gain", "MRR", "CPU s", "rows of tables"]
    return "\n".join(markdown_table([*head, f"log-loss less that of {BASELINE}, by seed"], rows))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_parts(args.data, Path(folder), WITHIN_A_DAY_H)
        sizes = {"within a day": by_step_size(Path(folder), args.seeds)}
    with tempfile.TemporaryDirectory() as folder:
        rows = write_parts(args.data, Path(folder), CUTS_H)
        print(rows, flush=True)
        found = measure(Path(folder), args.seeds)
        sizes["next day"] = by_step_size(Path(folder), args.seeds)
    print(markdown(found))
    if args.json:
        result = {"machine": processor(), "date": today(), "rows": rows}
        result["step_sizes"] = sizes
        save(args.json, {**result, "ways": found})


if __name__ == "__main__":
    main()
