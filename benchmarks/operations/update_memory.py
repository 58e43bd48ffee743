"""Measures the memory of a server that receives updates, new values and requests for a long time.

    python -m benchmarks.operations.update_memory --folder /var/tmp/memory --json memory.json

Model, plan and clients are those of benchmarks.operations.update_feed. Requests come at a low rate, so that
the run can stay in the background. Prints a line per minute: resident memory, private memory, threads, open
files by kind, and bytes of the log. The driver opens up to 1,024 connections while requests overlap, as after
a stall, and closes them before that line.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.command import command_parser, save
from benchmarks.operations.update_feed import STARTS_S, arrivals, bundle_in, load_run, settings_of
from benchmarks.operations.update_load import UpdateLoad, feed, new_values
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.machine import machine
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import open_source
from polyrec.server.child import start

CANDIDATES = 23
REQUESTS = 2000
NEW_EVERY_S = 0.5
CLOSING_S = 1.0
"""Seconds for the server to close the connections of a minute."""


def open_files(server: psutil.Process) -> dict[str, int]:
    """Returns the numbers of open sockets and of all other descriptors."""
    kinds = []
    for descriptor in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            kinds.append(os.readlink(descriptor).startswith("socket:"))
    return {"sockets": sum(kinds), "files": len(kinds) - sum(kinds)}


def memory_of(server: psutil.Process, log: Path) -> dict[str, Any]:
    """Returns a server's memory in megabytes, and other quantities that may grow."""
    full = server.memory_full_info()
    return {
        "rss_mb": round(full.rss / 1e6, 1),
        "own_mb": round(full.uss / 1e6, 1),
        "threads": server.num_threads(),
        **open_files(server),
        "log_mb": round(sum(f.stat().st_size for f in log.iterdir()) / 1e6, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the model, tiers and log; a disk")
    parser.add_argument("--minutes", type=int, default=60, help="(60)")
    parser.add_argument("--updates", type=float, default=10_000, help="rows a second (10,000)")
    parser.add_argument("--rate", type=float, default=30, help="requests a second (30)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    bundle = bundle_in(args.folder, 400_000, 100_000, 64)
    items = bundle.encoder.vocabularies["item"].size - 10_000
    settings = settings_of(bundle, args.folder, "thread")
    source = open_source(None, bundle, 1)
    _, body = source.sampled(np.full(REQUESTS, CANDIDATES), 0)
    _, one = source.sampled(np.full(1, 1), 0)
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    found: list[dict[str, Any]] = []
    new: list[float] = []
    with start(settings, lifeline=True) as server:
        process = psutil.Process(server.process.pid)
        target = Target(server.url + RANK, {"Content-Type": "application/json"})
        requests = [target.request(body(i), {}) for i in range(REQUESTS)]
        seconds = 60.0 * args.minutes
        begins = time.monotonic() + STARTS_S
        updates = UpdateLoad(server.url, items, 64, args.updates, [begins], seconds)
        feeder = spawn.Process(target=feed, args=(updates, said))
        feeder.start()
        said.get()
        time.sleep(max(begins - time.monotonic(), 0))
        times = np.arange(begins, begins + seconds, NEW_EVERY_S)
        adder = threading.Thread(target=new_values, args=(server.url, json.loads(one(0)), 64, times, new))
        adder.start()
        for minute in range(args.minutes):
            outcome = load_run(target, requests, arrivals([args.rate], 60.0), CANDIDATES)
            time.sleep(CLOSING_S)
            each = {
                "minute": minute + 1,
                "requests": outcome.status.size,
                "failed": int((outcome.status != 200).sum()),
                **memory_of(process, settings["update_log"]),
                "new_values": len(new),
            }
            found.append(each)
            print(json.dumps(each), flush=True)
        adder.join()
        rows, _ = said.get()
        feeder.join()
    print(f"{rows:,} rows and {len(new):,} new values")
    if args.json:
        whole = {"machine": machine(), "cores": os.cpu_count(), "rows": rows, "new_values": len(new)}
        save(args.json, whole | {"minutes": found})


if __name__ == "__main__":
    main()
