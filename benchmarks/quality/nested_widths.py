"""Compares nested widths with separately trained models; writes docs/results/nested_widths.md.

    python -m benchmarks.quality.nested_widths --data-root ../shared/data

For every seed the recipe is trained once nested, and once for each width alone, with the shape of that
width's head. All predict the same test rows; the nested models also with rows and dense nets of fewer bits.
All choices in the recipe were made on validation rows. Bundles are stored under --runs, so that an
interrupted run can be resumed. Runs in one process and one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import DATA_ROOT, ROOT, command_parser, save
from benchmarks.quality.kept import trained
from benchmarks.quality.tables import between_markers
from polyrec.cli.progress import ProgressBars
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST
from polyrec.models.dlrm.cost import flops
from polyrec.models.dlrm.precision import DensePrecision, Precision
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile, load_recipe_file
from polyrec.report.text import markdown_table

PAGE = ROOT / "docs/results/nested_widths.md"
FEWER_BITS: dict[str, tuple[Precision, str, DensePrecision]] = {
    "int8 rows": ("int8", "torch", "fp32"),
    "int4 rows": ("int4", "torch", "fp32"),
    "int8 rows and net": ("int8", "onnx", "int8"),
}


def alone(training: RecipeFile, width: int) -> RecipeFile:
    """Returns the recipe of a model of one width: its head, and the mean step size of its columns."""
    shape, recipe = training.architecture, training.recipe
    lr = [
        lr
        for (first, last), lr in zip(shape.blocks, recipe.block_lr, strict=True)
        for _ in range(first, last)
    ]
    mean = float(np.mean(lr[:width]))
    changes = {"sparse_lr": recipe.sparse_lr * mean, "block_lr": ()}
    return training.model_copy(update={"architecture": shape.head(width)}).with_recipe(changes)


def quantized(path: Path, source: Bundle, precision: Precision) -> Bundle:
    """Returns a bundle of the source's rows in another precision."""
    model, representation = quantize_bundle(source, precision)
    return write_bundle(path, model, representation, source.encoder, {}, {}, replace=True)


def measure(
    name: str, data: Path, folder: Path, training: RecipeFile, seeds: Sequence[int]
) -> dict[str, Any]:
    """Trains and predicts everything; returns the figures of one data set."""
    reader = open_data(data, load_schema(name))
    widths = training.architecture.widths
    found: dict[str, list[dict[str, float]]] = {}
    shapes: dict[str, Any] = {}
    with ProgressBars() as bars:

        def learner(training: RecipeFile) -> Learner:
            return Learner(reader, load_schema(name), training, phase=bars.phase)

        for seed in seeds:
            seeded = training.with_recipe({"seed": seed})
            nested = trained(folder / f"{name}-nested-{seed}", learner(seeded))
            by_runtime: dict[tuple[str, DensePrecision], dict[str, Bundle]] = {("torch", "fp32"): {}}
            for view in nested.by_width():
                assert view.width is not None
                own = alone(seeded, view.width)
                path = folder / f"{name}-w{view.width}-{seed}"
                by_runtime["torch", "fp32"][f"apart w{view.width}"] = trained(path, learner(own))
                by_runtime["torch", "fp32"][f"nested w{view.width}"] = view
                shapes[f"w{view.width}"] = {
                    "mflop": flops(view).total / 1e6,
                    "head_bytes": view.net_bytes,
                    "apart_bytes": by_runtime["torch", "fp32"][f"apart w{view.width}"].bytes,
                }
            for label, (rows, runtime, net) in FEWER_BITS.items():
                fewer = quantized(folder / f"{name}-{rows}-{seed}", nested, rows)
                by_runtime.setdefault((runtime, net), {}).update(
                    {f"{label} w{v.width}": v for v in fewer.by_width()}
                )
            for (runtime, net), bundles in by_runtime.items():
                made = predict_all(bundles, data, (TEST,), runtime=runtime, precision=net, phase=bars.phase)
                for which, p in made.probabilities.items():
                    figures = {"information": evaluate(p, made.label).information}
                    found.setdefault(which, []).append(figures)
            auc = {w: nested.at_width(w).test_metrics["auc"] for w in widths}
            print(f"{name}, seed {seed}: AUC {auc}", file=sys.stderr)
            for w in widths:
                found[f"nested w{w}"][-1]["auc"] = float(auc[w] or 0)
    return {
        "seeds": list(seeds),
        "widths": list(widths),
        "runs": found,
        "shapes": shapes,
        "nested_bytes": nested.bytes,
    }


def table(found: Mapping[str, Any]) -> str:
    """Returns the Markdown of one data set."""
    runs, widths = found["runs"], found["widths"]

    def cell(which: str, figure: str = "information") -> str:
        values = [run[figure] for run in runs[which]]
        spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
        return f"{np.mean(values):.4f}{spread}"

    def change(which: str, base: str) -> str:
        pairs = zip(runs[which], runs[base], strict=True)
        return f"{np.mean([a['information'] - b['information'] for a, b in pairs]):+.4f}"

    rows = [
        ["trained apart", *(cell(f"apart w{w}") for w in widths)],
        ["nested", *(cell(f"nested w{w}") for w in widths)],
        ["nested less apart", *(change(f"nested w{w}", f"apart w{w}") for w in widths)],
        ["nested, AUC", *(cell(f"nested w{w}", "auc") for w in widths)],
        *(
            [f"{label}, change", *(change(f"{label} w{w}", f"nested w{w}") for w in widths)]
            for label in FEWER_BITS
        ),
        ["MFLOP a row", *(f"{found['shapes'][f'w{w}']['mflop']:.3f}" for w in widths)],
    ]
    lines = markdown_table(["", *(f"w{w}" for w in widths)], rows)
    apart = sum(found["shapes"][f"w{w}"]["apart_bytes"] for w in widths)
    lines += ["", f"Bytes: {found['nested_bytes']:,} nested, {apart:,} apart. Seeds: {found['seeds']}."]
    return "\n".join(lines)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/nested")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    retain_freed_memory()
    args.runs.mkdir(parents=True, exist_ok=True)
    data = args.data_root / "ml1m/ratings.parquet"
    # half the time: models are compared as they were selected, not trained again on the validation rows
    training = load_recipe_file("ml1m").with_recipe({"refit": False})
    found = measure("ml1m", data, args.runs, training, args.seeds)
    report = {"processor": processor(), "ml1m": found}
    save(PAGE.with_suffix(".json"), report)
    PAGE.write_text(between_markers(PAGE.read_text(), "ml1m", table(found)))


if __name__ == "__main__":
    main()
