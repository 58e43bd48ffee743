"""Ranking requests with their context computed once, against the same rows exploded.

    python -m benchmarks.quality.context_once --data ../shared/data/trivago/impressions.parquet

One core; real contexts of trivago's test requests, with their own candidates (23) or with 270 and 2,048
candidates drawn from the test rows; a different request each time. `once` is what /v1/rank executes;
`exploded` repeats the context in every row, and computes a looked-up id as often as it occurs (for dhe
and hybrid), as a server without deduplication does; `distinct` repeats the context but computes each
distinct id once. A, B, C, A, B, C in one run; medians over rounds. Also checks that all agree to 1e-5.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.quality.speed import arguments, family, save, test_rows
from polyrec.models.data.encoded import EncodedRows
from polyrec.models.dlrm.cost import flops, ranking_flops
from polyrec.models.embeddings.computed import ComputedStage
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.registry import runtimes_for
from polyrec.models.schema.batch import Batch

CANDIDATES = (23, 270, 2048)
REPRESENTATIONS = ("table", "dhe", "hybrid", "table-int8")
FORMS = ("once", "distinct", "exploded")


def requests(data: EncodedRows, candidates: int, count: int, seed: int) -> list[Batch]:
    """Ranking batches of one real context each."""
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
    """Switches computing of vectors once per distinct id on or off."""
    for part in (stage, getattr(stage, "computed", None)):
        if isinstance(part, ComputedStage):
            part.distinct = distinct


def main() -> None:
    args = arguments(__doc__, rounds=7)
    bundles = family(args.data, args.bundles)
    data = test_rows(args.data, bundles)
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
    print("\n| representation, runtime | candidates | once | distinct | exploded | faster | FLOPs saved |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['representation']} {r['runtime']} | {r['candidates']:,} | {r['once']:,} "
            f"| {r['distinct']:,} "
            f"| {r['exploded']:,} | {r['time_factor']}x | {r['flop_factor']}x |"
        )
    save(args, {"rows": rows})


if __name__ == "__main__":
    main()
