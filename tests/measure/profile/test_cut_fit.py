from __future__ import annotations

import numpy as np
import pytest

from polyrec.measure.profile.cut_fit import MeasuredCut, fit, fit_cuts, predicted
from polyrec.planner.deployment.opened import batch_reads, opened_cuts
from polyrec.planner.deployment.rank_accesses import RankedAccesses
from polyrec.planner.deployment.residency import Tables
from polyrec.planner.tier_times import CutPoint, TierCost

COUNTS = (1e6 / np.arange(1, 50_001)).astype(np.int64)
TABLES = Tables(("t",), (RankedAccesses.from_counts(COUNTS),), (256.0,), 26.0)
TRUE = TierCost(
    batch_s=1e-4,
    lookup_s=2e-8,
    below_batch_s=5e-5,
    below_s=5e-7,
    wait_s=2e-4,
    read_s=5e-6,
    ahead_batch_s=4e-5,
    ahead_s=8e-6,
    cached=0.8,
)


def measured(noise: float = 0.0, share: float | None = None) -> list[MeasuredCut]:
    """Cuts with batches of exactly the true cost, times noise."""
    random = np.random.default_rng(0)
    cuts = []
    for part in (0.6, 0.3, 0.12, 0.04) if share is None else (share,):
        opened = opened_cuts(TABLES, part * TABLES.bytes, 512)
        points = []
        for rows in (1, 16, 128, 1024):
            reads = batch_reads(TABLES, opened, 26.0 * rows, TRUE.cached)
            for ahead in (False, True):
                memory_s = 2e-4 + 1e-5 * rows
                seconds = (memory_s + TRUE.seconds(reads, ahead)) * np.exp(noise * random.normal())
                points.append(
                    CutPoint(
                        memory_bytes=int(part * TABLES.bytes),
                        rows=rows,
                        ahead=ahead,
                        samples=100,
                        seconds=seconds,
                        memory_s=memory_s,
                        lookups=reads.lookups,
                        below=reads.below,
                        reads=reads.reads,
                    )
                )
        cuts.append(MeasuredCut(opened, tuple(points)))
    return cuts


def test_the_cost_that_made_the_times_is_found() -> None:
    cost, error = fit_cuts(TABLES, measured())
    assert cost.cached == pytest.approx(0.8)
    for name in ("batch_s", "wait_s", "read_s", "ahead_s"):
        assert getattr(cost, name) == pytest.approx(getattr(TRUE, name), rel=0.05)
    assert error == pytest.approx(0.0, abs=0.01)


def test_a_cut_that_was_not_measured_is_predicted_from_others() -> None:
    cost = fit(TABLES, measured(noise=0.1))
    (other,) = measured(share=0.2)
    errors = [abs(predicted(cost, TABLES, other, p) / p.seconds - 1) for p in other.points]
    assert float(np.median(errors)) < 0.1


def test_one_disturbed_point_changes_little() -> None:
    cuts = measured()
    first, *rest = cuts[1].points
    cuts[1] = MeasuredCut(cuts[1].opened, (first.model_copy(update={"seconds": 5 * first.seconds}), *rest))
    cost = fit(TABLES, cuts)
    assert cost.wait_s == pytest.approx(TRUE.wait_s, rel=0.1)
    assert cost.batch_s == pytest.approx(TRUE.batch_s, rel=0.2)


def test_one_cut_alone_has_no_error() -> None:
    assert fit_cuts(TABLES, measured(share=0.3))[1] is None
