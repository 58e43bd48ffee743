from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.loadtest.traffic.shapes import KNEE_GROWTH, LOW, Knee, share_at


@given(st.sampled_from(["steady", "step", "spike", "diurnal"]), st.floats(0, 0.9999), st.floats(1, 1e4))
def test_a_shape_stays_between_its_base_and_the_peak_and_ends(kind: str, part: float, seconds: float) -> None:
    share = share_at(kind, part * seconds, seconds)
    assert share is not None
    assert LOW - 1e-9 <= share <= 1.0
    assert share_at(kind, seconds, seconds) is None


def test_step_and_spike_are_five_times_the_base() -> None:
    assert [share_at("step", at, 30.0) for at in (0, 9.9, 10, 19.9, 20, 29)] == [0.2, 0.2, 1, 1, 0.2, 0.2]
    assert [share_at("spike", at, 10.0) for at in (0, 3.9, 4, 5.9, 6)] == [0.2, 0.2, 1, 1, 0.2]


def test_unknown_shape_is_named() -> None:
    with pytest.raises(ValueError, match="no shape 'wave'; there are steady, step"):
        share_at("wave", 0.0, 1.0)


def climbed(capacity: float) -> Knee:
    """A climb against a server that meets the SLO up to a share `capacity` of the peak."""
    knee, requests, in_budget, at = Knee(dwell_s=4.0), 0, 0, 0.0
    share: float | None = knee.share
    while share is not None:
        requests += 100
        in_budget += 100 if share <= capacity else 50
        at += 0.5
        share = knee.at(at, requests, in_budget, slo=0.99)
    return knee


@given(st.floats(0.1, 0.99))
def test_the_knee_is_between_a_met_and_a_missed_load(capacity: float) -> None:
    knee = climbed(capacity)
    assert knee.met is not None
    assert knee.missed is not None
    assert knee.met <= capacity < knee.missed
    assert knee.missed <= knee.met * KNEE_GROWTH * (1 + 1e-9)


def test_a_server_that_meets_the_slo_at_the_peak_has_no_knee() -> None:
    knee = climbed(2.0)
    assert knee.met == pytest.approx(1.0)
    assert knee.missed is None
