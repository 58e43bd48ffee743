"""Compares ranking requests whose context is computed once with the same rows exploded.

    python -m benchmarks.quality.context_once --data ../shared/data/trivago/impressions.parquet

Runs on one core. Requests have real contexts of trivago's test requests, with their own candidates (23), or
270 or 2,048 candidates drawn from the test rows; each request is different. `once` is what /v1/rank executes.
`exploded` repeats the context in every row and computes an id's vector as often as it occurs (for dhe and
hybrid), like a server without deduplication. `distinct` repeats the context but computes each distinct id
once. The three take turns (A, B, C, A, B, C) in one run; figures are medians over rounds. Also tells the
largest difference of a probability between once and exploded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import command_parser, in_turns, save
from benchmarks.quality.kept import trained
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.dlrm.cost import flops, ranking_flops
from polyrec.models.dlrm.representation import RepresentationKind
from polyrec.models.embeddings.computed import ComputedStage
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.registry import runtimes_for
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_recipe_file
from polyrec.report.text import markdown_table

CANDIDATES = (23, 270, 2048)
REPRESENTATIONS = ("table", "dhe", "hybrid", "table-int8")
FORMS = ("once", "distinct", "exploded")
REQUESTS = 40
A_TURN = 5
"""Requests that a form predicts in its turn; the next turn takes other ones."""


def family(data: str, folder: Path) -> dict[str, Bundle]:
    """Returns a bundle of each representation, trained if it does not exist; and the table with int8 rows."""
    schema = load_schema("trivago")
    reader = open_data(data, schema)
    training = default_recipe_file(schema)
    kinds: tuple[RepresentationKind, ...] = ("table", "dhe", "hybrid")
    bundles: dict[str, Bundle] = {
        kind: trained(folder / kind, Learner(reader, schema, training, kind)) for kind in kinds
    }
    model, representation = quantize_bundle(bundles["table"], "int8")
    encoder = bundles["table"].encoder
    bundles["table-int8"] = write_bundle(
        folder / "table-int8", model, representation, encoder, {}, {}, replace=True
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


def turns(pool: list[Batch]) -> Iterator[list[Batch]]:
    """Yields the requests of turn after turn, and starts over after the last."""
    for turn in count():
        start = turn * A_TURN % len(pool)
        yield pool[start : start + A_TURN]


def request_s(runtime: Runtime, form: str, batches: Iterator[list[Batch]]) -> float:
    """Predicts the next turn's batches; returns the mean seconds of one."""
    set_distinct(runtime.stage, form != "exploded")
    picked = next(batches)
    begin = time.perf_counter()
    for batch in picked:
        runtime.predict(batch)
    return (time.perf_counter() - begin) / len(picked)


def compared(runtime: Runtime, pool: list[Batch], rounds: int) -> dict[str, Any]:
    """Returns rows/s by form; how many times faster `once` is than `exploded`, how far their answers part."""
    exploded = [batch.exploded() for batch in pool]
    ways = {
        form: partial(request_s, runtime, form, turns(pool if form == "once" else exploded)) for form in FORMS
    }
    times = in_turns(ways, rounds, warm_up=1)
    set_distinct(runtime.stage, True)
    worst = max(
        float(np.abs(runtime.predict(once) - runtime.predict(rows)).max())
        for once, rows in zip(pool[:A_TURN], exploded[:A_TURN], strict=True)
    )
    rates = {form: pool[0].rows / float(np.median(times[form])) for form in FORMS}
    return {
        **{form: round(rate) for form, rate in rates.items()},
        "time_factor": round(rates["once"] / rates["exploded"], 2),
        "largest_difference": worst,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the measured rows as a Markdown table."""
    head = ["representation, runtime", "candidates", "once", "distinct", "exploded", "faster", "FLOPs saved"]
    cells = [
        [f"{r['representation']} {r['runtime']}"]
        + [f"{r[k]:,}" for k in ("candidates", "once", "distinct", "exploded")]
        + [f"{r['time_factor']}x", f"{r['flop_factor']}x"]
        for r in rows
    ]
    return markdown_table(head, cells)


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
    for name, runtime_name, candidates in product(REPRESENTATIONS, runtimes_for("cpu"), CANDIDATES):
        full, once = flops(bundles[name]), ranking_flops(bundles[name])
        counted = candidates * full.total / (once.context + candidates * once.row)
        pool = requests(data, candidates, REQUESTS, candidates)
        rows.append(
            {
                "representation": name,
                "runtime": runtime_name,
                "candidates": candidates,
                **compared(open_runtime(runtime_name, bundles[name]), pool, args.rounds),
                "flop_factor": round(counted, 2),
            }
        )
        print(rows[-1], flush=True)
    print("", *table(rows), sep="\n")
    about = {"machine": f"{processor()}, one core, torch {torch.__version__}", "unit": "rows/s"}
    save(args.json, {**about, "rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()
