"""Compares the AUC of models in lower precisions with that of the same models in fp32.

    python -m benchmarks.quality.precisions --data-root ../shared/data
    python -m benchmarks.quality.precisions --data-root ../shared/data --kind dhe --data trivago

Trains the shipped recipe of each data set (seed 0), then predicts its test rows with the dense net in each
precision of the runtime and with stored rows of fewer bits. `relative` is the change of AUC divided by the
AUC of fp32; its 95% interval is a paired bootstrap of the test rows (or requests, if the schema groups rows).
Bundles are stored under --runs, so that an interrupted run can be resumed. Runs in one process and one
thread. Prints the table of docs/results/precisions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.command import DATA_ROOT, PUBLIC, ROOT, command_parser
from benchmarks.quality.kept import trained
from benchmarks.quality.nested_widths import quantized
from polyrec.cli.progress import ProgressBars
from polyrec.loadtest.machine import processor
from polyrec.measure.machine.cpu import vectors
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST
from polyrec.models.dlrm.precision import DensePrecision, Precision
from polyrec.models.dlrm.representation import KINDS
from polyrec.models.evaluation.comparison import LEVEL, percentiles, samples
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import load_recipe_file
from polyrec.report.text import markdown_table

FORMS: dict[str, tuple[Precision, DensePrecision, str]] = {
    "fp32": ("fp32", "fp32", "onnx"),
    "int8 net": ("fp32", "int8", "onnx"),
    "int8 rows": ("int8", "fp32", "onnx"),
    "int8 rows and net": ("int8", "int8", "onnx"),
    "int4 rows": ("int4", "fp32", "onnx"),
    "bf16 net, torch": ("fp32", "bf16", "torch"),
    "bf16 net, openvino": ("fp32", "bf16", "openvino"),
}
"""Precision of the stored rows, that of the dense net (and decoders), and the runtime."""
RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Change:
    """AUC of a form, and its relative change from fp32 with a 95% interval."""

    auc: float
    relative: float
    low: float
    high: float


def changes(bundle: Bundle, data: Path, folder: Path, bars: ProgressBars) -> dict[str, dict[str, Change]]:
    """Returns changes by width ('' for a model of one width) and form."""
    probabilities: dict[str, dict[str, F32]] = {}
    for form, (rows, net, runtime) in FORMS.items():
        if net == "bf16" and not {"amx_bf16", "avx512_bf16"}.intersection(vectors()):
            continue
        stored = bundle if rows == "fp32" else quantized(folder / f"{bundle.path.name}-{rows}", bundle, rows)
        views = {str(view.width or ""): view for view in stored.by_width()}
        made = predict_all(views, data, (TEST,), runtime=runtime, precision=net, phase=bars.phase)
        for width, p in made.probabilities.items():
            probabilities.setdefault(width, {})[form] = p
    found: dict[str, dict[str, Change]] = {}
    for width, by_form in probabilities.items():
        drawn = samples(made.label, list(by_form.values()), made.group, RESAMPLES, metrics=("auc",))[..., 0]
        relative = drawn / drawn[:, :1] - 1
        found[width] = {
            form: Change(drawn[0, i], relative[0, i], *percentiles(relative[1:, i], LEVEL))
            for i, form in enumerate(by_form)
        }
    return found


def table(found: Mapping[str, Mapping[str, Mapping[str, Change]]]) -> str:
    """Returns a Markdown table with a line per model and form."""
    rows = []
    for model, widths in found.items():
        for width, forms in widths.items():
            name = f"{model}, w{width}" if width else model
            for form, c in forms.items():
                change = [f"{c.relative:+.4%}", f"{c.low:+.4%} to {c.high:+.4%}"]
                rows.append([name, form, f"{c.auc:.5f}", *(["", ""] if form == "fp32" else change)])
    return "\n".join(markdown_table(["model", "form", "AUC", "relative to fp32", "95% interval"], rows))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/precisions")
    parser.add_argument("--data", nargs="+", choices=PUBLIC, default=list(PUBLIC))
    parser.add_argument("--kind", choices=KINDS, default="table")
    args = parser.parse_args()
    torch.set_num_threads(1)
    retain_freed_memory()
    args.runs.mkdir(parents=True, exist_ok=True)
    found = {}
    with ProgressBars() as bars:
        for name in args.data:
            data = args.data_root / PUBLIC[name]
            # half the time: models are compared as they were selected, not trained again on validation rows
            training, schema = load_recipe_file(name).with_recipe({"refit": False}), load_schema(name)
            reader = open_data(data, schema)
            learner = Learner(reader, schema, training, args.kind, baselines=False, phase=bars.phase)
            bundle = trained(args.runs / f"{name}-{args.kind}", learner)
            found[f"{name} {args.kind}"] = changes(bundle, data, args.runs, bars)
    print(f"Processor: {processor()}\n\n{table(found)}")


if __name__ == "__main__":
    main()
