"""Measures a path with its rows in tiers, at several cuts, alternating with all rows in memory.

For each cut, a worker opens the tiers as a server would: a share of the rows' bytes as memory, the rest in a
temporary file. Blocks of batches of several sizes alternate between this worker and one with all rows in
memory, both with reads that a batch waits for and with reads started ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.measure.profile.candidates import Candidate, path_memory
from polyrec.measure.profile.cut_fit import MeasuredCut, fit_cuts
from polyrec.measure.profile.log import SampleLog
from polyrec.measure.profile.measure import Advance, ProfileSettings
from polyrec.measure.profile.process import Worker
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.disk.page_file import sector_bytes
from polyrec.models.tiers.tier_settings import PAGE_BYTES, TierCuts, TierSettings
from polyrec.planner.deployment.bundle_contents import tables_from_counts
from polyrec.planner.deployment.opened import OpenedCuts, opened_cuts
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.tier_times import CutPoint, CutTimes

SHARES = (0.6, 0.3, 0.12, 0.04)
"""Memory of each cut, as a share of the rows' bytes."""
SIZES = (1, 16, 128, 1024)
ROUNDS = 5
MIN_BYTES = 64 * PAGE_BYTES
"""Tables with fewer bytes are not worth tiers."""
MAX_BATCHES = 1000


@dataclass(frozen=True, slots=True)
class Cut:
    """Tiers to open. memory: bytes. settings: as in a server."""

    memory: int
    opened: OpenedCuts
    settings: TierSettings


def stored_tables(bundle: Bundle) -> Tables:
    """Returns a bundle's rows with the access counts from which requests are drawn."""
    counts = {t: v.counts for t, v in bundle.encoder.vocabularies.items()}
    return tables_from_counts(bundle.manifest, counts, path_memory(bundle, 0), unseen=False)


def measurable(found: Sequence[Candidate]) -> list[Candidate]:
    """Returns a CPU path of each bundle with enough rows; of nested widths, the widest."""
    chosen: dict[Path, Candidate] = {}
    for candidate in found:
        rows = sum(path_memory(candidate.bundle, 0).tables.values())
        if candidate.path.device != "cpu" or rows < MIN_BYTES:
            continue
        known = chosen.setdefault(candidate.path.bundle, candidate)
        if (candidate.bundle.width or 0) > (known.bundle.width or 0):
            chosen[candidate.path.bundle] = candidate
    return list(chosen.values())


def cut(tables: Tables, share: float, directory: Path) -> Cut:
    """Returns tiers with a share of the rows' bytes in memory and the rest in a file in `directory`."""
    memory = int(share * tables.bytes)
    opened = opened_cuts(tables, memory, sector_bytes(directory))
    cuts = {
        name: TierCuts(host=n, disk=ranked.size - n)
        for name, ranked, n in zip(tables.names, tables.accesses_by_rank, opened.prefix, strict=True)
    }
    cache_bytes = max(opened.cache_bytes, PAGE_BYTES)
    return Cut(memory, opened, TierSettings(cuts=cuts, cache_bytes=cache_bytes, directory=directory))


def measure_cuts(
    candidate: Candidate,
    settings: ProfileSettings,
    log: SampleLog,
    advance: Advance,
    folder: Path,
    shares: Sequence[float] = SHARES,
    sizes: Sequence[int] = SIZES,
) -> CutTimes:
    """Measures a path at all cuts, and fits its cost.

    settings: `seconds` is the measuring time per cut.
    folder: where the tier files go; the candidate's bundle path is relative to it. Raises MeasureError.
    """
    tables = stored_tables(candidate.bundle)
    path = candidate.path.model_copy(update={"bundle": folder / candidate.path.bundle})
    rows = [n for n in sizes if n <= settings.largest] or [settings.largest]
    measured: list[MeasuredCut] = []
    about: dict[str, Any] = {}
    with Worker(path) as plain:
        plain_open = False
        for i, share in enumerate(shares):
            advance(i / len(shares), f"{candidate.name} with {share:.0%} in memory")
            tiers = cut(tables, share, folder)
            key = f"cut {share:g} {rows}"
            known = log.get(candidate.name, candidate.identity, key)
            if known is None:
                if not plain_open:
                    plain.open(rows[-1], settings.seed)
                    plain_open = True
                with Worker(path) as tiered:
                    opened = tiered.open(rows[-1], settings.seed + 1, tiers.settings)
                    points = _points(plain, tiered, rows, settings.seconds, tiers.memory)
                known = {"tiers": opened["tiers"], "points": [p.model_dump() for p in points]}
                log.add(candidate.name, candidate.identity, key, known)
            about = known["tiers"]
            points = [CutPoint.model_validate(p) for p in known["points"]]
            measured.append(MeasuredCut(tiers.opened, tuple(points)))
    cost, error = fit_cuts(tables, measured)
    return CutTimes(
        path=candidate.name,
        row_bytes=about["row_bytes"],
        page_bytes=about["page_bytes"],
        reader=about["reader"],
        points=tuple(p for one in measured for p in one.points),
        cost=cost,
        error=error,
    )


def _points(
    plain: Worker, tiered: Worker, sizes: Sequence[int], seconds: float, memory: int
) -> list[CutPoint]:
    """Measures blocks of all sizes in turns: all in memory, tiers with waiting, tiers with reading ahead."""
    # longer batches need longer blocks
    weights = np.sqrt(np.arange(1, len(sizes) + 1))
    blocks_s = seconds / (ROUNDS * 3) * weights / weights.sum()
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for _ in range(ROUNDS):
        for n, block_s in zip(sizes, blocks_s.tolist(), strict=True):
            for kind, worker in (("memory", plain), ("wait", tiered), ("ahead", tiered)):
                block = worker.measure_tiers(n, MAX_BATCHES, block_s, ahead=kind == "ahead")
                found.setdefault((n, kind), []).append(block)

    def median(blocks: list[dict[str, Any]]) -> float:
        return float(np.median([np.mean(b["seconds"]) for b in blocks]))

    points = []
    for n in sizes:
        memory_s = median(found[n, "memory"])
        for kind in ("wait", "ahead"):
            blocks = found[n, kind]
            samples = [len(b["seconds"]) for b in blocks]

            def mean(name: str, own: list[dict[str, Any]] = blocks, weights: list[int] = samples) -> float:
                return float(np.average([b[name] for b in own], weights=weights))

            points.append(
                CutPoint(
                    memory_bytes=memory,
                    rows=n,
                    ahead=kind == "ahead",
                    samples=sum(samples),
                    seconds=median(blocks),
                    memory_s=memory_s,
                    lookups=mean("lookups"),
                    below=mean("below"),
                    reads=mean("reads"),
                    remote=mean("remote"),
                )
            )
    return points
