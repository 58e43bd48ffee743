"""Measures what two workers exchange when replicated rows are the calibration's, and when they are tracked.

    python -m benchmarks.training.popularity --json docs/results/training-popularity.json \\
        --picture docs/results/training-popularity.png

Generated clicks in two streams: the popularity of ids is constant, or another one from the middle on. Hotline
replicates a share of all rows: those looked up most in the first half (as a calibration counts them), those
that the tracker finds, none at first, or those of a tracker that counts every row. Bytes are deterministic;
no time is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training.zipf_clicks import generate_zipf, zipf_schema
from polyrec.cli.train_workers import local_environment
from polyrec.loadtest.machine import processor
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.batch import I64
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, Training
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper
from polyrec.models.training.workers.group import WorkerGroup
from polyrec.models.training.workers.row_exchange import Fetched
from polyrec.models.training.workers.settings import WorkerSettings
from polyrec.models.training.workers.stage import ShardedStage
from polyrec.models.training.workers.workers import Workers

REQUEST_ROWS, WIDTH, BUCKET = 8, 16, 32
STREAMS, CHOICES = ("steady", "drift"), ("calibration", "tracker", "full counting")
FORMS = {"Hotline": False, "Hotline and RecD": True}


class BatchWindows:
    """Windows of one batch each, in the order of the data."""

    def __init__(self, data: EncodedRows, rows: I64, batch_rows: int) -> None:
        self.data, self._rows, self._batch_rows = data, rows, batch_rows
        self.size, self.base_rate = rows.size, 0.25

    def windows(self, first: int = 0) -> Iterator[Rows]:
        for start in range(first * self._batch_rows, self.size, self._batch_rows):
            yield Rows(self.data, self._rows[start : start + self._batch_rows])


def counted_most(stage: ShardedStage, data: EncodedRows, rows: I64, most: int) -> I64:
    """Returns the rows of the tables that some rows of data look up most."""
    counts = np.zeros(stage.table_rows.total, np.int64)
    for part in np.array_split(rows, max(1, rows.size // 8192)):
        counts += np.bincount(stage.table_rows.lookups(data.batch(part)).rows(), minlength=counts.size)
    return np.argsort(-counts, kind="stable")[:most]


def work(file: Path, batch_rows: int, hot_share: float) -> None:
    """Trains as one of two workers; worker 0 prints the bytes a row by bucket of steps."""
    torch.set_num_threads(1)
    schema = zipf_schema(REQUEST_ROWS)
    shape = Architecture(width=WIDTH, bottom=(64,), top=(64,), interaction="cat")
    recipe = Recipe(batch_rows=batch_rows, by_request=True, hide=0.0)
    reader = open_data(file, schema)
    learner = Learner(reader, schema, Training(architecture=shape, recipe=recipe))
    splitter = fit_splitter(reader, schema)
    encoder = learner.encoder_of(splitter, (TRAIN,))
    most = int(hot_share * sum(v.rows for v in encoder.vocabularies.values()))
    with encode(reader, encoder, splitter, (TRAIN,)) as data, WorkerGroup.join() as group:
        rows = data.select(TRAIN)
        source = BatchWindows(data, rows, batch_rows)
        steps = -(-rows.size // batch_rows)
        for form, distinct in FORMS.items():
            for choice in CHOICES:
                workers = Workers(group, WorkerSettings("hotline", distinct, most * 4 * WIDTH, follow=True))
                model = workers.sharded(learner.initial_model(encoder), encoder.vocabularies)
                stage = model.stage
                assert isinstance(stage, ShardedStage)
                stepper = Stepper(model, source, recipe, steps, workers=workers)
                tracker = workers.tracker
                assert tracker
                if choice == "calibration":
                    first_half = rows[: rows.size // 2]
                    stage.rows.replicate(counted_most(stage, data, first_half, most), workers.pairs)
                    workers.tracker = None
                elif choice == "full counting":
                    tracker.capacity = stage.table_rows.total
                moved = counted(group, stepper, fetches_of(stage, group))
                if group.rank == 0:
                    own = batch_rows / group.size
                    buckets = np.add.reduceat(moved, np.arange(0, steps, BUCKET)) / own
                    buckets /= np.diff([*range(0, steps, BUCKET), steps])[:, None]
                    found = {"form": form, "choice": choice, "replicated": most, "steps": steps}
                    sent, fetched = buckets.T.round(1).tolist()
                    print(
                        json.dumps({**found, "bytes_per_row": sent, "fetched_per_row": fetched}), flush=True
                    )


def fetches_of(stage: ShardedStage, group: WorkerGroup) -> list[int]:
    """Notes the bytes of rows and ids that this worker fetches from others, by call."""
    noted: list[int] = []
    fetch = stage.rows.fetch

    def noting(rows: I64, local: bool = False) -> Fetched:
        fetched = fetch(rows, local)
        cold = sum(fetched.cuts) - fetched.cuts[group.rank]
        noted.append(cold * 4 * (1 + WIDTH))
        return fetched

    stage.rows.fetch = noting  # type: ignore[method-assign]
    return noted


def counted(group: WorkerGroup, stepper: Stepper, fetches: list[int]) -> np.ndarray[Any, Any]:
    """Returns the bytes that each step sent, and those that were fetched in it, [steps, 2]."""
    found = []
    sent = group.sent_bytes
    for _ in stepper:
        found.append((group.sent_bytes - sent, sum(fetches)))
        sent = group.sent_bytes
        fetches.clear()
    return np.array(found, float)


def measure(args: argparse.Namespace, stream: str, folder: Path) -> list[dict[str, Any]]:
    """Runs both workers on one stream."""
    file = folder / f"{stream}.parquet"
    generate_zipf(file, args.rows, REQUEST_ROWS, drift=stream == "drift")
    command = [sys.executable, "-m", "benchmarks.training.popularity", "--file", str(file)]
    command += ["--batch-rows", str(args.batch_rows), "--hot-share", str(args.hot_share)]
    environment = os.environ | local_environment(2)
    started = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    answers = [process.communicate()[0] for process in started]
    found = [{"stream": stream, **json.loads(line)} for line in answers[0].splitlines()]
    for run in found:
        print(json.dumps(run), file=sys.stderr, flush=True)
    return found


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """Draws bytes a row over the steps, a panel for each form and stream."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(9, 6), sharex=True, sharey="row", layout="constrained")
    for row, form in enumerate(FORMS):
        for column, stream in enumerate(STREAMS):
            panel = panels[row, column]
            for run in runs:
                if (run["form"], run["stream"]) == (form, stream):
                    key = "fetched_per_row" if FORMS[form] else "bytes_per_row"
                    values = run[key]
                    style = "--" if run["choice"] == "full counting" else "-"
                    panel.plot(np.arange(len(values)) * BUCKET, values, style, label=run["choice"])
            what = "fetched before computing" if FORMS[form] else "exchanged"
            panel.set_title(f"{form}, {stream}: {what}", fontsize=9)
            if not column:
                panel.set_ylabel("bytes a row")
    for panel in panels[:, 0]:
        panel.set_ylim(bottom=0)
    panels[0, 0].legend(fontsize=8)
    for panel in panels[1]:
        panel.set_xlabel("step")
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch-rows", type=int, default=512)
    parser.add_argument("--hot-share", type=float, default=0.05, help="of all rows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.file:
        work(args.file, args.batch_rows, args.hot_share)
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = [run for stream in STREAMS for run in measure(args, stream, Path(folder))]
    if args.json:
        result = {"machine": processor(), "date": datetime.now(UTC).date().isoformat()}
        options = {key: getattr(args, key) for key in ("rows", "batch_rows", "hot_share")}
        args.json.write_text(json.dumps({**result, **options, "bucket": BUCKET, "runs": runs}) + "\n")
    if args.picture:
        draw(runs, args.picture)


if __name__ == "__main__":
    main()
