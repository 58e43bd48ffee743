"""`polyrec calibrate`: saves the popularity order of data, or gives a bundle its order and quality."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polyrec.cli.train.data_arguments import add_on_malformed
from polyrec.loadtest.arguments import non_negative_int

if TYPE_CHECKING:
    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.evaluation.recalibration import Observed
    from polyrec.models.schema.batch import I64

EXAMPLE = "polyrec calibrate runs/imported --data clicks.parquet --split all --out runs/ads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="DATA|BUNDLE",
        help="with --data or --access-log, folder of the bundle to calibrate; otherwise data (Parquet file "
        "or folder, or Criteo TSV[.gz]) from which to save the popularity order for training",
    )
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument("--data", help="data with labels: lookups determine the order, labels the quality")
    seen.add_argument(
        "--access-log",
        metavar="FILE",
        help="lookups without labels: Parquet, or JSON lines of request bodies (docs/calibrate.md)",
    )
    parser.add_argument(
        "--out", required=True, help="file for the calibration of data; folder for the calibrated bundle"
    )
    parser.add_argument(
        "--schema", help="schema of the data (a file, or a shipped one's name); the bundle's by default"
    )
    parser.add_argument(
        "--split",
        choices=["train", "validation", "test", "all"],
        default="test",
        help="rows of --data that measure quality, by the schema's split rule (default test)",
    )
    parser.add_argument("--ids", action="store_true", help="the access log holds stable ids, not raw values")
    parser.add_argument("--replace", action="store_true", help="replace the bundle at --out")
    parser.add_argument(
        "--sample",
        type=float,
        metavar="SHARE",
        help="share of the training rows of DATA to count, in (0, 1] (default: all)",
    )
    parser.add_argument("--seed", type=non_negative_int, default=0, help="seed of the sample (default 0)")
    add_on_malformed(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Counts, saves and prints. Raises PolyrecError."""
    return _calibrate_bundle(args) if args.data or args.access_log else _calibrate_data(args)


def _calibrate_data(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from polyrec.models.data.reader import open_data
    from polyrec.models.data.split import fit_splitter
    from polyrec.models.errors import DataError
    from polyrec.models.files import require_target_file
    from polyrec.models.schema.popularity import calibrate, save_calibration
    from polyrec.models.schema.schema import load_schema

    if args.schema is None:
        raise DataError("--schema is missing; to calibrate a bundle, add --data FILE or --access-log FILE")
    schema = load_schema(args.schema)
    require_target_file(args.out, DataError)
    reader = open_data(args.source, schema, args.on_malformed)
    splitter = fit_splitter(reader, schema)
    with tqdm(total=reader.rows_hint, unit=" rows", unit_scale=True, desc="calibrate", disable=None) as bar:
        found = calibrate(reader, schema, splitter, sample=args.sample, seed=args.seed, progress=bar.update)
    save_calibration(found, args.out)
    tables = {table: v.counts for table, v in found.vocabularies.items()}
    if args.json:
        result = {
            "out": args.out,
            "training_rows": found.rows,
            "sampled_rows": found.sampled_rows,
            "malformed": reader.malformed,
        }
        print(json.dumps(result | {"tables": _as_json(tables)}))
        return 0
    _print_skew(tables)
    print(f"order of {found.sampled_rows:,} of {found.rows:,} training rows -> {args.out}")
    if reader.malformed:
        print(f"{reader.malformed:,} malformed rows skipped")
    return 0


def _calibrate_bundle(args: argparse.Namespace) -> int:
    import torch

    from polyrec.cli.progress import ProgressBars
    from polyrec.models.bundle.bundle import load_bundle, require_target
    from polyrec.models.bundle.rename import with_schema
    from polyrec.models.data.split import NAMES
    from polyrec.models.errors import DataError
    from polyrec.models.evaluation.recalibration import observe_data, observe_log, write_recalibrated
    from polyrec.models.schema.schema import load_schema

    if args.sample is not None:
        raise DataError("--sample applies to calibrating data; a bundle is calibrated with all rows")
    torch.set_num_threads(1)
    require_target(args.out, args.replace)
    bundle = load_bundle(args.source)
    if args.schema is not None:
        bundle = with_schema(bundle, load_schema(args.schema))
    with ProgressBars() as bars:
        if args.data:
            splits = None if args.split == "all" else (NAMES.index(args.split),)
            observed = observe_data(bundle, args.data, splits, args.on_malformed, bars.phase)
        else:
            observed = observe_log(bundle, args.access_log, args.ids, args.on_malformed, bars.phase)
    _print_bundle(args, write_recalibrated(bundle, observed, args.out, args.replace), observed)
    return 0


def _print_bundle(args: argparse.Namespace, bundle: Bundle, observed: Observed) -> None:
    tables = {table: v.counts for table, v in bundle.encoder.vocabularies.items()}
    if args.json:
        result = {
            "bundle": str(bundle.path),
            "version": bundle.manifest.version,
            "rows": observed.rows,
            "unknown": observed.unknown,
            "malformed": observed.malformed,
            "metrics": dict(observed.metrics),
        }
        print(json.dumps(result | {"tables": _as_json(tables)}))
        return
    _print_skew(tables)
    if any((metrics["information"] or 0.0) < 0 for metrics in observed.metrics.values()):
        print(
            "warning: the model predicts these rows worse than a constant; check the order of its features, "
            "their transforms and the label",
            file=sys.stderr,
        )
    for key, metrics in observed.metrics.items():
        shown = ", ".join(f"{m} {metrics[m]:.4f}" for m in ("information", "auc", "accuracy"))
        print(f"{key.replace('test', 'quality', 1)}: {shown} of {metrics['rows']:,} rows")
    for what, count in (("malformed rows", observed.malformed), ("unknown values", observed.unknown)):
        if count:
            print(f"{count:,} {what} not counted")
    what = "rows" if args.data else "entries of the log"
    print(f"lookups of {observed.rows:,} {what} -> {bundle.path}, version {bundle.manifest.version}")


def _as_json(tables: Mapping[str, I64]) -> dict[str, Any]:
    from polyrec.models.schema.popularity import skew

    return {
        table: {
            "rows": counts.size,
            "accesses": int(counts.sum()),
            "skew": {f"{share:.2f}": taken for share, taken in skew(counts).items()},
        }
        for table, counts in tables.items()
    }


def _print_skew(tables: Mapping[str, I64]) -> None:
    """Prints the accesses of each table. tables: name -> counts in rank order."""
    from polyrec.models.schema.popularity import skew

    print(f"{'table':20} {'rows':>12} {'accesses':>14}   share of the hottest 1%     5%    10%")
    for table, counts in tables.items():
        shares = "  ".join(f"{taken:5.3f}" for taken in skew(counts).values())
        print(f"{table:20} {counts.size:12,} {int(counts.sum()):14,} {shares:>42}")
