"""Measures candidates: opens each in a worker, times it, logs every sample, and fits its latency model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.measure.profile.candidates import Candidate, path_memory
from polyrec.measure.profile.fit import SizeSamples, fit, fit_error, points
from polyrec.measure.profile.log import SampleLog
from polyrec.measure.profile.process import MeasureError, Worker
from polyrec.measure.profile.quality import PathQuality
from polyrec.measure.profile.schedule import ROUNDS, Block, blocks, evicted_sizes, ladder
from polyrec.planner.profile import PathProfile

OPEN_AT_ONCE = 16
"""Maximum open paths: each process takes some hundred megabytes for libraries."""
OPENING = 0.1
"""Share of opening in the progress bar."""
SCOUT_ROWS = (1, 64)
SCOUT_BATCHES = 9
MIN_EVICT_BYTES = 8 * 2**20
MAX_EVICT_BYTES = 256 * 2**20
REST_SHARE = 0.08
"""Share of a block's time to sleep after it under real-time scheduling: Linux stops a process that never
sleeps there for 50 ms per second (sched_rt_runtime_us), which would be measured."""

Advance = Callable[[float, str], object]
"""Called with (share done, current step)."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Settings of a profile.

    largest: rows of the largest batch.
    seconds: measuring time per path with warm caches; batches with empty caches take a seventh more.
    evict_bytes: bytes to write to empty the caches.
    """

    largest: int
    seconds: float
    evict_bytes: int
    seed: int = 0


def eviction_bytes(last_level: int) -> int:
    """Returns the bytes to write to empty the caches: twice the last-level cache, within limits."""
    return min(max(2 * last_level, MIN_EVICT_BYTES), MAX_EVICT_BYTES)


def measure(
    found: Sequence[Candidate], settings: ProfileSettings, log: SampleLog, advance: Advance, folder: Path
) -> tuple[list[Candidate], list[str]]:
    """Measures everything that is not in the log yet.

    folder: folder that the candidates' bundle paths are relative to. Returns the candidates that could be
    measured and, for each of the others, a line with the reason. Raises MeasureError if a worker fails.
    """
    opened: list[Candidate] = []
    unusable: list[str] = []
    for first in range(0, len(found), OPEN_AT_ONCE):
        group = found[first : first + OPEN_AT_ONCE]
        before, share = first / len(found), len(group) / len(found)

        def within(done: float, what: str, before: float = before, share: float = share) -> None:
            advance(before + share * done, what)

        measured, failures = _group(group, settings, log, within, folder)
        opened += measured
        unusable += failures
    advance(1.0, "done")
    return opened, unusable


def _group(
    found: Sequence[Candidate], settings: ProfileSettings, log: SampleLog, advance: Advance, folder: Path
) -> tuple[list[Candidate], list[str]]:
    """Measures candidates that are open at the same time, interleaved."""
    unusable: list[str] = []
    scouted: dict[str, dict[int, float]] = {}
    opened: dict[str, Candidate] = {}
    rest = REST_SHARE if _has_real_time_priority() else 0.0
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}

        def worker(candidate: Candidate) -> Worker:
            if candidate.name not in workers:
                path = candidate.path.model_copy(update={"bundle": folder / candidate.path.bundle})
                new = stack.enter_context(Worker(path))
                answer = new.open(settings.largest, settings.seed)
                workers[candidate.name] = new
                if log.get(candidate.name, candidate.identity, "opened") is None:
                    log.add(candidate.name, candidate.identity, "opened", answer)
            return workers[candidate.name]

        for i, candidate in enumerate(found):
            advance(OPENING * i / len(found), f"open {candidate.name}")
            try:
                scouted[candidate.name] = _scouted(candidate, settings, log, worker)
                opened[candidate.name] = candidate
            except MeasureError as e:
                unusable.append(str(e))
        order = blocks(scouted, settings.largest, settings.seconds, settings.seed)
        for i, block in enumerate(order):
            advance(OPENING + (1 - OPENING) * i / len(order), f"{block.path} {block.rows}")
            candidate = opened[block.path]
            if log.get(block.path, candidate.identity, block.key) is None:
                answer = _timed(worker(candidate), block, settings, scouted[block.path])
                kept = {"seconds": answer["seconds"], "executed": answer["executed"]}
                log.add(block.path, candidate.identity, block.key, kept)
                time.sleep(rest * sum(answer["seconds"]))
    return list(opened.values()), unusable


def _has_real_time_priority() -> bool:
    known = hasattr(os, "sched_getscheduler")
    return known and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def _scouted(
    candidate: Candidate, settings: ProfileSettings, log: SampleLog, worker: Callable[[Candidate], Worker]
) -> dict[int, float]:
    """Measures a few sizes to plan the schedule: rows -> seconds per batch, including drawing it."""
    known = log.get(candidate.name, candidate.identity, "scouted")
    if known is None or log.get(candidate.name, candidate.identity, "opened") is None:
        opened = worker(candidate)
        known = {}
        for rows in sorted({*(r for r in SCOUT_ROWS if r < settings.largest), settings.largest}):
            answer = opened.measure(rows, SCOUT_BATCHES, settings.seconds / 20)
            known[str(rows)] = answer["batch_s"]
        log.add(candidate.name, candidate.identity, "scouted", known)
    return {int(rows): float(s) for rows, s in known.items()}


def _timed(
    worker: Worker, block: Block, settings: ProfileSettings, scouted: Mapping[int, float]
) -> dict[str, Any]:
    at = sorted(scouted)
    expected = block.batches * float(np.interp(block.rows, at, [scouted[r] for r in at]))
    # at most twice the expected time, so that a disturbed block ends with fewer samples instead of late
    max_s = 2 * expected + settings.seconds / 100
    if block.evicted:
        max_s += block.batches * settings.seconds / 100
    return worker.measure(block.rows, block.batches, max_s, settings.evict_bytes if block.evicted else 0)


def cpu_wait_share(found: Sequence[Candidate], settings: ProfileSettings, log: SampleLog) -> float | None:
    """Returns the share of time that CPU paths spent waiting for a core; None if there are none."""
    sizes = [rows for part in ladder(settings.largest) for rows in part]
    blocks = [
        log.get(c.name, c.identity, f"warm {rows} {k}")
        for c in found
        if c.path.device == "cpu"
        for rows in sizes
        for k in range(ROUNDS)
    ]
    spent = [(sum(b["seconds"]), b["executed"]) for b in blocks if b is not None]
    total = sum(seconds for seconds, _ in spent)
    return 1.0 - sum(seconds * own for seconds, own in spent) / total if total else None


def path_profile(
    candidate: Candidate, settings: ProfileSettings, log: SampleLog, quality: PathQuality
) -> PathProfile:
    """Builds the profile of a candidate from the log."""

    def size(rows: int, kind: str, rounds: int) -> SizeSamples:
        found = (log.get(candidate.name, candidate.identity, f"{kind} {rows} {k}") for k in range(rounds))
        return SizeSamples(rows, tuple(np.array(f["seconds"]) for f in found if f is not None))

    opened = log.get(candidate.name, candidate.identity, "opened")
    assert opened is not None
    fitted, unseen = ladder(settings.largest)
    seen = points([size(rows, "warm", ROUNDS) for rows in fitted])
    other = points([size(rows, "warm", ROUNDS) for rows in unseen], fitted=False) if unseen else ()
    model = fit(seen)
    return PathProfile(
        path=candidate.path,
        representation=candidate.bundle.name,
        bundle_version=candidate.bundle.manifest.version,
        quality=quality.value,
        interval=quality.interval,
        metrics=quality.metrics,
        quality_from=quality.origin,
        note=quality.note,
        memory=path_memory(candidate.bundle, opened["peak_bytes"]),
        startup_s=opened["startup_s"],
        latency=model,
        points=tuple(sorted(seen + other, key=lambda p: p.rows)),
        evicted=points([size(rows, "evicted", 1) for rows in evicted_sizes(settings.largest)]),
        error=fit_error(model, other),
    )
