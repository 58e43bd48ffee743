"""Compares training on many generated rows by `polyrec train`, by an earlier commit of it, and by TorchRec.

    git worktree add ../earlier bd14473
    python -m benchmarks.training.streamed_beside --rows 50_000_000 --earlier ../earlier \\
        --torchrec VENV/bin/python --json docs/results/training-streamed-beside.json

The rows are those of benchmarks/training/streamed.py. Every way is a separate process with one torch thread
and the same recipe: fp32, one epoch, constant step sizes, batches of 4,096 rows in whole requests. It
includes everything from the Parquet file to AUC on the test rows.

    polyrec    `polyrec train --window`, which reads ahead of the steps
    earlier    the earlier commit's `polyrec train`, which encodes all rows first
    torchrec   TorchRec's DLRM on the windows that polyrec reads; it writes no bundle

Because other work may share the machine, times are CPU times of all threads of a process. Memory is anonymous
memory (RssAnon), sampled twice per second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.command import ROOT, command_parser, save, today
from benchmarks.training.streamed import BATCH_ROWS, ITEMS, USERS, anonymous_bytes, schema_of
from polyrec.cli.train.train_workers import local_environment
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, fit_splitter
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import load_recipe_file
from polyrec.models.training.stream import StreamedRows

WAYS = ("polyrec", "earlier", "torchrec")
RECIPE = {
    "architecture": {"width": 16, "bottom": [64], "top": [256], "interaction": "dot"},
    "recipe": {
        "epochs": 1,
        "batch_rows": BATCH_ROWS,
        "by_request": True,
        "checks_per_epoch": 1,
        "dense_lr": 0.002,
        "sparse_lr": 0.05,
        "warm_up": 0.0,
        "final_lr": 1.0,
        "hide": 0.0,
        "average": 0.0,
    },
}
LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Used:
    """Resources that a process used. seconds: wall-clock time."""

    cpu_seconds: float
    seconds: float
    peak_anonymous_bytes: int


def watched(command: Sequence[str], environment: dict[str, str], folder: Path) -> tuple[dict[str, Any], Used]:
    """Runs a command; returns its last line's JSON and its resources. Raises SystemExit if it fails."""
    begin, peak, out = time.perf_counter(), 0, folder / "out"
    with out.open("wb") as file:
        started = subprocess.Popen(command, env=os.environ | environment, cwd=folder, stdout=file)
        while True:
            pid, code, usage = os.wait4(started.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, anonymous_bytes(started.pid))
            time.sleep(LOOK_EVERY_S)
    started.returncode = os.waitstatus_to_exitcode(code)
    if started.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {started.returncode}")
    seconds = time.perf_counter() - begin
    answer: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
    return answer, Used(usage.ru_utime + usage.ru_stime, seconds, peak)


def train_torchrec(data: Path, schema_file: str, recipe: str, window: int) -> dict[str, Any]:
    """Trains TorchRec's DLRM on a stream; returns its test metrics and the resources of its steps."""
    import torch

    from benchmarks.training.torchrec_steps import TorchRecSteps
    from polyrec.models.training.workers.group import WorkerGroup

    torch.set_num_threads(1)
    retain_freed_memory()
    schema = load_schema(schema_file)
    reader = open_data(data, schema)
    learner = Learner(reader, schema, load_recipe_file(recipe), window_rows=window)
    splitter = fit_splitter(reader, schema)
    encoder = learner.encoder_of(splitter, (TRAIN,))
    source = StreamedRows(reader, encoder, splitter, (TRAIN,), window, lambda _rows: None)
    os.environ.update(local_environment(1) | {"RANK": "0"})
    with WorkerGroup.join() as group:
        steps = TorchRecSteps(learner, encoder, source, group)
        # another thread reads and encodes
        begin, rows = time.thread_time(), 0
        for step in steps:
            rows += step.rows
            if rows == source.size:
                break
        step_seconds = time.thread_time() - begin
        with learner.encoded(encoder, splitter, (TEST,)) as test:
            quality = evaluate(steps.predict(test, test.select(TEST)), test.label, test.group)
    return {"metrics": {"test": quality.as_dict()}, "step_cpu_seconds": step_seconds}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--window", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="of the generated rows (default: a temporary one)")
    parser.add_argument("--earlier", type=Path, help="checkout of the earlier commit")
    parser.add_argument("--torchrec", help="Python of an environment with TorchRec")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps-of", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps_of:
        data, schema, recipe = args.steps_of
        print(json.dumps(train_torchrec(Path(data), schema, recipe, args.window)))
        return
    with tempfile.TemporaryDirectory() as own:
        compare(args, Path(own))


def compare(args: argparse.Namespace, folder: Path) -> None:
    """Trains in each way; prints a table and writes the record after each."""
    data = ((args.folder or folder) / f"clicks-{args.rows}.parquet").resolve()
    if not data.exists():
        generate(data, args.rows, seed=1, items=ITEMS, users=USERS)
    schema, recipe = folder / "schema.yaml", folder / "recipe.yaml"
    # without defaults: the earlier commit may not know their fields
    schema.write_text(yaml.safe_dump(schema_of(args.rows).model_dump(mode="json", exclude_defaults=True)))
    recipe.write_text(yaml.safe_dump(RECIPE))
    train = ["-m", "polyrec", "train", "--data", str(data), "--schema", str(schema), "--recipe", str(recipe)]
    train += ["--out", str(folder / "bundle"), "--replace", "--json"]
    window = ["--window", str(args.window)]
    steps_of = ["-m", "benchmarks.training.streamed_beside", "--steps-of"]
    steps_of += [str(data), str(schema), str(recipe)]
    commands: dict[str, tuple[list[str], Path | None]] = {
        "polyrec": ([sys.executable, *train, *window], ROOT),
        "earlier": ([sys.executable, *train], args.earlier),
        "torchrec": ([args.torchrec or sys.executable, *steps_of, *window], ROOT),
    }
    record: dict[str, Any] = {"machine": processor(), "date": today()}
    record |= {"rows": args.rows, "window": args.window, "data_bytes": data.stat().st_size, "ways": {}}
    print("| | processor s | rows by second of processor | anonymous memory at its highest, MB | AUC |")
    print("|---|---|---|---|---|")
    for way in args.ways:
        command, code = commands[way]
        if code is None:
            raise SystemExit("the earlier commit: say where it is checked out with --earlier FOLDER")
        answer, used = watched(command, {"PYTHONPATH": str(code.resolve())}, folder)
        test = answer["metrics"]["test"]
        rate = args.rows / used.cpu_seconds
        record["ways"][way] = {**asdict(used), "rows_per_cpu_second": rate, "test": test}
        if way == "torchrec":
            record["ways"][way]["step_cpu_seconds"] = answer["step_cpu_seconds"]
        print(
            f"| {way} | {used.cpu_seconds:,.0f} | {rate:,.0f} | {used.peak_anonymous_bytes / 1e6:,.0f} "
            f"| {test['auc']:.4f} |",
            flush=True,
        )
        save(args.json, record)


if __name__ == "__main__":
    main()
