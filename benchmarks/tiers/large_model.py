"""A model of 20 GB served with 2.5 GB of host memory: tiers against all in memory, and against plain mmap.

    python -m benchmarks.tiers.large_model --json docs/results/tiers.json

Writes the model (5 large tables and 21 small ones, rows of 64 floats) to --file, runs each case in a process
of its own under a memory limit (a cgroup, which counts the page cache too; needs root, else it says that
there was none), and removes the file. A case looks batches of queries up and runs the dense net on them, one
thread, closed loop: rows/s is of both, p99 of one batch. All in memory is a smaller copy, its large tables
cut down to what the budget holds. The tiers' file is read past the page cache, by direct reads. Turns go
round all cases; of a case's turns the one with the median rows/s is told, and the rows/s of all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.tiers.generated_model import CHUNK, LARGE, ROW_BYTES, model, rows, write

PROCESS_BYTES = 900 << 20
"""Memory of a process beside rows: the interpreter, libraries, queries."""


def limited(bytes_: int) -> Path | None:
    """A cgroup with that much memory, inside this process's own; None where it cannot be made."""
    try:
        own = next(
            line.split(":", 2)[2].strip()
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.split(":")[1] == "memory"
        )
        folder = Path("/sys/fs/cgroup/memory" + own) / f"polyrec-tiers-{os.getpid()}"
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(bytes_))
    except (OSError, StopIteration):
        return None
    return folder


def one(case: dict[str, Any], limit: int | None) -> dict[str, Any]:
    folder = limited(limit) if limit else None
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.tiers.large_model_case",
                json.dumps(case | {"cgroup": str(folder or "")}),
            ],
            stdout=subprocess.PIPE,
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        result: dict[str, Any] = json.loads(done.stdout)
        result["memory_limit_bytes"] = limit if folder else None
        return result
    finally:
        if folder:
            folder.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file", type=Path, default=Path("runs/tiers/model.rows"))
    parser.add_argument("--large-rows", type=int, default=16_000_000, help="rows of each large table")
    parser.add_argument("--budget", type=int, default=int(2.5e9), help="bytes of host memory for rows")
    parser.add_argument("--cache", type=int, default=int(0.1e9), help="of which the page cache has")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured for each case, at most")
    parser.add_argument("--batches", type=int, default=2000, help="queried at most, none twice")
    parser.add_argument("--batch-rows", type=int, default=256)
    parser.add_argument("--exponents", type=float, nargs="+", default=[1.0, 1.2])
    parser.add_argument(
        "--first", action="store_true", help="measure before all others: nice -19 (needs root)"
    )
    parser.add_argument(
        "--core", type=int, help="of the lane; best one that has no interrupts of the disk (/proc/interrupts)"
    )
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--keep", action="store_true", help="leave the file, and use it if it is there")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    whole = model(args.large_rows)
    total = sum(whole.tables.values())
    args.file.parent.mkdir(parents=True, exist_ok=True)
    if not (args.keep and args.file.exists()):
        parts = (rows(start, min(CHUNK, total - start)) for start in range(0, total, CHUNK))
        with tqdm(total=total * ROW_BYTES, unit="B", unit_scale=True, desc="model") as progress:
            write(args.file, parts, progress)
    small = int(args.budget // (LARGE * ROW_BYTES)) // 16 * 16 - 64_000
    base = {"batch_rows": args.batch_rows, "seconds": args.seconds, "budget": args.budget}
    base |= {"first": args.first, "core": args.core}
    disk = base | {"file": str(args.file), "large_rows": args.large_rows, "batches": args.batches}
    memory = base | {"kind": "memory", "large_rows": small, "batches": args.batches}
    tiers = disk | {"kind": "tiers", "cache": args.cache}
    limit = args.budget + PROCESS_BYTES
    cases: list[tuple[str, dict[str, Any], int | None]] = []
    for exponent in args.exponents:
        own = {"exponent": exponent}
        cases += [
            (f"zipf {exponent}: all in memory, smaller copy", memory | own, None),
            (f"zipf {exponent}: tiers, prefetch", tiers | own | {"prefetch": "lane"}, limit),
            (f"zipf {exponent}: tiers, prefetch by a thread", tiers | own | {"prefetch": "thread"}, limit),
            (f"zipf {exponent}: tiers, no prefetch", tiers | own, limit),
            (f"zipf {exponent}: plain mmap", disk | own | {"kind": "mmap", "advice": "none"}, limit),
            (f"zipf {exponent}: mmap, MADV_RANDOM", disk | own | {"kind": "mmap", "advice": "random"}, limit),
        ]
    cold = {"exponent": 1.0, "cold": args.budget // (LARGE * ROW_BYTES), "batches": 600}
    cases += [
        ("cold pages: tiers, prefetch", tiers | cold | {"prefetch": "lane"}, limit),
        ("cold pages: tiers, no prefetch", tiers | cold, limit),
        (
            "cold pages: tiers, prefetch, threads",
            tiers | cold | {"prefetch": "lane", "reader": "threads"},
            limit,
        ),
        ("cold pages: plain mmap", disk | cold | {"kind": "mmap", "advice": "none"}, limit),
        ("cold pages: mmap, MADV_RANDOM", disk | cold | {"kind": "mmap", "advice": "random"}, limit),
    ]
    head = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "model_bytes": total * ROW_BYTES,
        "budget_bytes": args.budget,
        "cache_bytes": args.cache,
        "batch_rows": args.batch_rows,
    }
    cases = [case for case in cases if args.only in case[0]]
    found: dict[str, Any] = {}
    if args.only and args.json and args.json.exists():
        found = json.loads(args.json.read_text())["cases"]
    try:
        turns: dict[str, list[dict[str, Any]]] = {}
        for name, case, at_most in tqdm(cases * args.turns):
            result = one(case, at_most)
            own_turns = sorted([*turns.get(name, []), result], key=lambda r: float(r["rows_per_s"]))
            turns[name] = own_turns
            found[name] = own_turns[len(own_turns) // 2] | {
                "turns_rows_per_s": [r["rows_per_s"] for r in own_turns]
            }
            if args.json:
                args.json.write_text(json.dumps(head | {"cases": found}, indent=2) + "\n")
            tqdm.write(
                f"{name:<44} {result['rows_per_s']:>9,.0f} rows/s  "
                f"embed alone {result['embed_rows_per_s']:>10,.0f}  "
                f"p50 {result['p50_ms']:7.2f}  p99 {result['p99_ms']:7.2f} ms  "
                f"cpu {result['cpu_ms_a_batch']:6.2f} ms a batch"
            )
    finally:
        if not args.keep:
            args.file.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
