"""Measures updated rows per second, with and without the log on disk, in turns.

python -m benchmarks.operations.update_log --folder /var/tmp

Threads apply updates of rows x 64 (fp32, Zipf ids out of 1 M) to `Changes` without tiers. Prints the medians
of the turns and the ratio of each pair.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.command import command_parser
from polyrec.loadtest.machine import processor
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.update import StoredTableUpdate, StoredUpdate
from polyrec.models.tiers.updates.update_log import UpdateLog

ROWS, ROW_BYTES = 1_000_000, 256


def rate(folder: Path, logged: bool, threads: int, rows: int, seconds: float) -> tuple[float, float]:
    """Returns (rows per second, median milliseconds per update)."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        changes = Changes(Path(own), UpdateLog(Path(own) / "u") if logged else None)
        # the memory of all rows is taken before the clock runs
        every = np.arange(ROWS)
        changes.apply(StoredUpdate({"t": StoredTableUpdate(every, np.zeros((ROWS, ROW_BYTES), np.uint8))}))
        end = time.monotonic() + seconds
        took: list[list[float]] = [[] for _ in range(threads)]

        def work(i: int) -> None:
            random = np.random.default_rng(i)
            values = random.integers(0, 256, (rows, ROW_BYTES), np.uint8)
            while time.monotonic() < end:
                ids = np.minimum(random.zipf(1.3, rows), ROWS) - 1
                begun = time.perf_counter()
                changes.apply(StoredUpdate({"t": StoredTableUpdate(ids, values)}))
                took[i].append(time.perf_counter() - begun)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        begun = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = time.monotonic() - begun
        changes.close()
        every_took = [t for of_thread in took for t in of_thread]
        return len(every_took) * rows / elapsed, 1e3 * median(every_took)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    print(f"{processor()}, {args.turns} turns of {args.seconds:g} s")
    print("| callers | rows an update | rows/s without | with the log | of it | ms an update, with the log |")
    print("|---|---|---|---|---|---|")
    for threads, rows in ((1, 1), (16, 1), (1, 100), (16, 100), (1, 1000)):
        found = [
            [rate(args.folder, logged, threads, rows, args.seconds) for logged in (False, True)]
            for _ in range(args.turns)
        ]
        without, logged = (median(turn[i][0] for turn in found) for i in range(2))
        share = median(turn[1][0] / turn[0][0] for turn in found)
        ms = median(turn[1][1] for turn in found)
        print(f"| {threads} | {rows} | {without:,.0f} | {logged:,.0f} | {share:.2f} | {ms:.2f} |", flush=True)


if __name__ == "__main__":
    main()
