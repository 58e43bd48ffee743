"""Compares ranking requests whose context is computed once with the same rows exploded.

    python -m benchmarks.quality.context_once --data ../shared/data/trivago/impressions.parquet

Runs on one core. Requests have real contexts of trivago's test requests, with their own candidates (23), or
270 or 2,048 candidates drawn from the test rows; each request is different. `once` is what /v1/rank executes.
`exploded` repeats the context in every row and computes an id's vector as often as it occurs (for dhe and
hybrid), like a server without deduplication. `distinct` repeats the context but computes each distinct id
once. The three take turns (A, B, C, A, B, C) in one run; figures are medians over rounds. Also checks that
all agree to 1e-5.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.command import command_parser, save
from benchmarks.quality.kept import trained
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import materialize, quantize_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.dlrm.cost import flops, ranking_flops
from polyrec.models.dlrm.representation import KINDS
from polyrec.models.embeddings.computed import ComputedStage
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.registry import runtimes_for
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_training
from polyrec.report.text import markdown_table

CANDIDATES = (23, 270, 2048)
REPRESENTATIONS = ("table", "dhe", "hybrid", "table-int8")
HOT_ROWS = 5000
FORMS = ("once", "distinct", "exploded")


def family(data: str, folder: Path) -> dict[str, Bundle]:
    """Returns a bundle of each representation, trained if it does not exist; int8 rows and hot prefixes."""
    schema = load_schema("trivago")
    reader = open_data(data, schema)
    bundles = {}
    for kind in KINDS:
        bundles[kind] = trained(folder / kind, Learner(reader, schema, default_training(schema), kind))
    for name, source, derive in (
        ("table-int8", "table", lambda b: quantize_bundle(b, "int8")),
        ("dhe-hot", "dhe", lambda b: materialize(b, HOT_ROWS)),
        ("hybrid-hot", "hybrid", lambda b: materialize(b, HOT_ROWS)),
    ):
        model, representation = derive(bundles[source])
        bundles[name] = write_bundle(
            folder / name, model, representation, bundles[source].encoder, {}, {}, replace=True
        )
    return bundles


def requests(data: EncodedRows, candidates: int, count: int, seed: int) -> list[Batch]:
    """Returns ranking batches, each with one real context."""
    assert data.group is not None
    random = np.random.default_rng(seed)
    starts = np.flatnonzero(np.r_[True, data.group[1:] != data.group[:-1]])
    out = []
    for start in random.choice(starts, count, replace=False):
        rows = random.integers(0, data.rows, candidates)
        context = data.batch(np.array([start])).context
        out.append(Batch(context, data.batch(rows).candidate, np.zeros(candidates, np.int64)))
    return out


def set_distinct(stage: object, distinct: bool) -> None:
    """Switches deduplication of computed ids on or off."""
    for part in (stage, getattr(stage, "computed", None)):
        if isinstance(part, ComputedStage):
            part.distinct = distinct


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--bundles", type=Path, default=Path("runs/representations"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    retain_freed_memory()
    torch.set_num_threads(1)
    bundles = family(args.data, args.bundles)
    schema = load_schema("trivago")
    reader = open_data(args.data, schema)
    data = encode(reader, bundles["table"].encoder, fit_splitter(reader, schema), (TEST,))
    rows = []
    for name in REPRESENTATIONS:
        full, once = flops(bundles[name]), ranking_flops(bundles[name])
        for runtime_name in runtimes_for("cpu"):
            runtime = open_runtime(runtime_name, bundles[name])
            stage = runtime.stage
            for candidates in CANDIDATES:
                pool = requests(data, candidates, 40, candidates)
                exploded = [b.exploded() for b in pool]
                times: dict[str, list[float]] = {form: [] for form in FORMS}
                worst = 0.0
                for round_ in range(args.rounds + 1):
                    for form in FORMS:
                        set_distinct(stage, form != "exploded")
                        batches = pool if form == "once" else exploded
                        picked = batches[round_ * 5 :][:5] if round_ < 8 else batches[:5]
                        begin = time.perf_counter()
                        for batch in picked:
                            runtime.predict(batch)
                        if round_:
                            times[form].append((time.perf_counter() - begin) / len(picked))
                set_distinct(stage, True)
                for a, b in zip(pool[:5], exploded[:5], strict=True):
                    worst = max(worst, float(np.abs(runtime.predict(a) - runtime.predict(b)).max()))
                rates = {form: candidates / float(np.median(t)) for form, t in times.items()}
                counted = candidates * full.total / (once.context + candidates * once.row)
                rows.append(
                    {
                        "representation": name,
                        "runtime": runtime_name,
                        "candidates": candidates,
                        **{form: round(rate) for form, rate in rates.items()},
                        "time_factor": round(rates["once"] / rates["exploded"], 2),
                        "flop_factor": round(counted, 2),
                        "largest_difference": worst,
                    }
                )
                print(rows[-1], flush=True)
    head = ["representation, runtime", "candidates", "once", "distinct", "exploded", "faster", "FLOPs saved"]
    cells = [
        [f"{r['representation']} {r['runtime']}"]
        + [f"{r[k]:,}" for k in ("candidates", "once", "distinct", "exploded")]
        + [f"{r['time_factor']}x", f"{r['flop_factor']}x"]
        for r in rows
    ]
    print("", *markdown_table(head, cells), sep="\n")
    about = {"machine": f"{processor()}, one core, torch {torch.__version__}", "unit": "rows/s"}
    save(args.json, {**about, "rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
