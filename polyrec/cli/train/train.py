"""`polyrec train`: trains a bundle on data of a schema."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from polyrec.cli.train.data_arguments import add_on_malformed, add_period
from polyrec.cli.train.train_memory import add_memory_arguments, refuse_with_memory, tiers_of
from polyrec.cli.train.train_start import add_start_arguments, refuse_with_start, start_of, training_of
from polyrec.cli.train.train_workers import add_worker_arguments, refuse_with_workers, workers_of
from polyrec.loadtest.arguments import duration, non_negative_int, positive_int

if TYPE_CHECKING:
    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.data.reader import DataReader
    from polyrec.models.training.pipeline import Learner
    from polyrec.models.training.search import Trial

EXAMPLE = "polyrec train --data clicks.parquet --schema trivago --representation table --out runs/table"
CHECKPOINT_EVERY_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    _add_model(parser)
    add_start_arguments(parser.add_argument_group("warm start"))
    _add_kept(parser)
    add_memory_arguments(parser.add_argument_group("tables beyond memory"))
    add_worker_arguments(parser.add_argument_group("several workers"))
    _add_search(parser)
    _add_output(parser)


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument_group("data")
    source.add_argument(
        "--data", required=True, help="Parquet file, folder or quoted glob, or its URL; or Criteo TSV[.gz]"
    )
    source.add_argument("--schema", help="schema file (draft one with `polyrec new schema`) or shipped name")
    add_period(source)
    source.add_argument("--sample", type=float, help="share of rows to count for the popularity order")
    source.add_argument("--calibration", help="use the counts in this file of `polyrec calibrate`")
    source.add_argument(
        "--window",
        type=positive_int,
        metavar="ROWS",
        help="read training rows in windows of this size and shuffle within them, for data larger than "
        "memory; two windows are in memory (default: encode all rows first)",
    )
    add_on_malformed(source)


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument(
        "--representation",
        choices=["table", "dhe", "select", "hybrid"],
        help="representation of ids (default table)",
    )
    model.add_argument(
        "--recipe", help="recipe file or shipped name (default: the one named like the schema, if any)"
    )
    model.add_argument("--epochs", type=int, help="maximum passes over the training rows")
    model.add_argument("--batch-rows", type=int, help="rows per optimizer step")
    model.add_argument(
        "--by-request",
        action="store_true",
        default=None,
        help="use batches of whole requests, and compute each context once",
    )
    model.add_argument("--seed", type=non_negative_int, help="seed of initial weights, order and hidden ids")
    model.add_argument("--precision", choices=["fp32", "bf16"], help="precision of the net's matrix products")
    model.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default cpu)")
    model.add_argument("--threads", type=positive_int, default=1, help="torch threads (default 1)")


def _add_kept(parser: argparse.ArgumentParser) -> None:
    kept = parser.add_argument_group("checkpoints and records")
    kept.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="write checkpoints to this folder; the same command continues from the last one",
    )
    kept.add_argument(
        "--every", type=duration, metavar="TIME", help="time between checkpoints: 90s, 5m (default 5m)"
    )
    kept.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="write loss, rows/s and quality for TensorBoard"
    )
    kept.add_argument("--mlflow", metavar="URI", help="write the same to this MLflow tracking server")


def _add_search(parser: argparse.ArgumentParser) -> None:
    search = parser.add_argument_group("search for a recipe")
    search.add_argument(
        "--search",
        type=duration,
        metavar="TIME",
        help="first search for a better recipe on the validation rows, for at most this time: 90s, 10m, 1h; "
        "writes OUT.recipe.yaml and OUT.search.jsonl",
    )
    search.add_argument(
        "--search-candidates",
        type=positive_int,
        metavar="N",
        help="number of recipes to start the search with (default: as many as time allows)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--out", required=True, help="folder to write the bundle to")
    output.add_argument("--replace", action="store_true", help="replace the bundle at --out")
    output.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import torch

    from polyrec.cli.progress import ProgressBars
    from polyrec.cli.train.tracking import call_both, record_of
    from polyrec.models.data.parquet import unread_files
    from polyrec.models.data.reader import open_data
    from polyrec.models.schema.popularity import load_calibration
    from polyrec.models.training.checkpoint import CheckpointSettings
    from polyrec.models.training.pipeline import Learner

    _check_flags(args)
    torch.set_num_threads(args.threads)
    start, schema = start_of(args)
    training = training_of(args, schema, start)
    given = {
        name: getattr(args, name) for name in ("epochs", "batch_rows", "by_request", "seed", "precision")
    }
    training = training.with_recipe({k: v for k, v in given.items() if v is not None})
    reader = open_data(args.data, schema, args.on_malformed, args.since, args.until)
    checkpoint = None
    if args.checkpoint:
        checkpoint = CheckpointSettings(args.checkpoint, args.every or CHECKPOINT_EVERY_S)
    with (
        workers_of(args) as workers,
        tiers_of(args) as tiers,
        ProgressBars(StringIO() if workers and workers.rank else None) as bars,
    ):
        # with several workers, only the first one prints
        terminal = StringIO() if workers and workers.rank else sys.stderr
        if unread := unread_files(reader.path):
            names = ", ".join(str(file) for file in unread[:3]) + (", ..." if len(unread) > 3 else "")
            found = f"warning: files not named *.parquet are not read, here {len(unread):,}: {names}"
            print(found, file=terminal)
        learner = Learner(
            reader,
            schema,
            training,
            start.bundle.manifest.representation.kind if start else args.representation or "table",
            sample=args.sample,
            calibration=load_calibration(args.calibration, schema) if args.calibration else None,
            phase=bars.phase,
            progress=bars.training,
            checkpoint=checkpoint,
            window_rows=args.window,
            record={"period": {"since": args.since, "until": args.until}} if args.since or args.until else {},
            notice=lambda line: print(line, file=terminal),
            workers=workers,
            start=start,
            device=args.device,
            tiers=tiers,
        )
        if workers and workers.rank:
            learner.assist()
            return 0
        if args.search:
            learner = _searched(learner, args)
        with record_of(args.tensorboard, args.mlflow, Path(args.out).name) as record:
            record.parameters(learner.training.recipe.model_dump() | {"data": reader.path.name})
            bundle = replace(learner, progress=call_both(bars.training, record)).learn(args.out, args.replace)
            record.result(bundle.test_metrics, bundle.manifest.training["best_step"])
    _report(bundle, reader, args.json)
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Raises PolyrecError for flags that cannot be combined."""
    from polyrec.models.errors import PolyrecError
    from polyrec.models.transfer import require_device

    if args.schema is None and args.start is None:
        _offer_schema(args)
    if args.every is not None and args.checkpoint is None:
        raise PolyrecError("--every needs --checkpoint DIR, the folder to write checkpoints to")
    refuse_with_workers(args)
    refuse_with_start(args)
    refuse_with_memory(args)
    require_device(args.device)
    if args.search and args.window:
        raise PolyrecError("--search cannot be combined with --window, because it draws rows in any order")
    if args.search and args.checkpoint:
        raise PolyrecError(
            "--search cannot be combined with --checkpoint: search first, then train with --recipe "
            "OUT.recipe.yaml --checkpoint DIR"
        )


def _report(bundle: Bundle, reader: DataReader, as_json: bool) -> None:
    """Prints the bundle and its metrics to stdout, and warnings to stderr."""
    from polyrec.models.data.altered_values import ALTERED, AlteredValues
    from polyrec.models.training.baselines import CONSTANT, LOGISTIC, shortfalls

    manifest = bundle.manifest
    altered = AlteredValues.of_training(manifest.training)
    warnings = [*reader.notes, *altered.warnings(manifest.schema_.categorical)]
    warnings += shortfalls(manifest.metrics)
    malformed = reader.malformed
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        result = {"bundle": str(bundle.path), "version": manifest.version, "metrics": manifest.metrics}
        result[ALTERED] = manifest.training[ALTERED]
        print(json.dumps(result | {"malformed": malformed, "warnings": warnings}))
        return
    print(f"{bundle.path}: {manifest.name} {bundle.name}, version {manifest.version}, {bundle.bytes:,} bytes")
    for name in ("test", CONSTANT, LOGISTIC):
        shown = [f"{k} {v:.5g}" for k, v in manifest.metrics.get(name, {}).items() if v is not None]
        if not shown:
            continue
        print(f"{name:<9} " + "  ".join(shown))
    if malformed:
        print(f"{malformed:,} malformed rows skipped: without a label, or with an infinite number")


def _offer_schema(args: argparse.Namespace) -> NoReturn:
    """Raises PolyrecError with the command that drafts a schema, and a summary of the draft."""
    from polyrec.models.data.guess.schema_guess import guess_schema
    from polyrec.models.errors import PolyrecError

    try:
        guess = guess_schema(args.data)
    except PolyrecError as e:
        raise PolyrecError(f"--schema is missing, and a draft is not possible: {e}") from None
    found = guess.schema
    raise PolyrecError(
        f"--schema is missing; `polyrec new schema {shlex.quote(args.data)} --out schema.yaml` drafts one: "
        f"label {found.label.column}, group {found.group or 'none'}, {len(found.dense)} numbers, "
        f"{len(found.categorical)} ids"
    )


def _searched(learner: Learner, args: argparse.Namespace) -> Learner:
    """Returns the learner with the recipe that the search found, after writing it beside the bundle."""
    from polyrec.models.bundle.bundle import require_target
    from polyrec.models.training.search import SearchFiles, search_recipe

    require_target(args.out, args.replace)
    files = SearchFiles.beside(args.out)

    def log(trial: Trial) -> None:
        files.add(trial)
        if not args.json and trial.log_loss is not None:
            changed = trial.changed or "base recipe"
            print(f"{trial.share:.3f} of the rows  log-loss {trial.log_loss:.5f}  {changed}", flush=True)

    found = search_recipe(learner, args.search, args.search_candidates, log)
    files.write_recipe(found, learner.reader.path.name)
    if not args.json:
        left = sum(t.status == "not run" for t in found.trials)
        chosen = found.chosen.changed or "the base recipe, as no other is shown to be better"
        print(
            f"{files.recipe}: {chosen}, chosen from {len(found.trials) - left} trainings; {left} not run, "
            "out of time"
        )
    return replace(learner, training=found.training, record={**learner.record, "search": found.record()})
