"""`polyrec evaluate`: measures the quality of bundles on data, and compares several on the same rows."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from polyrec.cli.train.data_arguments import add_on_malformed, add_period
from polyrec.loadtest.arguments import non_negative_int

if TYPE_CHECKING:
    from collections.abc import Mapping

    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.evaluation.predictions import Predictions
    from polyrec.report.quality.comparison import ModelComparison

EXAMPLE = "polyrec evaluate runs/table runs/hybrid --data clicks.parquet --report runs/report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    compared = parser.add_argument_group("what is compared")
    compared.add_argument(
        "bundles",
        metavar="BUNDLE",
        nargs="+",
        help="folder of a bundle; several, and nested widths, are compared",
    )
    compared.add_argument("--data", required=True, help="Parquet file or folder, or Criteo TSV[.gz]")
    compared.add_argument(
        "--split",
        choices=["train", "validation", "test", "all"],
        default="test",
        help="rows to use, by the schema's split rule (default test)",
    )
    compared.add_argument(
        "--baseline",
        help="bundle that the others (nested widths: its widest) are compared with (default: first)",
    )
    add_period(compared)
    add_on_malformed(compared)
    execution = parser.add_argument_group("execution")
    execution.add_argument("--runtime", default="torch", help="torch, onnx or openvino (default torch)")
    execution.add_argument("--device", default="cpu", help="device of the runtime (default cpu)")
    execution.add_argument(
        "--precision",
        choices=["fp32", "bf16", "int8"],
        default="fp32",
        help="precision of the dense net (default fp32); torch has bf16, onnx int8",
    )
    statistics = parser.add_argument_group("statistics")
    statistics.add_argument(
        "--resamples",
        type=int,
        default=1000,
        help="resamples of the bootstrap for the intervals (default 1000)",
    )
    statistics.add_argument(
        "--seed", type=non_negative_int, default=0, help="seed of the bootstrap (default 0)"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--report", metavar="DIR", help="folder for a report with tables and plots")
    output.add_argument("--predictions", help="file for the probabilities, .npy of [rows] or [bundles, rows]")
    output.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import torch

    from polyrec.models.errors import PolyrecError
    from polyrec.models.evaluation.metrics import evaluate
    from polyrec.models.files import require_target_file
    from polyrec.report.page import make_folder, require_matplotlib
    from polyrec.report.quality.comparison import compare_models

    baseline = args.baseline or args.bundles[0]
    _check_flags(args, baseline)
    if args.report:
        require_matplotlib()
        folder = make_folder(args.report)
    if args.predictions:
        require_target_file(args.predictions, PolyrecError, "--predictions")
    torch.set_num_threads(1)
    bundles, baseline_label = _bundles(args.bundles, baseline)
    predictions = _predictions(args, bundles)
    schema = next(iter(bundles.values())).manifest.schema_
    for line in predictions.altered.warnings(schema.categorical):
        print(f"warning: {line}", file=sys.stderr)
    if args.predictions:
        _save(args.predictions, predictions)
    if len(bundles) == 1 and not args.report:
        (p,) = predictions.probabilities.values()
        kept = predictions.negatives_kept
        _print_one(args, evaluate(p, predictions.label, predictions.group, kept).as_dict())
        return 0
    comparison = compare_models(
        bundles,
        predictions,
        baseline_label,
        data=args.data,
        split=args.split,
        runtime=f"{args.runtime} on {args.device}, dense net in {args.precision}",
        resamples=args.resamples,
        seed=args.seed,
    )
    if args.report:
        from polyrec.report.quality.report import write_report

        write_report(comparison, folder)
    if len(bundles) == 1:
        _print_one(args, comparison.entries[0].quality.as_dict())
    elif args.json:
        print(json.dumps([{"split": args.split, **entry.as_dict()} for entry in comparison.entries]))
    else:
        _print_table(comparison)
    if args.report and not args.json:
        print(f"report: {folder / 'report.html'}")
    return 0


def _predictions(args: argparse.Namespace, bundles: Mapping[str, Bundle]) -> Predictions:
    from polyrec.cli.progress import ProgressBars
    from polyrec.models.data.split import NAMES
    from polyrec.models.evaluation.predictions import predict_all

    splits = range(len(NAMES)) if args.split == "all" else (NAMES.index(args.split),)
    with ProgressBars() as bars:
        return predict_all(
            bundles,
            args.data,
            splits,
            runtime=args.runtime,
            device=args.device,
            precision=args.precision,
            on_malformed=args.on_malformed,
            phase=bars.phase,
            period=(args.since, args.until),
        )


def _check_flags(args: argparse.Namespace, baseline: str) -> None:
    """Raises PolyrecError for bundles or numbers that cannot be compared."""
    from polyrec.models.errors import PolyrecError

    twice = {b for b in args.bundles if args.bundles.count(b) > 1}
    if twice:
        raise PolyrecError(f"bundle '{min(twice)}' is named twice")
    if baseline not in args.bundles:
        raise PolyrecError(f"--baseline '{baseline}' is not one of the bundles: {', '.join(args.bundles)}")
    if args.resamples < 1:
        raise PolyrecError(f"--resamples must be at least 1, not {args.resamples}")


def _bundles(paths: list[str], baseline: str) -> tuple[dict[str, Bundle], str]:
    """Loads the bundles by label; also returns the baseline's label."""
    from polyrec.models.bundle.bundle import load_bundle
    from polyrec.models.bundle.manifest import with_width

    labels = labels_of(paths)
    bundles, baseline_label = {}, labels[baseline]
    for path in paths:
        # compare nested widths like bundles; the widest represents the bundle
        for view in load_bundle(path).by_width():
            label = with_width(labels[path], view.width)
            bundles[label] = view
            if path == baseline:
                baseline_label = label
    return bundles, baseline_label


def labels_of(paths: list[str]) -> dict[str, str]:
    """Labels of bundles: the shortest ends of their paths that differ."""
    from pathlib import Path

    parts = {path: Path(path).resolve().parts for path in paths}
    depth = 1
    while len({p[-depth:] for p in parts.values()}) < len({*parts.values()}):
        depth += 1
    labels = {path: "/".join(p[-depth:]) for path, p in parts.items()}
    return labels if len({*labels.values()}) == len(paths) else {path: path for path in paths}


def _save(path: str, predictions: Predictions) -> None:
    import numpy as np

    from polyrec.models.errors import DataError

    arrays = list(predictions.probabilities.values())
    try:
        np.save(path, arrays[0] if len(arrays) == 1 else np.stack(arrays))
    except OSError as e:
        raise DataError(f"cannot write '{path}': {e}") from None


def _print_one(args: argparse.Namespace, quality: dict[str, float | int | None]) -> None:
    if args.json:
        print(json.dumps({"bundle": args.bundles[0], "split": args.split, **quality}))
        return
    for key, value in quality.items():
        if value is not None:
            print(f"{key:>20}  {value:,}" if isinstance(value, int) else f"{key:>20}  {value:.6f}")


def _print_table(comparison: ModelComparison) -> None:
    from polyrec.models.text_table import aligned
    from polyrec.report.quality.wording import findings, summary, table

    shown = table(comparison)
    print(summary(comparison) + "\n")
    print("\n".join(aligned([shown.head, *shown.rows], left=len(shown.head))) + "\n")
    for line in findings(comparison):
        print(line)
