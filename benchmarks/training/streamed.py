"""Measures training on a long stream of generated rows: rows/s, and memory from the first to the last step.

    python -m benchmarks.training.streamed --rows 50_000_000 --json docs/results/training-streamed.json

Generates clicks in trivago's shape (a million users and hotels, kept in --folder), then trains a table of
width 16 on them in one pass, windows of a million rows, without features of the request, validated on the
last hundredth. One torch thread takes steps and one thread reads and encodes ahead, so rows/s are also given
by processor second of both. Memory is anonymous (RssAnon): mapped files are the system's to drop. Prints the
tables of docs/results/training-streamed.md.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import command_parser, save, today
from polyrec.cli.progress import ProgressBars
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.data.reader import open_data
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.models.training.trainer import StepReport
from polyrec.report.text import markdown_table

ITEMS = USERS = 1_000_000
BATCH_ROWS = 4096
SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0)


def schema_of(rows: int) -> Schema:
    """Returns trivago's schema without features of the request, one hundredth of the rows for each check."""
    full = load_schema("trivago")
    split = full.split.model_dump() | {"train": 0.99, "validation": 0.01}
    return Schema.model_validate(full.model_dump() | {"request": (), "split": split, "name": f"rows_{rows}"})


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the training. anonymous_bytes: of the process. seconds, cpu_seconds: since the start."""

    step: int
    rows: int
    seconds: float
    cpu_seconds: float
    anonymous_bytes: int
    loss: float


@dataclass(slots=True)
class Watch:
    """Records when each pass began, and moments during the steps."""

    begin: float = field(default_factory=time.perf_counter)
    passes: list[tuple[str, float]] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    peak_bytes: int = 0
    rows: int = 0

    def phase(self, bars: ProgressBars, name: str, rows: int | None) -> Any:
        self.passes.append((name, time.perf_counter() - self.begin))
        print(f"{name} at {self.passes[-1][1]:.0f} s", flush=True)
        return bars.phase(name, rows)

    def step(self, bars: ProgressBars, report: StepReport) -> None:
        if report.step == 1:
            self.passes.append(("train", time.perf_counter() - self.begin))
        self.rows += report.rows
        if report.step % 50 == 1 or report.step == report.total:
            used = anonymous_bytes()
            self.peak_bytes = max(self.peak_bytes, used)
            now = time.perf_counter() - self.begin
            self.moments.append(Moment(report.step, self.rows, now, time.process_time(), used, report.loss))
        bars.training(report)


def anonymous_bytes(process: int | str = "self") -> int:
    """Returns the anonymous memory of a process, by default this one; 0 if it has ended."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def measure(data: Path, rows: int, window: int, folder: Path, precision: str) -> dict[str, Any]:
    """Trains once; returns the moments and the bundle's quality."""
    schema, watch = schema_of(rows), Watch()
    training = RecipeFile(
        architecture=Architecture(width=16, bottom=(64,), top=(256,), interaction="cat"),
        recipe=Recipe(
            epochs=1, batch_rows=BATCH_ROWS, by_request=True, hide=0.0, checks_per_epoch=4, dense_lr=2e-3
        ).model_copy(update={"precision": precision}),
    )
    start = anonymous_bytes()
    with ProgressBars() as bars:
        bundle = Learner(
            open_data(data, schema),
            schema,
            training,
            phase=lambda name, n: watch.phase(bars, name, n),
            progress=lambda report: watch.step(bars, report),
            window_rows=window,
        ).learn(folder / "bundle")
    first, last = watch.moments[0], watch.moments[-1]
    shown = []
    for share in SHARES:
        target = first.step + share * (last.step - first.step)
        shown.append(asdict(min(watch.moments, key=lambda m: abs(m.step - target))))
    trained, seconds = last.rows - first.rows, last.seconds - first.seconds
    cpu = last.cpu_seconds - first.cpu_seconds
    return {
        "rows": rows,
        "window": window,
        "precision": precision,
        "data_bytes": data.stat().st_size,
        "table_rows": {t: v.rows for t, v in bundle.encoder.vocabularies.items()},
        "bundle_bytes": bundle.bytes,
        "passes": watch.passes,
        "seconds": time.perf_counter() - watch.begin,
        "trained_rows": last.rows,
        "rows_per_second": trained / seconds,
        "rows_per_cpu_second": trained / cpu,
        "bytes_before": start,
        "peak_bytes": watch.peak_bytes,
        "moments": shown,
        "test": bundle.test_metrics,
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--window", type=int, default=1_000_000)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--folder", type=Path, help="of the generated rows (default: a temporary one)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    retain_freed_memory()
    with tempfile.TemporaryDirectory() as own:
        folder = args.folder or Path(own)
        data = folder / f"clicks-{args.rows}.parquet"
        if not data.exists():
            begin = time.perf_counter()
            generate(data, args.rows, seed=1, items=ITEMS, users=USERS)
            print(f"generated {args.rows:,} rows in {time.perf_counter() - begin:.0f} s", flush=True)
        found = measure(data, args.rows, args.window, Path(own), args.precision)
    rows = []
    for m in found["moments"]:
        counted = [f"{m[key]:,.0f}" for key in ("step", "rows", "seconds")]
        rows.append([*counted, f"{m['anonymous_bytes'] / 1e6:,.0f}", f"{m['loss']:.4f}"])
    print("", *markdown_table(["steps", "rows", "s", "anonymous MB", "loss"], rows), sep="\n")
    print(json.dumps({k: v for k, v in found.items() if k != "moments"}, indent=1))
    if args.json:
        result = {"machine": processor(), "date": today()}
        save(args.json, {**result, **found})


if __name__ == "__main__":
    main()
