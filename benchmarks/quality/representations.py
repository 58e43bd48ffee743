"""Measures the quality of every representation over several seeds; writes docs/results/quality.md.

    python -m benchmarks.quality.representations

For every data set and seed, each variant (benchmarks/quality/variants.py) is trained, derived or served, and
predicts the same test rows. Bundles are stored under --runs; one made from the same data, recipe and source
is not made again, so that an interrupted run can be resumed. Runs in one process and one thread. A whole run
writes docs/results/quality.json and the tables between the markers in docs/results/quality.md. A partial run
(--data, --variants) and `--quick`, a trial on a few generated clicks, write quality.json next to their
bundles.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import DATA_ROOT, PUBLIC, ROOT, command_parser, save, timestamp
from benchmarks.quality.kept import kept, trained
from benchmarks.quality.repeats import summarize_runs
from benchmarks.quality.tables import between_markers, markdown
from benchmarks.quality.variants import BASELINE, VARIANTS, Derived, ServedVariant, Trained, Variant
from polyrec.cli.progress import ProgressBars
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.data.reader import DataReader, open_data
from polyrec.models.data.split import TEST
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.cost import flops, sizes
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.evaluation.comparison import METRICS, RESAMPLES, samples
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import Predictions, predict_all
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile, default_recipe_file

DATA = ("trivago", "bookcrossing")


@dataclass(frozen=True, slots=True)
class Plan:
    """One data set, its variants and seeds."""

    data: str
    reader: DataReader
    recipe: RecipeFile
    seeds: tuple[int, ...]
    variants: Mapping[str, Variant]
    folder: Path

    def training(self, name: str, seed: int) -> RecipeFile:
        """Returns the recipe of one run; a derived variant has its source's."""
        variant = self.variants[name]
        if isinstance(variant, Trained):
            return self.recipe.with_recipe({"seed": seed})
        return self.training(variant.source, seed)


def bundle_of(plan: Plan, name: str, seed: int, bars: ProgressBars) -> Bundle:
    """Returns the bundle of one run, trained if it does not exist."""
    variant = plan.variants[name]
    if isinstance(variant, ServedVariant):
        return bundle_of(plan, variant.source, seed, bars)
    path = plan.folder / f"{name}-{seed}"
    training = plan.training(name, seed)
    if isinstance(variant, Trained):
        schema = load_schema(plan.data)
        learner = Learner(
            plan.reader, schema, training, variant.kind, phase=bars.phase, progress=bars.training
        )
        return trained(path, learner)
    source = bundle_of(plan, variant.source, seed, bars)
    record: dict[str, Any] = {"derived_from": source.manifest.version, "by": variant.how}
    record["recipe"] = training.recipe.model_dump(mode="json")
    found = kept(path)
    if found is not None and found.manifest.training == record:
        return found
    print(f"deriving {path.name}", file=sys.stderr)
    model, representation = variant.by(source, training)
    return write_bundle(path, model, representation, source.encoder, {}, record, replace=True)


def predictions_of(plan: Plan, runs: Mapping[tuple[str, int], Bundle], bars: ProgressBars) -> Predictions:
    """Predicts the test rows with every run (`name-seed`), in one pass over the data per runtime."""
    by_runtime: dict[tuple[str, DensePrecision], dict[str, Bundle]] = {}
    for (name, seed), bundle in runs.items():
        variant = plan.variants[name]
        key: tuple[str, DensePrecision] = ("torch", "fp32")
        if isinstance(variant, ServedVariant):
            key = (variant.runtime, variant.precision)
        by_runtime.setdefault(key, {})[f"{name}-{seed}"] = bundle
    found: dict[str, Any] = {}
    for (runtime, precision), bundles in by_runtime.items():
        part = predict_all(
            bundles, str(plan.reader.path), (TEST,), runtime=runtime, precision=precision, phase=bars.phase
        )
        found |= part.probabilities
    ordered = {f"{name}-{seed}": found[f"{name}-{seed}"] for name, seed in runs}
    return Predictions(part.label, part.group, ordered)


def measured(plan: Plan) -> dict[str, Any]:
    """Returns the figures of one data set, for JSON."""
    with ProgressBars() as bars:
        runs = {(n, s): bundle_of(plan, n, s, bars) for n in plan.variants for s in plan.seeds}
        p = predictions_of(plan, runs, bars)
    drawn = samples(p.label, list(p.probabilities.values()), p.group)
    repeated = summarize_runs(drawn, list(plan.variants), BASELINE)
    variants = {}
    for name, variant in plan.variants.items():
        own = [evaluate(p.probabilities[f"{name}-{s}"], p.label, p.group) for s in plan.seeds]
        bundle = runs[name, plan.seeds[0]]
        entropy = np.array([q.normalised_entropy for q in own])
        to_baseline = repeated[name].to_baseline
        variants[name] = {
            "how": _how(variant),
            "bytes": sizes(bundle).as_dict(),
            "flops_per_row": flops(bundle).as_dict(),
            "spread": {m: asdict(repeated[name].metrics[m]) for m in METRICS}
            | {"normalised_entropy": {"mean": entropy.mean(), "deviation": _deviation(entropy)}},
            "to_baseline": None
            if to_baseline is None
            else {
                m: {
                    "over_rows": asdict(d.over_rows),
                    "over_seeds": asdict(d.over_seeds),
                    "interval": asdict(d.interval),
                    "verdict": d.verdict,
                }
                for m, d in to_baseline.items()
            },
            "runs": [{"seed": s, **q.as_dict()} for s, q in zip(plan.seeds, own, strict=True)],
        }
    return {
        "data": plan.data,
        "rows": int(p.label.size),
        "positives": int(p.label.sum()),
        "seeds": list(plan.seeds),
        "resamples": RESAMPLES,
        "recipe": plan.recipe.model_dump(mode="json"),
        "variants": variants,
    }


def _how(variant: Variant) -> str:
    if isinstance(variant, Trained):
        return "trained"
    if isinstance(variant, Derived):
        return f"{variant.source}: {variant.how}"
    return f"{variant.source}: dense net in {variant.precision} ({variant.runtime})"


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if values.size > 1 else math.nan


def machine() -> str:
    """Returns the processor's name and the versions of libraries."""
    return f"{processor()}, Python {platform.python_version()}, torch {torch.__version__}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each variant (default 3)")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), help="only these (the table always)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "quality", help="where bundles are kept")
    parser.add_argument("--quick", action="store_true", help="generated clicks, one epoch, two seeds")
    args = parser.parse_args(arguments)
    retain_freed_memory()
    torch.set_num_threads(1)
    asked = {BASELINE, *(args.variants or VARIANTS)}
    asked |= {v.source for n in asked if not isinstance(v := VARIANTS[n], Trained)}
    variants = {name: v for name, v in VARIANTS.items() if name in asked}
    results: dict[str, Any] = {
        "command": "python -m benchmarks.quality.representations "
        + " ".join(sys.argv[1:] if arguments is None else arguments),
        "machine": machine(),
        "made": timestamp(),
        "data": {},
    }
    begin = time.perf_counter()
    for plan in _plans(args, variants):
        results["data"][plan.data] = measured(plan)
        print(f"\n{plan.data}\n\n{markdown(results['data'][plan.data], BASELINE)}\n")
        _write(results, args)
    print(f"{time.perf_counter() - begin:.0f} s", file=sys.stderr)


def _plans(args: argparse.Namespace, variants: Mapping[str, Variant]) -> list[Plan]:
    names = ["trivago"] if args.quick else args.data
    plans = []
    for name in names:
        schema = load_schema(name)
        recipe = default_recipe_file(schema)
        folder = args.runs / ("quick" if args.quick else name)
        path = args.data_root / PUBLIC[name]
        seeds = tuple(range(args.seeds))
        if args.quick:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "clicks.parquet"
            if not path.exists():
                generate(path, 6000, seed=0, items=2000, users=1000)
            recipe = recipe.with_recipe({"epochs": 1, "refit": False})
            seeds = (0, 1)
        plans.append(Plan(name, open_data(path, schema), recipe, seeds, variants, folder))
    return plans


def _write(results: Mapping[str, Any], args: argparse.Namespace) -> None:
    """Writes the figures after each data set. Undefined ones become null."""
    part = args.quick or args.variants or set(args.data) != set(DATA)
    folder = args.runs if part else ROOT / "docs" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "quality.json", _defined(results))
    if part:
        return
    page = folder / "quality.md"
    text = page.read_text(encoding="utf-8")
    for name, found in results["data"].items():
        text = between_markers(text, name, markdown(found, BASELINE))
    text = between_markers(text, "provenance", f"{results['machine']}; {results['made']}.")
    page.write_text(text, encoding="utf-8")


def _defined(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _defined(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_defined(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
