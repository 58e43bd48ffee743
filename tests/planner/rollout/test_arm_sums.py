"""Sums of an arm's requests, against lists of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.rollout.arm_sums import LATENCY_EDGES_S, ArmRecords, ArmSums

SECONDS = st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=30)


def sums_of(*parts: ArmRecords) -> ArmSums:
    sums = ArmSums()
    for part in parts:
        sums.add(part, (), None)
    return sums


@given(SECONDS, st.floats(1e-3, 10.0))
def test_answers_slower_than_a_limit_are_counted_to_a_bins_width(took_s: list[float], limit_s: float) -> None:
    edge_s = next(float(edge) for edge in LATENCY_EDGES_S if edge >= limit_s)
    assert edge_s < 1.05 * limit_s * (1 + 1e-9)
    slower = sum(s > edge_s for s in took_s)
    assert sums_of(ArmRecords(took_s)).slower(limit_s) == slower
    assert sums_of(ArmRecords(took_s)).slower(edge_s) == slower


@given(SECONDS, st.floats(0.01, 1.0))
def test_quantiles_are_those_of_sorted_answers_to_a_bins_width(took_s: list[float], share: float) -> None:
    ordered = sorted(took_s)
    exact_s = next(s for n, s in enumerate(ordered, 1) if n >= share * len(ordered))
    found = sums_of(ArmRecords(took_s)).quantile_s(share)
    assert found is not None
    assert exact_s <= found < 1.05 * exact_s * (1 + 1e-9)


@given(SECONDS, SECONDS)
def test_merged_sums_are_those_of_joined_records(one: list[float], other: list[float]) -> None:
    parts = (
        ArmRecords(one, late=2, failed=3, waited_s=[s / 2 for s in one], excused=1),
        ArmRecords(other, late=1, failed=4, excused=5),
    )
    merged = sums_of(parts[0])
    merged.merge(sums_of(parts[1]))
    waits = [s / 2 for s in one] + [0.0] * len(other)
    joined = ArmRecords.joined(
        (parts[0], ArmRecords(other, late=1, failed=4, waited_s=waits[len(one) :], excused=5))
    )
    for sums in (merged, sums_of(joined)):
        assert (sums.answered, sums.requests) == (len(one) + len(other), len(one) + len(other) + 7)
        assert (sums.late, sums.failed, sums.excused) == (3, 7, 6)
        assert sums.waited_s == pytest.approx(sum(waits))
        # without the lanes' waits
        own_s = np.subtract(one + other, waits)
        assert [sums.slower(s) for s in (0.01, 0.1, 1.0)] == [
            sums_of(ArmRecords(own_s.tolist())).slower(s) for s in (0.01, 0.1, 1.0)
        ]


def test_an_arm_without_answers_has_no_quantile() -> None:
    assert sums_of(ArmRecords(failed=2)).quantile_s(0.5) is None


def test_a_quantile_is_within_the_resolution() -> None:
    took_s = np.random.default_rng(1).gamma(4, 5e-4, 4000)
    p95_s = sums_of(ArmRecords(took_s.tolist())).quantile_s(0.95)
    assert p95_s == pytest.approx(float(np.quantile(took_s, 0.95)), rel=0.06)
