"""Compares training in bf16 with fp32: quality on trivago, and step times of a small and a large net.

    python -m benchmarks.training.precision --data ../shared/data/trivago/impressions.parquet \\
        --json docs/results/training-precision.json

For quality, trains the shipped recipe with every seed and measures the test rows. For time, runs steps of
4,096 rows on generated clicks, fp32 and bf16 in turns, in one thread; figures are medians. Prints the tables
of docs/results/training-precision.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import command_parser, save, spread, today
from polyrec.loadtest.machine import processor
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile, default_recipe_file
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper
from polyrec.report.text import markdown_table

METRICS = ("auc", "log_loss", "information")
PRECISIONS = ("fp32", "bf16")
NETS = {"shipped, top 256": (256,), "top 1024-1024-512": (1024, 1024, 512)}
BATCH_ROWS, ROUNDS, STEPS = 4096, 5, 6


def quality(data: Path, folder: Path, seeds: Sequence[int], device: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the test metrics of each precision and seed, and the seconds of training."""
    schema = load_schema("trivago")
    found: dict[str, list[dict[str, Any]]] = {p: [] for p in PRECISIONS}
    for seed in seeds:
        for precision in PRECISIONS:
            training = default_recipe_file(schema).with_recipe({"seed": seed, "precision": precision})
            reader = open_data(data, schema)
            learner = Learner(reader, schema, training, baselines=False, device=device)
            begin = time.perf_counter()
            bundle = learner.learn(folder / f"{precision} {seed}")
            seconds = time.perf_counter() - begin
            found[precision].append({m: bundle.test_metrics[m] for m in METRICS} | {"seconds": seconds})
            print(precision, seed, found[precision][-1], flush=True)
    return found


def rates(folder: Path, device: str) -> dict[str, dict[str, float]]:
    """Returns rows/s of steps, by net and precision."""
    schema = load_schema("trivago")
    reader = open_data(generate(folder / "clicks.parquet", 60_000, seed=1).path, schema)
    splitter = fit_splitter(reader, schema)
    found: dict[str, dict[str, float]] = {}
    for net, top in NETS.items():
        shape = Architecture(width=32, bottom=(128,), top=top, interaction="cat")
        learner = Learner(reader, schema, RecipeFile(architecture=shape), device=device)
        encoder = learner.encoder_of(splitter, (TRAIN,))
        with encode(reader, encoder, splitter, (TRAIN,)) as data:
            steppers = {}
            for precision in PRECISIONS:
                recipe = learner.recipe.model_copy(update={"precision": precision, "batch_rows": BATCH_ROWS})
                model = learner.initial_model(encoder).to(device)
                steppers[precision] = iter(Stepper(model, Rows(data, data.select(TRAIN)), recipe, 10**6))
            times: dict[str, list[float]] = {p: [] for p in PRECISIONS}
            for round_ in range(ROUNDS + 1):
                for precision, stepper in steppers.items():
                    begin = time.process_time() if device == "cpu" else time.perf_counter()
                    rows = sum(next(stepper).rows for _ in range(STEPS))
                    end = time.process_time() if device == "cpu" else time.perf_counter()
                    if round_:
                        times[precision].append(rows / (end - begin))
        found[net] = {p: float(np.median(t)) for p, t in times.items()}
        print(net, found[net], flush=True)
    return found


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        speed = rates(Path(folder), args.device)
        found = quality(args.data, Path(folder), args.seeds, args.device)
    rows = []
    for precision, runs in found.items():
        cells = []
        for key, digits in (("auc", 4), ("log_loss", 5), ("information", 4), ("seconds", 1)):
            values = [run[key] for run in runs]
            cells.append(spread(values, digits))
        rows.append([precision, *cells])
    print(
        "", *markdown_table(["precision", "AUC", "log-loss", "information gain", "seconds"], rows), sep="\n"
    )
    rows = [
        [net, f"{r['fp32']:,.0f}", f"{r['bf16']:,.0f}", f"{r['bf16'] / r['fp32']:.2f}"]
        for net, r in speed.items()
    ]
    print("", *markdown_table(["net", "fp32 rows/s", "bf16 rows/s", "times"], rows), sep="\n")
    if args.json:
        result = {"machine": processor(), "date": today(), "device": args.device}
        save(args.json, {**result, "quality": found, "rates": speed})


if __name__ == "__main__":
    main()
