"""Compares a frozen model with one that `polyrec loop` updates, day by day, with a day of shuffled labels.

    python -m benchmarks.operations.loop_days --seeds 0 1 2 --out docs/results/loop
    python -m benchmarks.operations.loop_days --data ../shared/data/trivago/impressions.parquet --out FILE

In generated data, users' tastes and hotels' qualities change gradually over the days (`--tastes`). All models
start from a bundle trained on the first day. Each further day is predicted by the bundles served on it, then
logged and learned by two loops: one with default settings, one that never holds a bundle back. Labels of the
broken day are shuffled only in the log; figures use the true labels. Real data (`--data`) are replayed by
time, in periods. With `--canary`, two bundles are tried as canaries on a server of the first loop's bundle:
the one that learned the broken day, which only the second loop publishes, and the first loop's next one.
Latency bounds are not applied there, as the machine may be busy. Prints the tables of docs/results/loop.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.command import command_parser, save
from benchmarks.operations.rollout import turn
from benchmarks.operations.written_log import request_starts, write_log
from polyrec.loadtest.machine import machine
from polyrec.loop.folder import LoopFolder
from polyrec.loop.loop import Loop
from polyrec.loop.steps import LoopSettings
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.evaluation.comparison import compare
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.schema.batch import F64
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_recipe_file
from polyrec.planner.plan import load_plan, save_plan, single_path_plan
from polyrec.report.text import markdown_table

SCHEMA = "trivago"
DAY_S, HOUR_S = 86_400.0, 3600.0
FIRST_S = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
WINDOW_S = 60.0
FROZEN, LOOPED, UNGUARDED = "frozen", "looped", "looped, nothing held back"
EVERYTHING = {"max_drop": 1e9, "max_calibration": 1e9, "margin": 1e9}
ALL = (TRAIN, VALIDATION, TEST)
UNTIMED = {"max_failed": 1, "max_late": 1, "max_slowdown": 1000, "slack_ms": 1e5}


@dataclass(frozen=True)
class Period:
    """Rows of a day. at_s: Unix time of each request. end_s: end of the period."""

    rows: pa.Table
    at_s: F64
    end_s: float

    def shuffled(self, seed: int) -> pa.Table:
        """Returns the rows with shuffled labels."""
        label = self.rows.column("clicked").to_numpy().copy()
        np.random.default_rng(seed).shuffle(label)
        return self.rows.set_column(self.rows.column_names.index("clicked"), "clicked", pa.array(label))


def generated_days(file: Path, args: argparse.Namespace, seed: int, schema: Schema) -> list[Period]:
    """Generates days of equal size whose requests are evenly spread."""
    rows = args.days * args.rows
    generate(file, rows, seed, items=args.items, users=args.users, tastes=args.tastes)
    table = pq.read_table(file)
    starts = request_starts(table, schema)
    ends = [
        0,
        *(int(starts[np.searchsorted(starts, args.rows * n)]) for n in range(1, args.days)),
        table.num_rows,
    ]
    found = []
    for day, (a, b) in enumerate(pairwise(ends)):
        rows, begin_s = table.slice(a, b - a), FIRST_S + DAY_S * day
        requests = request_starts(rows, schema).size
        found.append(Period(rows, begin_s + DAY_S * (np.arange(requests) + 0.5) / requests, begin_s + DAY_S))
    return found


def replayed(file: Path, args: argparse.Namespace, schema: Schema) -> list[Period]:
    """Splits data by time: the first hours, then periods."""
    table = pq.read_table(file)
    starts = request_starts(table, schema)
    at_s = table.column("timestamp").to_numpy().astype(np.float64)[starts]
    first_s = at_s[0] // DAY_S * DAY_S + args.first_hours * HOUR_S
    edges = np.arange(first_s, at_s[-1] + HOUR_S * args.period_hours / 2, HOUR_S * args.period_hours)
    cuts = [0, *np.searchsorted(at_s, edges).tolist()]
    found = []
    for n, (a, b) in enumerate(pairwise(cuts)):
        end = int(starts[b]) if b < starts.size else table.num_rows
        rows = table.slice(int(starts[a]), end - int(starts[a]))
        found.append(Period(rows, at_s[a:b], float(edges[n])))
    return found


def replay(
    folder: Path, days: Sequence[Period], args: argparse.Namespace, schema: Schema, seed: int
) -> dict[str, Any]:
    """Trains on the first day and loops over the others; returns figures by day."""
    pq.write_table(days[0].rows, folder / "first.parquet")
    training = default_recipe_file(schema).with_recipe({"seed": seed})
    reader = open_data(folder / "first.parquet", schema)
    first = Learner(reader, schema, training, baselines=False).learn(folder / "first")
    save_plan(single_path_plan(first.path, "table", "onnx"), folder / "plan.json")
    clock = [days[0].end_s]
    loops = {}
    for name, changes in ((LOOPED, {"margin": args.margin}), (UNGUARDED, EVERYTHING)):
        options = ("--seed", str(seed), *args.train_options.split())
        settings = LoopSettings(folder / "log", args.least_clicks, train_options=options, keep=99, **changes)
        loop = Loop(LoopFolder(folder / name), settings, every_s=1.0, settle_s=0.0, clock=lambda: clock[0])
        loops[name] = loop
    found: list[dict[str, Any]] = []
    tried: dict[str, Path] = {}
    for day, period in enumerate(days[1:], 1):
        is_broken = day == args.broken_day
        logged = period.shuffled(seed) if is_broken else period.rows
        write_log(folder / "log", logged, schema, period.at_s, WINDOW_S, f"part-{day}")
        if day == 1:
            for loop in loops.values():
                loop.begin(folder / "plan.json")
        paths = {FROZEN: first.path} | {n: load_plan(p.folder.plan).paths[0].bundle for n, p in loops.items()}
        found.append({"day": day, "broken": is_broken, **measured(folder, period, paths)})
        clock[0] = period.end_s + WINDOW_S + 1
        for name, loop in loops.items():
            found[-1][name] |= iterated(loop, ("held",) if name == UNGUARDED else ())
        print(json.dumps(found[-1]), flush=True)
        if is_broken and args.canary and seed == args.seeds[0]:
            tried = {
                "shuffled": load_plan(loops[UNGUARDED].folder.plan).paths[0].bundle,
                "stable": load_plan(loops[LOOPED].folder.plan).paths[0].bundle,
            }
        if day == args.broken_day + 1 and tried:
            tried["good"] = load_plan(loops[LOOPED].folder.plan).paths[0].bundle
            pq.write_table(period.rows, folder / "requests.parquet")
    result: dict[str, Any] = {"seed": seed, "first": first.test_metrics, "days": found}
    if tried:
        result["canaries"] = [canary(folder, name, tried, args, seed) for name in ("shuffled", "good")]
    return result


def measured(folder: Path, period: Period, paths: Mapping[str, Path]) -> dict[str, Any]:
    """Measures bundles on a day that none has learned, and their differences from the frozen one."""
    file = folder / "day.parquet"
    pq.write_table(period.rows, file)
    made = predict_all({name: load_bundle(path) for name, path in paths.items()}, file, ALL)
    standing = compare(made.label, made.probabilities, FROZEN, made.group)
    found: dict[str, Any] = {"rows": made.label.size, "clicks": int(made.label.sum())}
    for name in paths:
        value = standing[name].metrics["information"]
        found[name] = {"information": [value.value, value.low, value.high]}
        if name != FROZEN:
            by = (standing[name].to_baseline or {})["information"]
            found[name]["to_frozen"] = [by.value, by.low, by.high]
    if "planted" in period.rows.column_names:
        planted = period.rows.column("planted").to_numpy().astype(np.float32)
        found["planted"] = evaluate(
            planted, period.rows.column("clicked").to_numpy().astype(np.float32)
        ).information
    return found


def iterated(loop: Loop, forced: Sequence[str]) -> dict[str, Any]:
    """Runs an iteration to its end and returns its state. forced: states in which to force it on."""
    loop.advance(at_once=True)
    while (iteration := loop.folder.last()) is not None and iteration.state in ("running", *forced):
        if iteration.state == "held":
            loop.folder.give("force", iteration.number)
        if iteration.error is not None:
            raise SystemExit(iteration.error)
        loop.advance()
    assert iteration is not None
    reasons = {done.step: done.result.reason for done in iteration.done if done.step != "publish"}
    differences = iteration.figures("evaluate").get("differences", {}).values()
    evaluated = {"new_to_serving": next(iter(differences), None)}
    return {"state": iteration.state, "step": iteration.step, "reasons": reasons} | evaluated


def canary(
    folder: Path, name: str, tried: Mapping[str, Path], args: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Tries a bundle on a server of the loop's bundle, under load."""
    asked = argparse.Namespace(
        data=str(folder / "requests.parquet"),
        **{"rate": 150.0, "seconds": 60.0, "candidates": 20, "budget_ms": 100.0, "by": "user_id"},
    )
    bounds = {"promote_after_s": 10.0, **UNTIMED}
    found = {"canary": name} | turn(
        tried["stable"], tried[name], asked, {"share": 0.1, "bounds": bounds}, seed
    )
    print(json.dumps(found), flush=True)
    return found


def table(days: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of one seed."""
    rows = []
    for d in days:
        frozen, looped, unguarded = (f"{d[n]['information'][0]:.4f}" for n in (FROZEN, LOOPED, UNGUARDED))
        by = "{:+.4f} [{:+.4f}, {:+.4f}]".format(*d[LOOPED]["to_frozen"])
        state = d[LOOPED]["state"] + (f" by the {d[LOOPED]['step']}" if d[LOOPED]["state"] == "held" else "")
        name = f"{d['day']}, labels shuffled" if d["broken"] else str(d["day"])
        rows.append([name, frozen, looped, by, unguarded, state])
    head = ["day", "frozen", "looped", "difference to frozen", "nothing held back", "the loop on this day"]
    return "\n".join(markdown_table(head, rows))


def draw_days(runs: Sequence[Mapping[str, Any]], file: Path, unit: str) -> None:
    """Draws information gain by day, the mean of the seeds."""
    from polyrec.report.chart import Chart, Series, draw, png

    days = runs[0]["days"]
    x = np.array([d["day"] for d in days], np.float64)
    series = tuple(
        Series(
            name, x, np.mean([[d[name]["information"][0] for d in run["days"]] for run in runs], axis=0), i
        )
        for i, name in enumerate((LOOPED, FROZEN, UNGUARDED))
    )
    marks = tuple((float(d["day"]), "labels shuffled") for d in days if d["broken"])
    chart = Chart("", "", unit, "information gain", series, marks=marks)
    file.write_bytes(png(draw([chart], title="A frozen model and one that follows")))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data", type=Path, help="real data with a column timestamp (default: generated)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--days", type=int, default=11)
    parser.add_argument("--rows", type=int, default=100_000, help="of a day (100,000)")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--tastes", type=float, default=1.0, help="how far tastes turn over all days (1)")
    parser.add_argument("--broken-day", type=int, default=6)
    parser.add_argument("--first-hours", type=float, default=24.0, help="of real data (24)")
    parser.add_argument("--period-hours", type=float, default=4.0)
    parser.add_argument("--margin", type=float, default=0.005)
    parser.add_argument("--least-clicks", type=int, default=200)
    parser.add_argument("--train-options", default="")
    parser.add_argument("--canary", action="store_true", help="with the first seed, try bundles on a server")
    parser.add_argument("--out", type=Path, help="FILE.json and FILE.png")
    args = parser.parse_args()
    torch.set_num_threads(1)
    schema = load_schema(SCHEMA)
    runs = []
    for seed in args.seeds:
        with tempfile.TemporaryDirectory(prefix="polyrec-loop-") as made:
            folder = Path(made)
            days = (
                replayed(args.data, args, schema)
                if args.data
                else generated_days(folder / "all.parquet", args, seed, schema)
            )
            runs.append(replay(folder, days, args, schema, seed))
        print(table(runs[-1]["days"]))
    if args.out:
        settings = {k: str(v) for k, v in vars(args).items() if k != "out"}
        whole = {"machine": machine(), "settings": settings, "runs": runs}
        save(args.out.with_suffix(".json"), whole)
        draw_days(runs, args.out.with_suffix(".png"), "period" if args.data else "day")


if __name__ == "__main__":
    main()
