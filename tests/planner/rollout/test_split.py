"""The split: its share, and that values keep their version while the share grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.rollout.split import Split, position


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 0.5])
def test_a_share_of_the_values_is_split_off(share: float) -> None:
    split = Split(share, "v2")
    taken = sum(split.takes(b"%d" % i) for i in range(20_000))
    assert taken / 20_000 == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 0.5])
def test_any_run_of_requests_has_nearly_the_exact_share(share: float) -> None:
    split = Split(share, "v2")
    for requests in (100, 1000, 777):
        assert sum(split.takes_next() for _ in range(requests)) == pytest.approx(share * requests, abs=3)


@given(value=st.binary(), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_larger_share_keeps_the_values_of_a_smaller(value: bytes, low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert not Split(low, "v2").takes(value) or Split(high, "v2").takes(value)


def test_other_versions_choose_other_values() -> None:
    values = [b"%d" % i for i in range(1000)]
    both = sum(position(v, "v2") < 0.5 and position(v, "a version of another rollout") < 0.5 for v in values)
    assert 200 < both < 300
