"""`polyrec train`: trains a bundle on data of a schema."""

from __future__ import annotations

import argparse
import json
import sys

from polyrec.loadtest.arguments import non_negative_int, positive_int

HELP = "train a DLRM on click data and write a bundle"
EXAMPLE = "polyrec train --data clicks.parquet --schema trivago --representation table --out runs/table"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, help="Parquet file or folder, or Criteo TSV[.gz]")
    parser.add_argument("--schema", required=True, help="schema file, or the name of a shipped one")
    parser.add_argument(
        "--representation",
        default="table",
        choices=["table", "dhe", "select", "hybrid"],
        help="representation of ids (default table)",
    )
    parser.add_argument("--out", required=True, help="folder to write the bundle to")
    parser.add_argument("--replace", action="store_true", help="replace the bundle at --out")
    parser.add_argument(
        "--recipe", help="recipe file or shipped name (default: that of the schema's name, if any)"
    )
    parser.add_argument("--epochs", type=int, help="most passes over the training rows")
    parser.add_argument("--batch-rows", type=int, help="rows of one optimizer step")
    parser.add_argument(
        "--by-request",
        action="store_true",
        default=None,
        help="batches of whole requests, with each context computed once",
    )
    parser.add_argument("--seed", type=non_negative_int, help="seed of initial weights, order and hidden ids")
    parser.add_argument("--sample", type=float, help="share of rows counted for the popularity order")
    parser.add_argument("--calibration", help="file of `polyrec calibrate`, instead of counting")
    parser.add_argument(
        "--on-malformed",
        choices=["fatal", "count"],
        default="fatal",
        help="stop at a malformed line, or skip and count it (default fatal)",
    )
    parser.add_argument("--threads", type=positive_int, default=1, help="torch threads (default 1)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import torch

    from polyrec.cli.progress import Bars
    from polyrec.models.data.reader import open_data
    from polyrec.models.schema.popularity import load_calibration
    from polyrec.models.schema.schema import load_schema
    from polyrec.models.training.baselines import CONSTANT, LOGISTIC, shortfalls
    from polyrec.models.training.pipeline import Learner, default_training, load_training

    torch.set_num_threads(args.threads)
    schema = load_schema(args.schema)
    training = load_training(args.recipe) if args.recipe else default_training(schema)
    given = {name: getattr(args, name) for name in ("epochs", "batch_rows", "by_request", "seed")}
    training = training.with_recipe({k: v for k, v in given.items() if v is not None})
    reader = open_data(args.data, schema, args.on_malformed)
    with Bars() as bars:
        bundle = Learner(
            reader,
            schema,
            training,
            args.representation,
            sample=args.sample,
            calibration=load_calibration(args.calibration, schema) if args.calibration else None,
            phase=bars.phase,
            progress=bars.training,
        ).learn(args.out, replace=args.replace)
    manifest = bundle.manifest
    warnings = shortfalls(manifest.metrics)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if args.json:
        result = {"bundle": str(bundle.path), "version": manifest.version, "metrics": manifest.metrics}
        print(json.dumps(result | {"malformed": reader.malformed, "warnings": warnings}))
        return 0
    print(f"{bundle.path}: {manifest.name} {bundle.name}, version {manifest.version}, {bundle.bytes:,} bytes")
    for name in ("test", CONSTANT, LOGISTIC):
        shown = (f"{k} {v:.5g}" for k, v in manifest.metrics[name].items() if v is not None)
        print(f"{name:<9} " + "  ".join(shown))
    if reader.malformed:
        print(f"{reader.malformed:,} malformed lines skipped")
    return 0
