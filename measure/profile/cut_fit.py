"""Fits the cost of tiers to measured cuts.

First, the worth of a cached slot is searched for that best predicts the pages that batches read. The times
then follow from non-negative least squares of relative errors, reweighted so that outliers count less. Both
use all cuts. The reported error is that of each cut, predicted from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.opened import OpenedCuts, batch_reads, rounds_of
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.tier_times import TIMES, BatchReads, CutPoint, TierCost

WORTH = np.arange(0.0, 1.51, 0.025)
"""Worths of a cached slot that are tried; above 1 where requests repeat rows more than their counts say."""
REWEIGHTINGS = 10
MIN_RESIDUAL = 0.01


@dataclass(frozen=True, slots=True)
class MeasuredCut:
    """The measured points of one cut."""

    opened: OpenedCuts
    points: tuple[CutPoint, ...]


def fit_cuts(tables: Tables, cuts: Sequence[MeasuredCut]) -> tuple[TierCost, float | None]:
    """Returns the cost, and its median relative error at cuts left out of the fit; None if there is one cut.

    tables: with the access counts from which the requests were drawn.
    """
    errors: list[float] = []
    for left_out in cuts if len(cuts) > 1 else ():
        cost = fit(tables, [c for c in cuts if c is not left_out])
        errors += [abs(predicted(cost, tables, left_out, p) / p.seconds - 1) for p in left_out.points]
    return fit(tables, cuts), float(np.median(errors)) if errors else None


def predicted(cost: TierCost, tables: Tables, cut: MeasuredCut, point: CutPoint) -> float:
    """Predicts the seconds of a point's batch from its lookups and its time in memory alone."""
    reads = batch_reads(tables, cut.opened, point.lookups, cost.cached)
    return point.memory_s + cost.seconds(reads, point.ahead)


def fit(tables: Tables, cuts: Sequence[MeasuredCut]) -> TierCost:
    """Fits the cost to all cuts."""
    worth = _worth(tables, cuts)
    points = [(cut, point) for cut in cuts for point in cut.points]
    columns = np.array([counted(p, cut.opened).multiples(p.ahead) for cut, p in points])
    extra = np.array([point.seconds - point.memory_s for _, point in points])
    scale = np.array([point.seconds for _, point in points])
    times = _robust(columns / scale[:, None], extra / scale)
    return TierCost(cached=worth, **dict(zip(TIMES, times.tolist(), strict=True)))


def counted(point: CutPoint, opened: OpenedCuts) -> BatchReads:
    """Returns the reads that were counted for a point's batches."""
    rounds = rounds_of(point.reads, opened)
    return BatchReads(point.lookups, point.below, point.reads, rounds, point.remote)


def _worth(tables: Tables, cuts: Sequence[MeasuredCut]) -> float:
    """Returns the worth of a slot that best predicts the number of pages read."""
    misfits = []
    for worth in WORTH.tolist():
        found = [
            np.log1p(batch_reads(tables, cut.opened, p.lookups, worth).reads) - np.log1p(p.reads)
            for cut in cuts
            for p in cut.points
            if not p.ahead
        ]
        misfits.append(float(np.abs(found).sum()))
    return float(WORTH[int(np.argmin(misfits))])


def _robust(columns: F64, values: F64) -> F64:
    """Fits least absolute deviations with non-negative coefficients, by iteratively reweighted least
    squares.
    """
    weights = np.ones(len(values))
    # scale the columns, whose sizes differ greatly
    size = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    found = np.zeros(columns.shape[1])
    for _ in range(REWEIGHTINGS):
        found, _ = nnls(columns / size * weights[:, None], values * weights)
        residuals = np.abs(columns / size @ found - values)
        weights = 1 / np.sqrt(np.maximum(residuals, MIN_RESIDUAL))
    times: F64 = found / size
    return times
