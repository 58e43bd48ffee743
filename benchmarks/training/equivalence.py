"""Compares all ways to train with a single worker in memory, by the gradients of a step and by quality.

    python -m benchmarks.training.equivalence --data-folder ../shared/data \\
        --json docs/results/training-equivalence.json

Gradients are of one batch of 512 training rows, with net and tables of the shipped recipe, in fp64 and fp32.
Two workers compute them together, and worker 0 also alone; the figure is the largest difference of any
gradient relative to the largest value of its tensor. For quality, runs `polyrec train` like a user, with the
shipped recipe except for `refit`, and measures the test rows. If the file of --json exists, trainings are
added to it and replace equal ones. Prints the tables of docs/results/training-equivalence.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.command import PUBLIC, command_parser, save, saved, today
from polyrec.cli.train.train_workers import local_environment
from polyrec.loadtest.machine import processor
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.schema.batch import I64, Batch, Block
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_recipe_file
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper, loss_of_heads
from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.phases import hot_rows_of
from polyrec.models.training.workers.settings import WorkerSettings
from polyrec.models.training.workers.stage import ShardedStage
from polyrec.models.training.workers.workers import Workers
from polyrec.report.text import markdown_table

BATCH_ROWS, LOOKED_AT = 512, 20_000
HOT_BYTES = 2**20
FORMS = {
    "every lookup": WorkerSettings("plain", distinct=False),
    "RecD": WorkerSettings("plain"),
    "FAE, cold batch": WorkerSettings("fae", hot_bytes=HOT_BYTES),
    "FAE, hot batch": WorkerSettings("fae", hot_bytes=HOT_BYTES),
    "Hotline": WorkerSettings("hotline", hot_bytes=HOT_BYTES),
}
WORKERS = ["--workers", "2"]
WAYS = {
    "one worker": [],
    "tables beyond memory": ["--memory", "MEMORY"],
    "two workers": WORKERS,
    "two workers, FAE": [*WORKERS, "--exchange", "fae", "--hot-mb", "1"],
    "two workers, Hotline": [*WORKERS, "--exchange", "hotline", "--hot-mb", "1"],
    "two workers, Hotline followed": [
        *(*WORKERS, "--exchange", "hotline", "--hot-mb", "1", "--follow-popularity")
    ],
}
MANY_SEEDS = ("one worker", "two workers, FAE")
"""Ways with their own order of rows per seed; the others take rows in the order of one worker."""
MEMORY_SHARE = 0.4
METRICS = {"auc": 4, "log_loss": 5}


class InPrecision:
    """Encoded rows with numbers and labels converted to a type. label, group: as in encoded rows."""

    def __init__(self, data: EncodedRows, dtype: type[np.floating[Any]]) -> None:
        self.label: NDArray[Any] = data.label.astype(dtype)
        self.group, self._data, self._dtype = data.group, data, dtype

    def batch(self, rows: I64) -> Batch:
        found = self._data.batch(rows)
        return Batch(self._of(found.context), self._of(found.candidate), found.context_row)

    def loss(self, model: DLRM, batch: Batch, rows: I64) -> Tensor:
        """Returns the mean loss of a batch of rows."""
        return loss_of_heads(model.logits(batch), torch.from_numpy(self.label[rows]), 0.0)

    def _of(self, block: Block) -> Block:
        return dataclasses.replace(block, dense=block.dense.astype(self._dtype))


def dense_gradients(model: DLRM) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.net.named_parameters() if p.grad is not None}


def sharded_gradients(
    workers: Workers, model: DLRM, rows: InPrecision, chosen: I64, group: I64 | None, hot: bool
) -> tuple[float, dict[str, Tensor]]:
    """The loss and the gradients of a batch as workers compute them; those of rows collected from all.

    hot: whether all lookups of the batch are of replicated rows. Overwrites the rows of the model, for which
    a Stepper must have begun.
    """
    stage = model.stage
    assert isinstance(stage, ShardedStage)
    stage.rows.use_hot &= hot or workers.settings.scheme == "hotline"
    stage.local = hot
    loss = workers.backward(chosen, group, rows.batch, lambda batch, own: rows.loss(model, batch, own))
    gradient = torch.zeros_like(stage.shard) if stage.shard.grad is None else stage.shard.grad.to_dense()
    if stage.replicas.grad is not None:
        replicated = torch.zeros_like(gradient)
        stage.rows.publish(replicated, stage.replicas.grad.to_dense())
        gradient = gradient + replicated
    stage.shard.data.copy_(gradient)
    return loss, dense_gradients(model) | {"rows": stage.rows.whole()}


def gradients(name: str, file: Path) -> None:
    """Runs as one of two workers; worker 0 prints the differences by precision and form."""
    torch.set_num_threads(1)
    schema, reader = load_schema(name), open_data(file, load_schema(name))
    training = default_recipe_file(schema)
    learner = Learner(reader, schema, training)
    splitter = fit_splitter(reader, schema)
    encoder = learner.encoder_of(splitter, (TRAIN,))
    found: dict[str, dict[str, float]] = {}
    with encode(reader, encoder, splitter, (TRAIN,)) as data, WorkerGroup.join() as joined:
        train = Rows(data, data.select(TRAIN))
        group = data.group if training.recipe.by_request is not False else None
        for precision, dtype in (("fp64", np.float64), ("fp32", np.float32)):
            rows, found[precision] = InPrecision(data, dtype), {}
            for form, settings in FORMS.items():
                workers = Workers(joined, settings)
                model = learner.initial_model(encoder).to(torch.float64 if precision == "fp64" else None)
                whole = learner.initial_model(encoder).to(torch.float64 if precision == "fp64" else None)
                sharded = workers.sharded(model, encoder.vocabularies)
                Stepper(sharded, train, training.recipe, 1, workers=workers)
                chosen, hot = train.rows[:BATCH_ROWS], form == "FAE, hot batch"
                if hot:
                    assert isinstance(sharded.stage, ShardedStage)
                    first = Rows(data, train.rows[:LOOKED_AT])
                    chosen = first.rows[hot_rows_of(sharded.stage, first, group)][:BATCH_ROWS]
                    if not chosen.size:
                        continue
                _, computed = sharded_gradients(workers, sharded, rows, chosen, group, hot)
                rows.loss(whole, rows.batch(chosen), chosen).backward()  # type: ignore[no-untyped-call]
                (weight,) = whole.stage.sparse_parameters()
                assert weight.grad is not None
                expected = dense_gradients(whole) | {"rows": weight.grad.to_dense()}
                found[precision][form] = max(
                    float((computed[key] - value).abs().max() / value.abs().max().clamp(min=1e-30))
                    for key, value in expected.items()
                )
        if joined.rank == 0:
            print(json.dumps(found))


def gradients_of(name: str, file: Path) -> dict[str, dict[str, float]]:
    """Starts the two workers of `gradients`."""
    command = [sys.executable, "-m", "benchmarks.training.equivalence", "--gradients", name]
    command += ["--file", str(file)]
    environment = os.environ | local_environment(2)
    started = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    answers = [process.communicate()[0] for process in started]
    found: dict[str, dict[str, float]] = json.loads(answers[0].splitlines()[-1])
    return found


def trained(
    name: str, file: Path, way: str, seed: int, folder: Path, memory: int, batch_rows: int | None
) -> dict[str, Any]:
    """Trains with the command; returns the bundle's version, test metrics and table bytes."""
    changes = {"refit": False} | ({"batch_rows": batch_rows, "epochs": 1} if batch_rows else {})
    training = default_recipe_file(load_schema(name)).with_recipe(changes)
    recipe, out = folder / "recipe.yaml", folder / "bundle"
    recipe.write_text(yaml.safe_dump(training.model_dump(mode="json")))
    options = [str(memory) if word == "MEMORY" else word for word in WAYS[way]]
    command = [sys.executable, "-m", "polyrec", "train", "--data", str(file), "--schema", name]
    command += ["--out", str(out), "--recipe", str(recipe), "--seed", str(seed)]
    command += ["--replace", "--json", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    bundle = load_bundle(out)
    rows = (out / "embeddings.safetensors").stat().st_size
    quality = {m: bundle.test_metrics[m] for m in METRICS}
    return quality | {"version": bundle.manifest.version, "rows_bytes": rows}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-folder", type=Path)
    parser.add_argument("--sets", nargs="+", choices=PUBLIC, default=[*PUBLIC])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, help="the first so many of each data set (default: all)")
    parser.add_argument("--batch-rows", type=int, help="of one epoch (default: as the recipe says)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gradients", choices=PUBLIC, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gradients:
        gradients(args.gradients, args.file)
        return
    record = {"gradients": {}, "runs": []} | saved(args.json)
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder), record)
    print(tables(record))


def compare(args: argparse.Namespace, folder: Path, record: dict[str, Any]) -> None:
    """Adds trainings to the record, replacing equal ones, and writes it after each."""
    setting = {"rows": args.rows, "batch_rows": args.batch_rows}
    measured = {"machine": processor(), "date": today()}
    for name in args.sets:
        file = (args.data_folder / PUBLIC[name]).resolve()
        if args.rows:
            first = pq.read_table(file).slice(0, args.rows)
            file = folder / f"{name}.parquet"
            pq.write_table(first, file)
        record["gradients"][name] = gradients_of(name, file)
        print(name, json.dumps(record["gradients"][name]), flush=True)
        for way in args.ways:
            for seed in args.seeds if way in MANY_SEEDS else args.seeds[:1]:
                run = {**setting, "data": name, "way": way, "seed": seed}
                kept = [r for r in record["runs"] if any(r[key] != run[key] for key in run)]
                whole = [r["rows_bytes"] for r in kept if r["data"] == name and r["rows"] == args.rows]
                memory = int(MEMORY_SHARE * max(whole, default=0))
                run |= {**trained(name, file, way, seed, folder, memory, args.batch_rows), **measured}
                record["runs"] = [*kept, run]
                print(json.dumps(run), flush=True)
                save(args.json, record)


def tables(record: dict[str, Any]) -> str:
    """Returns both tables in Markdown."""
    sets = [*record["gradients"]]
    columns = [(s, p) for p in ("fp64", "fp32") for s in sets]
    rows = []
    for form in FORMS:
        errors = [record["gradients"][s][p].get(form) for s, p in columns]
        rows.append([form, *("" if e is None else f"{e:.0e}" for e in errors)])
    lines = markdown_table(["gradients", *(f"{s}, {p}" for s, p in columns)], rows)
    rows = []
    for way in dict.fromkeys(run["way"] for run in record["runs"]):
        cells = []
        for name in sets:
            runs = [r for r in record["runs"] if r["way"] == way and r["data"] == name]
            for metric, digits in METRICS.items():
                values = [run[metric] for run in runs]
                spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.{digits}f}{spread}" if values else "")
        rows.append([way, *cells])
    lines += ["", *markdown_table(["quality", *(f"{s}: {m}" for s in sets for m in METRICS)], rows)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
