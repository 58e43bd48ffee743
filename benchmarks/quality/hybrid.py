"""Compares hybrid with tables that cost as much, with five seeds; writes docs/results/hybrid.md.

    python -m benchmarks.quality.hybrid --runs /work/data/hybrid
    python -m benchmarks.quality.hybrid --runs /work/data/hybrid --data ml1m-whole bookcrossing-whole

On a sample of each of three data sets, or on a whole one with a stronger decoder, it trains a table, a hybrid
with the same vectors and net, and the table widened to hybrid's bytes and to hybrid's operations per row.
Vectors, MLPs and the rank of the cross layers grow together, up to the widest model that does not exceed
hybrid's cost. All use the default recipe for one epoch, which keeps the weights of the best check on
validation rows. Every seed's model predicts the test rows; a difference counts as shown if it holds for other
rows (or requests) and for other seeds (benchmarks/quality/repeats.py). Figures and predictions are stored
under --runs after each training and not computed again, so a run can be stopped at any time; seeds are the
outer loop. --report writes the page from the stored results. Runs in one process and one thread.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import DATA_ROOT, ROOT, command_parser, save, saved
from benchmarks.quality.dhe_sweep import cost
from benchmarks.quality.recipes import SETS, first_rows, some_rows
from benchmarks.quality.repeats import Difference, RepeatedRuns, summarize_runs
from benchmarks.quality.representations import machine
from benchmarks.quality.tables import write_figures
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import RepresentationKind
from polyrec.models.evaluation.comparison import Metric, samples
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile
from polyrec.models.training.source import Rows
from polyrec.models.training.trainer import predict
from polyrec.report.text import markdown_table

PAGE = ROOT / "docs/results/hybrid.md"
ROWS = 250_000
SEEDS = (0, 1, 2, 3, 4)
BASE = Architecture()
TABLE, HYBRID, BYTES, OPERATIONS = "table", "hybrid", "table of its bytes", "table of its operations"
MODELS = (TABLE, HYBRID, BYTES, OPERATIONS)
DEEP = (128, 128, 128)
"""Hidden layers of the decoder with the most information per operation in docs/results/dhe-sweep.md."""
WIDE = (512, 256)
"""Hidden layers of MP-Rec's decoder, which has the most information there regardless of cost."""


@dataclass(frozen=True, slots=True)
class HybridCase:
    """A data set, a decoder and the models to compare.

    data: key of SETS. sample: writes its rows; None: the whole set.
    """

    data: str
    sample: Callable[[Path, Path], None] | None
    hidden: tuple[int, ...] = DEEP
    models: tuple[str, ...] = MODELS

    @property
    def encoding(self) -> dict[str, Any]:
        """The decoders' shape, as in a recipe."""
        shape = {"k": 1024, "hidden": list(self.hidden)}
        return shape | {"activation": "mish", "batch_norm": True, "by_rows": True}

    @property
    def title(self) -> str:
        """Heading of the case's section."""
        what = SETS[self.data].what
        if self.sample is None:
            what += ", whole"
        return f"{what}, decoders of 1024-{'-'.join(map(str, self.hidden))}"


SAMPLES = {
    "trivago": HybridCase("trivago", first_rows(ROWS)),
    "bookcrossing": HybridCase("bookcrossing", some_rows(ROWS)),
    "ml1m": HybridCase("ml1m", some_rows(ROWS)),
}
CASES = SAMPLES | {
    "ml1m-whole": HybridCase("ml1m", None, WIDE),
    # without the table of hybrid's operations, of width 125, which trains for longer than all the others
    "bookcrossing-whole": HybridCase("bookcrossing", None, WIDE, (TABLE, HYBRID, BYTES)),
}
ONE_EPOCH = {"epochs": 1, "checks_per_epoch": 4}
WIDEST = 1024
SHOWN: tuple[Metric, ...] = ("information", "auc")


@dataclass(frozen=True, slots=True)
class HybridCost:
    """Resources of a model. bytes: fp32 bytes of rows, decoders and net."""

    width: int
    bytes: int
    mflop: float


def widened(width: int) -> Architecture:
    """Returns the default shape with vectors of `width`, and MLPs and cross layers' rank in proportion."""

    def scaled(size: int) -> int:
        return round(size * width / BASE.width)

    return Architecture(
        width=width,
        bottom=tuple(map(scaled, BASE.bottom)),
        top=tuple(map(scaled, BASE.top)),
        cross_rank=scaled(BASE.cross_rank),
    )


def training_of(case: HybridCase, width: int, seed: int = 0) -> RecipeFile:
    """Returns the recipe of a model."""
    return RecipeFile.model_validate(
        {
            "architecture": widened(width).model_dump(),
            "recipe": {**ONE_EPOCH, "seed": seed},
            "encoding": case.encoding,
        }
    )


def widest_within(limit: HybridCost, cost_of: Callable[[int], HybridCost], what: str) -> int:
    """Returns the widest table whose `what` (`bytes` or `mflop`) is within the limit; at least BASE's."""
    low, high = BASE.width, WIDEST
    while low < high:
        middle = (low + high + 1) // 2
        if getattr(cost_of(middle), what) <= getattr(limit, what):
            low = middle
        else:
            high = middle - 1
    return low


class HybridSample:
    """The encoded rows of a case, and the models that are trained on them."""

    def __init__(self, case: HybridCase, data_root: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._case = case
        path, schema = data_root / SETS[case.data].source, SETS[case.data].schema()
        if case.sample is not None:
            source, path = path, folder / "rows.parquet"
            if not path.exists():
                case.sample(source, path)
        self._learner = Learner(open_data(path, schema), schema, RecipeFile())
        splitter = fit_splitter(self._learner.reader, schema)
        self._encoder: Encoder = self._learner.encoder_of(splitter, (TRAIN,))
        self._data = self._learner.encoded(self._encoder, splitter, (TRAIN, VALIDATION, TEST))
        self._rows = {which: self._data.select(which) for which in (TRAIN, VALIDATION, TEST)}
        limit = self.cost("hybrid", BASE.width)

        def of_table(width: int) -> HybridCost:
            return self.cost("table", width)

        costs = {
            TABLE: of_table(BASE.width),
            HYBRID: limit,
            BYTES: of_table(widest_within(limit, of_table, "bytes")),
            OPERATIONS: of_table(widest_within(limit, of_table, "mflop")),
        }
        self.costs = {model: costs[model] for model in case.models}

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each split."""
        names = {TRAIN: "training", VALIDATION: "validation", TEST: "test"}
        return {names[which]: int(rows.size) for which, rows in self._rows.items()}

    @property
    def label(self) -> F32:
        """Labels of the test rows."""
        return self._data.label[self._rows[TEST]]

    @property
    def group(self) -> I64 | None:
        """Requests of the test rows, if the data have any."""
        return None if self._data.group is None else self._data.group[self._rows[TEST]]

    def cost(self, kind: RepresentationKind, width: int) -> HybridCost:
        """Returns the cost of an untrained model, which equals that of the trained one."""
        model = replace(self._learner, training=training_of(self._case, width), kind=kind).initial_model(
            self._encoder
        )
        found = cost(model, len(self._learner.schema.numbers))
        net = 4 * sum(p.numel() for p in model.net.parameters())
        total = int(found["rows_bytes"] + found["decoders_bytes"]) + net
        return HybridCost(width, total, found["mflop"])

    def train(self, name: str, seed: int) -> tuple[F32, dict[str, Any]]:
        """Trains a model; returns its test probabilities and figures."""
        kind: RepresentationKind = "hybrid" if name == HYBRID else "table"
        training = training_of(self._case, self.costs[name].width, seed)
        learner = replace(self._learner, training=training, kind=kind)
        begin = time.process_time()
        train, validation = (Rows(self._data, self._rows[which]) for which in (TRAIN, VALIDATION))
        fitted = learner.fit(self._encoder, train, validation)
        for head, scale in zip(fitted.model.net.heads, fitted.scales, strict=True):
            scale.apply(head)
        seconds = time.process_time() - begin
        p = predict(fitted.model, self._data, self._rows[TEST])
        found = evaluate(p, self.label, self.group)
        return p, {"information": found.information, "auc": found.auc, "cpu_s": round(seconds, 1)}


def compared(p: Mapping[str, Sequence[F32]], label: F32, group: I64 | None) -> dict[str, Any]:
    """Returns, for JSON, all metrics, differences from the table, and hybrid's differences from each model.

    p: model -> probabilities of each seed.
    """
    names = list(p)
    drawn = samples(label, [one for name in names for one in p[name]], group)
    found = summarize_runs(drawn, names, TABLE)
    to_hybrid = summarize_runs(-drawn, names, HYBRID)
    return {
        name: {
            "metrics": {m: asdict(found[name].metrics[m]) for m in SHOWN},
            "to_table": _differences(found[name]),
            "hybrid_to_it": _differences(to_hybrid[name]),
        }
        for name in names
    }


def _differences(runs: RepeatedRuns) -> dict[str, Any] | None:
    if runs.to_baseline is None:
        return None

    def of(difference: Difference) -> dict[str, Any]:
        hull = difference.interval
        own = {"value": hull.value, "low": hull.low, "high": hull.high, "verdict": difference.verdict}
        return own | {"over_rows": asdict(difference.over_rows), "over_seeds": asdict(difference.over_seeds)}

    return {m: of(runs.to_baseline[m]) for m in SHOWN}


def tables(found: Mapping[str, Any]) -> str:
    """Returns the page's figures as Markdown. found: the record of each data set, see `main`."""
    lines: list[str] = []
    for name, record in found.items():
        rows = record["rows"]
        lines += [
            "",
            f"## {CASES[name].title}",
            "",
            f"{rows['training']:,} training, {rows['validation']:,} validation and {rows['test']:,} test "
            f"rows, {_seeds(min(map(len, record['runs'].values())))}.",
            "",
        ]
        cells = []
        for model, own in record["compared"].items():
            cost, metrics = record["costs"][model], own["metrics"]
            seconds = np.mean([run["cpu_s"] for run in record["runs"][model].values()])
            row = [model, str(cost["width"]), f"{cost['bytes'] / 1e6:.2f}", f"{cost['mflop']:.2f}"]
            row += [f"{seconds:.0f}"]
            row += [_spread(metrics[m]) for m in SHOWN]
            row += [_cell(own["to_table"]), _cell(own["hybrid_to_it"])]
            cells.append(row)
        head = ["model", "width", "MB", "MFLOP a row", "training, CPU s", "information gain", "AUC"]
        head += ["information against the table", "hybrid's information against it"]
        lines += markdown_table(head, cells)
    return "\n".join(lines[1:])


def _seeds(count: int) -> str:
    return "one seed, intervals over rows alone" if count == 1 else f"{count} seeds"


def _spread(metric: Mapping[str, float]) -> str:
    deviation = "" if math.isnan(metric["deviation"]) else f" ± {metric['deviation']:.4f}"
    return f"{metric['mean']:.4f}{deviation}"


def _cell(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return ""
    d = difference["information"]
    shown = "" if d["low"] > 0 or d["high"] < 0 else ", noise"
    return f"{d['value']:+.4f} ({d['low']:+.4f} to {d['high']:+.4f}{shown})"


def run(name: str, sample: HybridSample, seed: int, folder: Path) -> None:
    """Trains the missing models of a seed."""
    kept = folder / "record.json"
    record: dict[str, Any] = saved(kept)
    record["rows"], record["costs"] = sample.rows, {m: asdict(c) for m, c in sample.costs.items()}
    for model in sample.costs:
        runs = record.setdefault("runs", {}).setdefault(model, {})
        if str(seed) in runs:
            continue
        p, runs[str(seed)] = sample.train(model, seed)
        np.save(folder / f"{model}-{seed}.npy", p)
        save(kept, record)
        print(name, model, seed, runs[str(seed)], file=sys.stderr, flush=True)


def compare_seeds(sample: HybridSample, folder: Path) -> None:
    """Adds a comparison of the models, over the seeds that all of them have, to a data set's record."""
    kept = folder / "record.json"
    record = json.loads(kept.read_text())
    runs = record["runs"]
    seeds = [s for s in runs[TABLE] if all(s in runs[m] for m in sample.costs)]
    p = {m: [np.load(folder / f"{m}-{seed}.npy") for seed in seeds] for m in sample.costs}
    record["compared"] = compared(p, sample.label, sample.group)
    save(kept, record)


def report(names: Sequence[str], runs: Path) -> None:
    """Writes the page's figures and docs/results/hybrid.json; keeps the file's other cases."""
    records = {n: json.loads(f.read_text()) for n in names if (f := runs / n / "record.json").exists()}
    kept = PAGE.with_suffix(".json")
    known: dict[str, Any] = saved(kept).get("data", {})
    known |= {name: record for name, record in records.items() if "compared" in record}
    found = {name: known[name] for name in CASES if name in known}
    write_figures(PAGE, {"rows": ROWS, "data": found}, tables(found), machine())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--data", nargs="+", choices=list(CASES), default=list(SAMPLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "hybrid", help="where results are kept")
    parser.add_argument("--report", action="store_true", help="only write the page from what is there")
    args = parser.parse_args(arguments)
    retain_freed_memory()
    torch.set_num_threads(1)
    if not args.report:
        sets = {n: HybridSample(CASES[n], args.data_root, args.runs / n) for n in args.data}
        for seed in args.seeds:
            for name, sample in sets.items():
                run(name, sample, seed, args.runs / name)
        for name, sample in sets.items():
            compare_seeds(sample, args.runs / name)
    report(args.data, args.runs)


if __name__ == "__main__":
    main()
