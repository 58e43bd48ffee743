"""Measures training of tables eight times as large as memory: rows in a file against rows in memory.

    python -m benchmarks.training.beyond_memory --folder /nvme --json docs/results/training-tiers.json

Trains the Kaggle-size DLRM (13 numbers, 26 tables, 512-256-64-16, 512-256-1, dot) with Zipf 1.05 lookups,
batches of 4,096 rows, row-wise Adagrad and one torch thread. Four ways take turns, each in its own process. A
cgroup (needs root) limits its memory to the use before creating the tables plus --memory plus 512 MiB for a
step:

    memory     TableStage, with tables that fit --memory: an eighth of the rows
    tiers      the same model with eight times as many rows, the rows beyond --memory in a file
    mapped     TableStage over a mapped file of as many rows, and mapped accumulators
    advised    the same with madvise(MADV_RANDOM): the kernel reads no neighbors of a page

Rates are those of the second half of the steps. The first half fills the cache, and must read more than the
limit.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import re
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.command import answer_of, command_parser, save, today
from benchmarks.training.streamed import anonymous_bytes
from benchmarks.zipf import zipf_cdf
from polyrec.loadtest.machine import processor
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.dlrm.dlrm import DLRM, Architecture, dense_slots, initial_net
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.stage import PerBlock, Stage
from polyrec.models.embeddings.table import TableStage, initial_rows
from polyrec.models.schema.batch import F32, I64, Batch, Block
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.recipe import Recipe
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper
from polyrec.models.training.tiers.resident import ResidentRows
from polyrec.models.training.tiers.row_file import RowFile
from polyrec.models.training.tiers.row_tiers import divide_memory
from polyrec.models.training.tiers.stage import ResidentStage
from polyrec.models.training.tiers.undo_log import UndoLog

TABLES, DENSE, WIDTH, BATCH_ROWS, TIMES, ZIPF = 26, 13, 16, 4096, 8, 1.05
SHAPE = Architecture(width=WIDTH, bottom=(512, 256, 64), top=(512, 256), interaction="dot")
MIN_STEPS = 4
WAYS = ("memory", "tiers", "mapped", "advised")
ROOM_BYTES = 512 * 2**20
"""Memory for a step, besides the process's earlier memory and the rows."""
CGROUP = Path("/sys/fs/cgroup/memory")
RECORD_BYTES = 4 * (WIDTH + 1)
ROWS_FILE, SQUARES_FILE = "mapped.f32", "squares.f32"


@dataclass
class Generated:
    """Rows whose ranks lie in a mapped file. ranks: int32 [rows, tables]."""

    ranks: NDArray[np.int32]
    label: F32
    dense: F32
    group: I64 | None = None

    @classmethod
    def create(cls, file: Path, rows: int, table_rows: int) -> Generated:
        """Draws ranks by Zipf's law into `file`, unless it exists; labels and numbers are random."""
        if not file.exists():
            random = np.random.default_rng(1)
            cdf = zipf_cdf(table_rows, ZIPF)
            ranks = np.lib.format.open_memmap(file, "w+", np.int32, (rows, TABLES))
            for start in range(0, rows, BATCH_ROWS):
                drawn = random.random((min(BATCH_ROWS, rows - start), TABLES))
                ranks[start : start + len(drawn)] = np.searchsorted(cdf, drawn)
            ranks.flush()
        random = np.random.default_rng(0)
        label = (random.random(rows) < 0.25).astype(np.float32)
        dense = random.normal(size=(BATCH_ROWS, DENSE)).astype(np.float32)
        return cls(np.load(file, mmap_mode="r"), label, dense)

    def batch(self, rows: I64) -> Batch:
        none = np.zeros(1, np.int64)
        context = Block(
            np.zeros((rows.size, 0), np.float32), np.zeros((rows.size, 0), np.int64), none[:0], none
        )
        ranks = self.ranks[rows].astype(np.int64)
        return Batch(context, Block(self.dense[: rows.size], ranks, none[:0], none))


class InOrder:
    """Windows of one batch each, in order."""

    def __init__(self, data: Generated, batch_rows: int) -> None:
        self.data, self.size, self.base_rate = data, len(data.label), 0.25
        self._batch_rows = batch_rows

    def windows(self, first: int = 0) -> Iterator[Rows]:
        for start in range(first * self._batch_rows, self.size, self._batch_rows):
            yield Rows(self.data, np.arange(start, min(start + self._batch_rows, self.size)))


def read_bytes() -> int:
    """Returns the bytes that this process has read from disk, including mapped pages."""
    found = re.search(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def limited(own: Path | None, memory: int) -> int:
    """Limits the process's cgroup to its current use plus `memory` and a step's memory; returns the limit."""
    limit = anonymous_bytes() + memory + ROOM_BYTES
    if own is not None:
        (own / "memory.limit_in_bytes").write_text(str(limit))
    return limit


def mapped(file: Path, count: int, advised: bool) -> torch.Tensor:
    """Maps a file of `count` float32 numbers. advised: whether the kernel is told that access is random."""
    found = torch.from_file(str(file), shared=True, size=count, dtype=torch.float32)
    if advised:
        libc = ctypes.CDLL(None, use_errno=True)
        address, length = ctypes.c_void_p(found.data_ptr()), ctypes.c_size_t(4 * count)
        if libc.madvise(address, length, mmap.MADV_RANDOM):
            raise OSError(ctypes.get_errno(), "madvise")
    return found


def write_mapped(folder: Path, fused: FusedRows) -> None:
    """Writes the files of a mapped table, rows and squares, and drops them from the page cache."""
    with (folder / ROWS_FILE).open("wb") as f:
        for part in initial_rows(fused, WIDTH, 0):
            f.write(part.numpy().data)
        f.flush()
        os.fdatasync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with (folder / SQUARES_FILE).open("wb") as f:
        f.truncate(4 * fused.total)


def resident_rows(folder: Path, fused: FusedRows, memory: int) -> ResidentRows:
    """Opens the rows of the tiers. memory: bytes for rows, optimizer state and index."""
    division = divide_memory(memory, fused.total, RECORD_BYTES)
    log = UndoLog(RowFile(folder / "tiers.rows", fused.total, WIDTH, 1, division.buffer_bytes))
    # all tables have as many rows and lookups
    cuts = dict.fromkeys(fused.tables, division.prefix // TABLES)
    return ResidentRows(
        fused, cuts, division.slots, log, lambda: (p.numpy() for p in initial_rows(fused, WIDTH, 0))
    )


def timed(stepper: Stepper, batch_rows: int, max_s: float) -> dict[str, Any]:
    """Takes all steps, or those of max_s seconds; returns figures of their second half."""
    begin, before = time.perf_counter(), read_bytes()
    ends, losses, cpu, read = [], [], [], []
    for step in stepper:
        ends.append(time.perf_counter() - begin)
        cpu.append(time.process_time())
        losses.append(step.loss)
        read.append(read_bytes() - before)
        if ends[-1] > max_s and len(ends) >= MIN_STEPS:
            break
    half = len(ends) // 2
    return {
        "rows_per_s": batch_rows * (len(ends) - 1 - half) / (ends[-1] - ends[half]),
        "cpu_per_s": (cpu[-1] - cpu[half]) / (ends[-1] - ends[half]),
        "steps": len(ends),
        "read_bytes_before": read[half],
        "read_bytes_per_step": (read[-1] - read[half]) // (len(ends) - 1 - half),
        "loss": float(np.mean(losses[-20:])),
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Trains in one way; returns figures."""
    way, folder, memory, batch_rows = args.way, args.folder, args.memory, args.batch_rows
    is_mapped = way in ("mapped", "advised")
    torch.set_num_threads(1)
    retain_freed_memory()
    schema = load_schema("criteo")
    total = memory // (RECORD_BYTES + 1) * (1 if way == "memory" else TIMES)
    table_rows = total // TABLES
    ranks = folder / f"ranks-{table_rows}-{args.steps}.npy"
    data = Generated.create(ranks, args.steps * batch_rows, table_rows)
    sizes = dict.fromkeys(schema.tables, table_rows)
    slots = PerBlock(0, TABLES)
    torch.manual_seed(0)
    net = initial_net(SHAPE, dense_slots(schema), slots)
    fused = FusedRows(schema, sizes)
    if is_mapped:
        write_mapped(folder, fused)
    limit = limited(args.cgroup, memory)
    stage: Stage
    resident = None
    if is_mapped:
        weight = mapped(folder / ROWS_FILE, fused.total * WIDTH, way == "advised")
        stage = TableStage(schema, sizes, weight.view(-1, WIDTH))
    elif way == "tiers":
        resident = resident_rows(folder, fused, memory)
        stage = ResidentStage(fused, slots, resident)
    else:
        stage = TableStage.initial(schema, sizes, WIDTH, 0)
    recipe = Recipe(batch_rows=batch_rows, by_request=False, hide=0.0, precision=args.precision)
    stepper = Stepper(DLRM(stage, net), InOrder(data, batch_rows), recipe, args.steps)
    if is_mapped:
        (squares,) = stepper._sparse.accumulators()
        accumulators = mapped(folder / SQUARES_FILE, fused.total, way == "advised")
        squares.set_(accumulators)  # type: ignore[call-overload]
    found = {"way": way, "batch_rows": batch_rows, "precision": args.precision}
    found |= timed(stepper, batch_rows, args.max_s)
    found |= {
        "table_rows": fused.total,
        "limit_bytes": limit if args.cgroup else None,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if resident is not None:
        begin = time.perf_counter()
        resident.snapshot()
        found["snapshot_s"] = time.perf_counter() - begin
        resident.log.remove()
    for file in (ROWS_FILE, SQUARES_FILE):
        (folder / file).unlink(missing_ok=True)
    return found


def in_process(way: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs one way in a separate process with its own cgroup."""
    own = CGROUP / f"polyrec-{os.getpid()}-{way}"
    limits = os.access(CGROUP, os.W_OK) and not args.unlimited
    if limits:
        own.mkdir()
    command = [sys.executable, "-m", "benchmarks.training.beyond_memory", "--folder", str(folder)]
    command += ["--way", way, "--memory", str(args.memory), "--steps", str(args.steps)]
    command += ["--precision", args.precision, "--max-s", str(args.max_s)]
    command += ["--batch-rows", str(args.batch_rows)]
    command += [*(["--cgroup", str(own)] if limits else [])]
    try:
        found: dict[str, Any] = answer_of(command)
    finally:
        if limits:
            own.rmdir()
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="on a real disk")
    parser.add_argument("--memory", type=int, default=512_000_000, help="bytes for rows")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS)
    parser.add_argument("--max-s", type=float, default=100.0, help="of one run")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--unlimited", action="store_true", help="without a cgroup")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--cgroup", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        if args.cgroup:
            (args.cgroup / "cgroup.procs").write_text(str(os.getpid()))
        print(json.dumps(run(args)))
        return
    folder = args.folder / "polyrec-beyond-memory"
    folder.mkdir(exist_ok=True)
    try:
        runs = [in_process(way, args, folder) for _ in range(args.rounds) for way in args.ways]
    finally:
        shutil.rmtree(folder)
    rates = {w: statistics.median(r["rows_per_s"] for r in runs if r["way"] == w) for w in args.ways}
    for way, rate in rates.items():
        print(f"{way:8} {rate:10,.0f} rows/s")
    if args.json:
        result = {"machine": processor(), "date": today(), "runs": runs}
        save(args.json, {**result, "rows_per_s": rates})


if __name__ == "__main__":
    main()
