"""Measures what FAE's order of rows does to quality, by the length of its rounds.

    python -m benchmarks.training.fae_order --data-folder ../shared/data \\
        --json docs/results/training-fae-order.json

One worker, so that nothing but the order differs, trains with the shipped recipe but for `refit`, with rows
shuffled and with rounds of so many batches. Metrics are on the validation and the test rows; too high is the
mean prediction less the share of clicks. Prints a table of docs/results/training-equivalence.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.equivalence import DATA, HOT_BYTES
from polyrec.cli.train_workers import local_environment
from polyrec.loadtest.machine import processor
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, fit_splitter
from polyrec.models.evaluation.metrics import auc, log_loss
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_training
from polyrec.models.training.source import Rows
from polyrec.models.training.trainer import predict
from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.phases import hot_rows_of
from polyrec.models.training.workers.settings import WorkerSettings
from polyrec.models.training.workers.stage import ShardedStage
from polyrec.models.training.workers.workers import Workers

SHUFFLED = 0
"""Stands for shuffled rows among numbers of batches in a round."""


def measure(args: argparse.Namespace, group: WorkerGroup) -> list[dict[str, Any]]:
    """Returns the figures of every order; prints each as it is known, and writes those known so far."""
    result = {"machine": processor(), "date": datetime.now(UTC).date().isoformat()}
    schema = load_schema(args.set)
    training = default_training(schema).with_recipe({"refit": False, "seed": args.seed})
    reader = open_data(args.data_folder / DATA[args.set], schema)
    splitter = fit_splitter(reader, schema)
    encoder = Learner(reader, schema, training).encoder_of(splitter, (TRAIN,))
    fae = WorkerSettings("fae", hot_bytes=HOT_BYTES)
    untrained = Learner(reader, schema, training).initial_model(encoder)
    stage = Workers(group, fae).sharded(untrained, encoder.vocabularies).stage
    assert isinstance(stage, ShardedStage)
    found = []
    with encode(reader, encoder, splitter, (TRAIN, VALIDATION, TEST)) as data:
        train, validation, test = (Rows(data, data.select(split)) for split in (TRAIN, VALIDATION, TEST))
        parts = {"validation": validation, "test": test}
        hot = {name: hot_rows_of(stage, rows, None) for name, rows in parts.items()}
        for steps in args.rounds:
            settings = WorkerSettings() if steps == SHUFFLED else dataclasses.replace(fae, round_steps=steps)
            learner = Learner(reader, schema, training, workers=Workers(group, settings))
            model = learner.fit(encoder, train, validation).model
            run: dict[str, Any] = {"data": args.set, "seed": args.seed, "round_steps": steps}
            for name, rows in parts.items():
                p = predict(model, data, rows.rows)
                run |= {f"{name}_auc": auc(p, rows.label), f"{name}_log_loss": log_loss(p, rows.label)}
                for kind, chosen in (("hot", hot[name]), ("cold", ~hot[name])):
                    run[f"{name}_{kind}_too_high"] = float(p[chosen].mean() - rows.label[chosen].mean())
            print(json.dumps(run), flush=True)
            found.append(run)
            if args.json:
                args.json.write_text(json.dumps({**result, "runs": found}, indent=1) + "\n")
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Returns a Markdown table."""
    parts = ("validation", "test")
    lines = [
        "| batches in a round | "
        + " | ".join(f"{p}: AUC | log-loss | hot, cold too high" for p in parts)
        + " |"
    ]
    lines.append("|---" * 7 + "|")
    for run in found:
        cells = ["shuffled" if run["round_steps"] == SHUFFLED else str(run["round_steps"])]
        for part in parts:
            cells += [f"{run[f'{part}_auc']:.4f}", f"{run[f'{part}_log_loss']:.4f}"]
            cells.append(", ".join(f"{run[f'{part}_{kind}_too_high']:+.3f}" for kind in ("hot", "cold")))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--set", choices=["bookcrossing", "ml1m"], default="ml1m", help="without requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rounds",
        type=int,
        nargs="+",
        default=[SHUFFLED, 8, 32, 128, 1024],
        help="batches of a round, at most half an epoch; 0: rows are shuffled",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update(local_environment(1) | {"RANK": "0"})
    with WorkerGroup.join() as group:
        found = measure(args, group)
    print(table(found))


if __name__ == "__main__":
    main()
