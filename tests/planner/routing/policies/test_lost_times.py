"""Lost queries are recorded by how much they were too slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.routing.policies.lost_times import LostTimes

SHARES = st.floats(0, 1)
LOSSES = st.lists(st.tuples(SHARES, st.floats(0, 100)), max_size=30)


@given(LOSSES, SHARES, SHARES)
def test_losses_avoided_are_those_late_by_less_than_is_saved(losses, one, other):
    found = LostTimes()
    for late_share, information in losses:
        found.record(late_share, information)
    little, much = sorted((one, other))
    assert found.avoided(0.0) == 0
    assert found.avoided(little) <= found.avoided(much) * (1 + 1e-9)
    assert found.avoided(1.0) == pytest.approx(sum(information for _, information in losses))
    # to within a factor of two in the share, as the times are kept in classes
    for saved in (little, much):
        at_least = sum(information for share, information in losses if 0.01 < share <= saved / 2)
        at_most = sum(information for share, information in losses if share <= 2 * saved or share <= 0.01)
        assert at_least * (1 - 1e-9) <= found.avoided(saved) <= at_most * (1 + 1e-9)


def test_recorded_losses_decay():
    found = LostTimes()
    found.record(0.05, 8.0)
    found.decay(0.25)
    found.record(0.05, 1.0)
    assert found.avoided(0.5) == pytest.approx(3.0)
