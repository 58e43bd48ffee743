"""Runs the worker process that opens one path and measures its memory and latency.

    {"do": "open", "bundle": ..., "runtime": ..., "device": ..., "precision": ..., "width": ...,
     "largest": rows, "tiers": settings or null}
        -> {"startup_s": ..., "peak_bytes": ..., "tiers": ...}
    {"do": "measure", "rows": n, "batches": most, "seconds": most, "evict": bytes}
        -> {"seconds": [...], "batch_s": ..., "executed": ...}
    {"do": "measure_tiers", "rows": n, "batches": most, "seconds": most, "ahead": whether to read ahead}
        -> {"seconds": [...], "lookups": ..., "below": ..., "reads": ..., "remote": ...}

Commands and answers are one JSON object per line, on stdin and stdout. A separate process isolates the memory
figures and libraries of paths, and lets the parent alternate between open paths. It times what a lane
executes: encode, embed and the dense net.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from polyrec.measure.profile.requests import Columns, Requests
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.errors import PolyrecError
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.registry import why_unusable
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers, prefetch
from polyrec.models.tiers.tier_settings import TierSettings

clock = time.perf_counter
WARM_BATCHES = 2
AHEAD = 2
"""Batches between the start of a batch's reads and its lookups: those that wait in a queue."""


class PathUnderTest:
    """An open path.

    startup_s: time to load and check the bundle, open the runtime and execute its first batches, without
    loading libraries.
    peak_bytes: device memory beyond rows, decoders and net while executing the largest batch: vocabulary,
    runtime, activations.
    """

    def __init__(self, command: dict[str, Any]) -> None:
        device = command["device"]
        # load libraries and execute once, so that their memory and time do not count for the path
        why_unusable(command["runtime"], device)
        pa.array(["a"]).take(pa.array([0]))
        before = _free(device) if device != "cpu" else _status("RssAnon")
        start = clock()
        self.bundle: Bundle = load_bundle(command["bundle"]).at_width(command["width"])
        self.bundle.encoder.prepare()
        self.stack: TierStack | None = None
        if command["tiers"] is not None:
            settings = TierSettings.model_validate(command["tiers"])
            self.stack = open_tiers(self.bundle, settings, device, self.bundle.encoder)
        self.runtime: Runtime = open_runtime(
            command["runtime"], self.bundle, device, command["precision"], self.stack
        )
        self.startup_s = clock() - start
        loaded = _status("RssAnon")
        self._drawn = Requests(
            self.bundle.encoder,
            np.random.default_rng(command["seed"]),
            self.bundle.manifest.counted_rows,
        )
        first = [(self._drawn.request(rows), rows) for rows in (1, 64, command["largest"])]
        start = clock()
        peak = _peak_of(lambda: [self._predict(*r, rows) for r, rows in first[:2]])
        self.startup_s += clock() - start
        peak = max(peak, _peak_of(lambda: self._predict(*first[2][0], first[2][1])))
        own = self.bundle.bytes if device != "cpu" else _copied(self.bundle)
        grown = before - _free(device) if device != "cpu" else loaded - before + peak
        self.peak_bytes = max(0, grown - own)
        self._wiper = np.zeros(0, np.uint8)
        # like the server, exclude loaded objects from garbage collection
        gc.collect()
        gc.freeze()

    def measure(self, rows: int, batches: int, seconds: float, evict: int) -> dict[str, Any]:
        """Times up to `batches` different batches of `rows` rows, at least one, within `seconds`.

        evict: bytes to write before each batch, to evict the path from the caches; 0: none. Returns `seconds`
        of each batch, `batch_s`, the median including overhead, and `executed`, the share of time in which
        this process had a core.
        """
        if evict > self._wiper.size:
            self._wiper = np.zeros(evict, np.uint8)
        began = clock()
        unmeasured = 0
        while not evict and unmeasured < WARM_BATCHES and clock() - began < seconds / 4:
            self._execute(rows)
            unmeasured += 1
        taken: list[float] = []
        whole: list[float] = []
        start, own = clock(), time.process_time()
        while len(taken) < batches and (not taken or clock() - began < seconds):
            drawn = clock()
            taken.append(self._execute(rows, evict))
            whole.append(clock() - drawn)
        executed = (time.process_time() - own) / max(clock() - start, 1e-9)
        return {"seconds": taken, "batch_s": statistics.median(whole), "executed": executed}

    def measure_tiers(self, rows: int, batches: int, seconds: float, ahead: bool) -> dict[str, Any]:
        """Times batches like `measure`, over tiers if the path has any.

        ahead: starts a batch's reads AHEAD batches before its lookups, within that earlier batch's time.
        Also returns means per batch, see polyrec.planner.tier_times.
        """
        began = clock()
        waiting = deque(self._drawn.request(rows) for _ in range(AHEAD))
        for _ in range(WARM_BATCHES):
            self._with_reads(waiting, rows, ahead)
        before = self._counted()
        taken: list[float] = []
        while len(taken) < batches and (not taken or clock() - began < seconds):
            taken.append(self._with_reads(waiting, rows, ahead))
        counts = {k: (n - before[k]) / len(taken) for k, n in self._counted().items()}
        return {"seconds": taken, **counts}

    def _with_reads(self, waiting: deque[tuple[Columns, Columns]], rows: int, ahead: bool) -> float:
        """Executes the first of the waiting batches after adding one; returns the seconds."""
        request = self._drawn.request(rows)
        waiting.append(request)
        reading_s = 0.0
        if ahead:
            # a server encodes a query only once, when it looks for its rows
            batch = self._drawn.encode(*request, rows)
            start = clock()
            prefetch(self.runtime.stage, batch)
            reading_s = clock() - start
        return reading_s + self._predict(*waiting.popleft(), rows)

    def _counted(self) -> dict[str, int]:
        """Returns the counters of the tiers since they were opened."""
        if self.stack is None:
            return dict.fromkeys(("lookups", "below", "reads", "remote"), 0)
        figures = self.stack.figures()
        levels = figures.levels
        read = levels["disk"].bytes // self.stack.tiers.slab.page_bytes
        return {
            "lookups": levels["device"].lookups,
            "below": levels["cache"].lookups,
            "reads": read + figures.prefetched_pages,
            "remote": levels["remote"].lookups,
        }

    def tiers(self) -> dict[str, Any] | None:
        """Describes the open tiers."""
        if self.stack is None:
            return None
        tiers = self.stack.tiers
        reader = "" if tiers.disk is None else tiers.disk.reader
        return {
            "row_bytes": tiers.row_format.bytes,
            "page_bytes": tiers.slab.page_bytes,
            "reader": reader,
            "host_bytes": tiers.host_bytes,
        }

    def _execute(self, rows: int, evict: int = 0) -> float:
        request = self._drawn.request(rows)
        if evict:
            wiper = self._wiper[:evict]
            np.add(wiper, 1, out=wiper)
        return self._predict(*request, rows)

    def _predict(self, context: Columns, candidates: Columns, rows: int) -> float:
        start = clock()
        batch: Batch = self._drawn.encode(context, candidates, rows)
        self.runtime.dense(self.runtime.embed(batch))
        return clock() - start


def _copied(bundle: Bundle) -> int:
    """Returns the bytes of the net, which a CPU runtime copies, whereas rows and decoders are mapped."""
    return sum(p.numel() * p.element_size() for p in bundle.net().parameters())


def _peak_of(work: Any) -> int:
    """Returns the peak growth of resident memory, in bytes, while `work` runs."""
    before = _status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:
        work()
        return max(0, _status("VmRSS") - before)
    work()
    return max(0, _status("VmHWM") - before)


def _status(key: str) -> int:
    """Returns one line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _free(device: str) -> int:
    """Returns the free bytes of a CUDA device from its driver, which includes all libraries."""
    import torch

    index = int(device.partition(":")[2] or 0)
    torch.cuda.synchronize(index)
    return int(torch.cuda.mem_get_info(index)[0])


def main() -> int:
    """Answers commands until stdin ends."""
    import torch

    torch.set_num_threads(1)
    retain_freed_memory()
    # output of libraries must not mix with answers
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    opened: PathUnderTest | None = None
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            answer: dict[str, Any]
            if do == "open":
                opened = PathUnderTest(command)
                answer = {
                    "startup_s": opened.startup_s,
                    "peak_bytes": opened.peak_bytes,
                    "tiers": opened.tiers(),
                }
            elif do == "measure_tiers":
                assert opened is not None
                answer = opened.measure_tiers(**command)
            else:
                assert opened is not None
                answer = opened.measure(**command)
        except PolyrecError as e:
            answer = {"error": str(e)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"}
        try:
            answers.write(f"{json.dumps(answer)}\n".encode())
        except BrokenPipeError:
            return 0  # the process that asked was killed
    return 0


if __name__ == "__main__":
    sys.exit(main())
