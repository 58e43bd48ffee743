"""`polyrec distill`: derives another representation from a trained table bundle."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyrec.cli.progress import ProgressBars
    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.data.reader import DataReader
    from polyrec.models.dlrm.dlrm import DLRM
    from polyrec.models.dlrm.representation import Representation
    from polyrec.models.training.recipe import Recipe, RecipeFile

    Metrics = dict[str, dict[str, float | int | None]]

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
    from polyrec.models.data.reader import open_data
    from polyrec.models.evaluation.feature_drift import keep_reference
    from polyrec.models.training.recipe import default_recipe_file, load_recipe_file

    torch.set_num_threads(1)
    require_target(args.out, args.replace)
    bundle = load_bundle(args.bundle)
    training = load_recipe_file(args.recipe) if args.recipe else default_recipe_file(bundle.manifest.schema_)
    if args.share is not None:
        training = training.with_share(args.share)
    quantized = args.representation in PRECISIONS
    begin = time.perf_counter()
    with ProgressBars() as bars:
        model, representation, explained = _derived(args, bundle, training, bars)
        metrics: Metrics = {}
        if args.data:
            reader = open_data(args.data, bundle.manifest.schema_)
            recipe = None if quantized else training.recipe
            metrics = _measured(model, bundle, reader, recipe, bars)
    derived = {"derived_from": bundle.manifest.version, "by": "distill", "steps": args.steps}
    derived |= keep_reference(bundle.manifest.training)
    # quantized rows hardly change the ranges; a computed representation's vectors do
    activations = bundle.manifest.activations if quantized else None
    out = write_bundle(
        args.out, model, representation, bundle.encoder, metrics, derived, args.replace, activations
    )
    seconds = round(time.perf_counter() - begin, 1)
    if args.json:
        result: dict[str, object] = {"bytes_before": bundle.bytes}
        if explained is not None:
            result["explained_variance"] = explained
        result |= {"bundle": str(out.path), "representation": out.name, "bytes": out.bytes}
        print(json.dumps(result | {"seconds": seconds, "metrics": metrics}))
        return 0
    print(f"{out.path}: {out.name}, {out.bytes:,} bytes (was {bundle.bytes:,}), {seconds} s")
    if explained is not None:
        print(f"explains {explained} of the rows' variance, weighted by accesses")
    for name, figures in metrics.items():
        print(f"{name:>10}  auc {figures['auc']:.5f}  log_loss {figures['log_loss']:.5f}")
    if not args.data:
        print("quality was not measured: give --data, or run `polyrec evaluate`")
    return 0


def _derived(
    args: argparse.Namespace, bundle: Bundle, training: RecipeFile, bars: ProgressBars
) -> tuple[DLRM, Representation, float | None]:
    """Returns the model, its representation and, if vectors are fitted, the share of variance explained."""
    from polyrec.models.bundle.derive import quantize_bundle
    from polyrec.models.training.distill import Regression, distill
    from polyrec.models.training.trainer import StepReport

    if args.representation in PRECISIONS:
        return *quantize_bundle(bundle, args.representation), None
    representation = training.representation(args.representation, bundle.encoder.vocabularies)
    regression = Regression(steps=args.steps, seed=training.recipe.seed)

    def progress(step: int, steps: int, loss: float) -> None:
        bars.training(StepReport(step, steps, regression.rows, loss))

    model, fidelity = distill(bundle, representation, regression, progress)
    return model, representation, round(fidelity.explained, 4)


def _measured(
    model: DLRM, bundle: Bundle, reader: DataReader, recipe: Recipe | None, bars: ProgressBars
) -> Metrics:
    """Measures the bundle and the model on test rows, the model also after fine-tuning it by `recipe`, if
    given.
    """
    from polyrec.models.training.pipeline import named_by_width, quality_on_test
    from polyrec.models.training.warm.fine_tune import fine_tune_bundle

    found = named_by_width("source", quality_on_test(bundle.model(), bundle.encoder, reader, bars.phase))
    quality = quality_on_test(model, bundle.encoder, reader, bars.phase)
    if recipe is not None:
        found |= named_by_width("distilled", quality)
        fine_tune_bundle(model, bundle, reader, recipe, bars.phase, bars.training)
        quality = quality_on_test(model, bundle.encoder, reader, bars.phase)
    return found | named_by_width("test", quality)
