"""`polyrec distill`: derives another representation from a trained table bundle."""

from __future__ import annotations

import argparse
import json

EXAMPLE = "polyrec distill runs/table --representation dhe --out runs/dhe-distilled"

PRECISIONS = ("bf16", "int8", "int4")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="folder of an fp32 bundle; a table bundle for computed vectors")
    parser.add_argument(
        "--representation",
        required=True,
        choices=["dhe", "select", "hybrid", *PRECISIONS],
        help="computed vectors fitted to the rows, or the rows in another precision",
    )
    parser.add_argument("--out", required=True, help="folder to write the new bundle to")
    parser.add_argument("--recipe", help="recipe file or shipped name, for the encoding and the stored rows")
    parser.add_argument(
        "--share", type=float, help="for select: share of the rows to store, the most popular ones"
    )
    parser.add_argument(
        "--steps", type=int, default=3000, help="steps of the regression on rows (default 3000)"
    )
    parser.add_argument(
        "--data",
        help="measure quality before and after on this data, and fine-tune computed vectors on it",
    )
    parser.add_argument("--replace", action="store_true", help="replace the bundle at --out")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import time

    import torch

    from polyrec.cli.progress import ProgressBars
    from polyrec.models.bundle.bundle import load_bundle, require_target, write_bundle
    from polyrec.models.bundle.derive import quantize_bundle
    from polyrec.models.data.reader import open_data
    from polyrec.models.dlrm.representation import Kind
    from polyrec.models.evaluation.feature_drift import keep_reference
    from polyrec.models.training.distill import Regression, distill
    from polyrec.models.training.pipeline import named_by_width, quality_on_test
    from polyrec.models.training.recipe import default_training, load_training
    from polyrec.models.training.trainer import StepReport
    from polyrec.models.training.warm.fine_tune import fine_tune_bundle

    torch.set_num_threads(1)
    require_target(args.out, args.replace)
    bundle = load_bundle(args.bundle)
    schema = bundle.manifest.schema_
    training = load_training(args.recipe) if args.recipe else default_training(schema)
    if args.share is not None:
        training = training.with_share(args.share)
    begin = time.perf_counter()
    result: dict[str, object] = {"bytes_before": bundle.bytes}
    with ProgressBars() as bars:
        if args.representation in PRECISIONS:
            model, representation = quantize_bundle(bundle, args.representation)
        else:
            kind: Kind = args.representation
            representation = training.representation(kind, bundle.encoder.vocabularies)
            regression = Regression(steps=args.steps, seed=training.recipe.seed)

            def progress(step: int, steps: int, loss: float) -> None:
                bars.training(StepReport(step, steps, regression.rows, loss))

            model, fidelity = distill(bundle, representation, regression, progress)
            result["explained_variance"] = round(fidelity.explained, 4)
        metrics: dict[str, dict[str, float | int | None]] = {}
        if args.data:
            reader = open_data(args.data, schema)
            before = quality_on_test(bundle.model(), bundle.encoder, reader, bars.phase)
            quality = quality_on_test(model, bundle.encoder, reader, bars.phase)
            metrics |= named_by_width("source", before)
            if args.representation not in PRECISIONS:
                metrics |= named_by_width("distilled", quality)
                fine_tune_bundle(model, bundle, reader, training.recipe, bars.phase, bars.training)
                quality = quality_on_test(model, bundle.encoder, reader, bars.phase)
            metrics |= named_by_width("test", quality)
    derived = {"derived_from": bundle.manifest.version, "by": "distill", "steps": args.steps}
    derived |= keep_reference(bundle.manifest.training)
    # quantized rows hardly change the ranges; a computed representation's vectors do
    activations = bundle.manifest.activations if args.representation in PRECISIONS else None
    out = write_bundle(
        args.out, model, representation, bundle.encoder, metrics, derived, args.replace, activations
    )
    result |= {"bundle": str(out.path), "representation": out.name, "bytes": out.bytes}
    result |= {"seconds": round(time.perf_counter() - begin, 1), "metrics": metrics}
    if args.json:
        print(json.dumps(result))
        return 0
    print(f"{out.path}: {out.name}, {out.bytes:,} bytes (was {bundle.bytes:,}), {result['seconds']} s")
    if "explained_variance" in result:
        print(f"explains {result['explained_variance']} of the rows' variance, weighted by accesses")
    for name, figures in metrics.items():
        print(f"{name:>10}  auc {figures['auc']:.5f}  log_loss {figures['log_loss']:.5f}")
    if not args.data:
        print("quality was not measured: give --data, or run `polyrec evaluate`")
    return 0
