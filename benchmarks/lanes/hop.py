"""Measures the time of a batch's hop to a lane and back, for every kind of lane.

    chrt -r 1 python -m benchmarks.lanes.hop --bundle DIR --data FILE --json

The hop is the time from `execute` to `settle` on the event loop, minus the two stages as the lane timed them.
It consists of writing the batch, waking the lane, waking the loop and reading the answer. `busy`: each batch
follows the previous answer immediately. `idle`: after a pause in which cores sleep and caches are evicted.
The loop has one core; a lane has another or shares it. Kinds take turns of a few batches, so that noise
affects all of them. `bare` is the system's own part: two processes wake each other, one works for 150 us,
without a batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import uvloop
from tqdm import tqdm

from benchmarks.command import CLIENT_CORE, SERVER_CORE, command_parser
from polyrec.loadtest.machine import processor
from polyrec.loadtest.traffic.queries import read_rows
from polyrec.measure.lane_hop import hops
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.schema.batch import F32, Batch
from polyrec.planner.plan import LaneKind, PlannedLane, PlannedPath
from polyrec.server.lanes.lane import Executed, Lane, Settle
from polyrec.server.lanes.opening import LaneOpening

ROWS = (1, 23, 270)
PAUSES_S = {"busy": 0.0, "idle 2 ms": 0.002, "idle 20 ms": 0.02}
COUNTS = {"busy": 60, "idle 2 ms": 30, "idle 20 ms": 12}
WARM = 2
"""Batches at the start of each turn that are not counted, because other work has used the lane's caches."""
BATCHES = 64
PATH = "path"
BARE_S = 150e-6
BARE = """
import os, sys, time
wake, done, core, work_s = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
os.sched_setaffinity(0, {core})
while os.eventfd_read(wake) == 1:
    until = time.perf_counter() + work_s
    while time.perf_counter() < until:
        pass
    os.eventfd_write(done, 1)
"""


@dataclass(frozen=True, slots=True)
class Hop:
    """Results of one kind at one size. executed_us: median of the two stages together."""

    lane: str
    rows: int
    load: str
    batches: int
    p50_us: float
    p99_us: float
    executed_us: float


class Bare:
    """Measures two eventfds and a process that only spins."""

    name, alive, pid = "bare", True, None
    kind: LaneKind = "process"

    def __init__(self, core: int) -> None:
        self._wake, self._done = os.eventfd(0), os.eventfd(0)
        fds = self._wake, self._done
        words = [*fds, core, BARE_S]
        self._process = subprocess.Popen([sys.executable, "-c", BARE, *map(str, words)], pass_fds=fds)
        self._settle: Settle | None = None
        self._attached = False

    def attach(self) -> None:
        if not self._attached:
            asyncio.get_running_loop().add_reader(self._done, self._heard)
            self._attached = True

    def _heard(self) -> None:
        os.eventfd_read(self._done)
        assert self._settle is not None
        self._settle(Executed(np.empty(0, np.float32), 0.0, BARE_S))

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        self._settle = settle
        os.eventfd_write(self._wake, 1)

    async def restart(self) -> None:
        return

    def close(self) -> None:
        os.eventfd_write(self._wake, 2)
        self._process.wait()


Open = Callable[[PlannedPath, Bundle], Lane]


def opens(kind: str, *cores: int) -> Open:
    """Opens a lane of a kind on some cores."""
    planned = PlannedLane.model_validate({"name": kind, "kind": kind, "cores": cores})
    return lambda path, bundle: LaneOpening(planned, [(path, bundle)], _died).open()


def _died(lane: Lane) -> None:
    raise RuntimeError(f"the process of lane '{lane.name}' ended")


LANES: dict[str, Open] = {
    "inline": opens("inline"),
    "thread, loop's core": opens("thread", SERVER_CORE),
    "thread, own core": opens("thread", CLIENT_CORE),
    "process, loop's core": opens("process", SERVER_CORE),
    "process, own core": opens("process", CLIENT_CORE),
    "bare, loop's core": lambda _path, _bundle: Bare(SERVER_CORE),
    "bare, own core": lambda _path, _bundle: Bare(CLIENT_CORE),
}


def batches_of(bundle: Bundle, data: Path, rows: int) -> list[Batch]:
    """Returns ranking batches: one context and the candidates of `rows` consecutive rows."""
    table = read_rows(data, bundle.manifest.schema_, BATCHES * rows).combine_chunks()
    everything = bundle.encoder.from_arrow(table.to_batches()[0])
    found = []
    for i in range(BATCHES):
        own = (np.arange(rows) + i * rows) % table.num_rows
        context, candidate = everything.context.take(own[:1]), everything.candidate.take(own)
        found.append(Batch(context, candidate, np.zeros(rows, np.int64)))
    return found


def measure(bundle: Bundle, data: Path, runtime: str, rounds: int) -> list[Hop]:
    """Measures every kind, size and load in turns."""
    path = PlannedPath.model_validate({"name": PATH, "bundle": bundle.path, "runtime": runtime})
    batches = {rows: batches_of(bundle, data, rows) for rows in ROWS}
    seen: dict[tuple[str, int, str], list[F32]] = {}
    with ExitStack() as opened, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        lanes = {name: opening(path, bundle) for name, opening in LANES.items()}
        for lane in lanes.values():
            opened.callback(lane.close)
        for _ in tqdm(range(rounds), "rounds", leave=False):
            for load, pause_s in PAUSES_S.items():
                for rows in ROWS:
                    for name, lane in lanes.items():
                        got = runner.run(hops(lane, PATH, batches[rows], COUNTS[load], pause_s))
                        seen.setdefault((name, rows, load), []).append(np.array(got[WARM:], np.float32))
    found = []
    for (name, rows, load), turns in seen.items():
        hop, executed = np.concatenate(turns).T * 1e6
        p50, p99, middle = np.quantile(hop, 0.5), np.quantile(hop, 0.99), np.median(executed)
        figures = (round(float(x), 1) for x in (p50, p99, middle))
        found.append(Hop(name, rows, load, hop.size, *figures))
    return found


def table(hops_: Sequence[Hop]) -> str:
    """Formats the results as a table."""
    lines = [f"{'lane':<24}{'rows':>5}  {'load':<11}{'p50 us':>8}{'p99 us':>9}{'executed us':>13}"]
    for h in sorted(hops_, key=lambda h: (h.load, h.rows)):
        lines.append(
            f"{h.lane:<24}{h.rows:>5}  {h.load:<11}{h.p50_us:>8.1f}{h.p99_us:>9.1f}{h.executed_us:>13.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="Parquet file whose rows are asked about")
    parser.add_argument("--runtime", default="onnx", choices=["torch", "onnx"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    retain_freed_memory()
    bundle = load_bundle(args.bundle)
    os.sched_setaffinity(0, {SERVER_CORE})
    found = measure(bundle, args.data, args.runtime, args.rounds)
    if args.json:
        print(json.dumps({"machine": processor(), "hop": [asdict(h) for h in found]}, indent=2))
    else:
        print(processor(), table(found), sep="\n")


if __name__ == "__main__":
    main()
