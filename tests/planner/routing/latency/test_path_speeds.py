"""The filter of path speeds equals its reference and tells a core's speed from a path's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.routing.latency.path_speeds import COMMON_MEMORY_S, OWN_MEMORY_S, PathSpeeds
from tests.planner.routing.latency import reference

MEDIANS = (1e-3, 1.5e-3, 4e-3)
VARIANCES = (0.0, 0.2, 0.05)


@given(
    ticks=st.lists(
        st.tuples(
            st.sampled_from([0.05, 0.1, 1.0, 100.0]),
            st.lists(st.tuples(st.integers(0, 2), st.floats(-1.5, 1.5)), max_size=4),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_errors_equal_the_reference(ticks):
    fast, plain = PathSpeeds(VARIANCES), reference.PathSpeeds(VARIANCES)
    for passed_s, latest, is_idle_long in ticks:
        batches = [sum(p == path for p, _ in latest) for path in range(3)]
        errors = [sum(e for p, e in latest if p == path) / max(n, 1) for path, n in enumerate(batches)]
        at_rest = is_idle_long and not latest
        fast.update(passed_s, batches, errors, MEDIANS, at_rest)
        plain.update(passed_s, latest, MEDIANS, at_rest)
        assert fast.errors == pytest.approx(plain.errors, abs=1e-6)


def test_a_core_that_speeds_up_moves_all_paths_and_a_fast_path_only_itself():
    speeds = PathSpeeds([0.0] * 3)
    for _ in range(50):
        speeds.update(0.1, (40, 0, 0), (-0.2, 0.0, 0.0), MEDIANS)
    assert speeds.errors == pytest.approx([-0.2, -0.2, -0.2], abs=0.01)
    speeds.update(0.1, (40, 0, 40), (-0.2, 0.0, -0.6), MEDIANS)
    first, untried, fast = speeds.errors
    assert (first, fast) == pytest.approx((-0.2, -0.6), abs=0.05)
    assert fast < untried < first
    speeds.update(0.1, (40, 0, 0), (-0.4, 0.0, 0.0), MEDIANS)
    assert speeds.errors == pytest.approx([-0.4, untried - 0.2, fast - 0.2], abs=0.05)


def test_common_error_is_forgotten_at_rest_before_paths_own_errors():
    speeds = PathSpeeds([0.0] * 2)
    for _ in range(50):
        speeds.update(0.1, (40, 40), (0.5, 0.8), (1e-3, 1e-3))
    speeds.update(0.1, (40, 0), (0.5, 0.0), (1e-3, 1e-3))
    common, own = speeds.errors[0], speeds.errors[1] - speeds.errors[0]
    speeds.update(COMMON_MEMORY_S, (0, 0), (0.0, 0.0), (1e-3, 1e-3), at_rest=True)
    assert speeds.errors[0] == pytest.approx(common * np.exp(-1), abs=0.01)
    assert speeds.errors[1] - speeds.errors[0] == pytest.approx(own, rel=0.15)
    speeds.update(OWN_MEMORY_S, (0, 0), (0.0, 0.0), (1e-3, 1e-3), at_rest=True)
    assert speeds.errors[1] - speeds.errors[0] == pytest.approx(own * np.exp(-1), rel=0.15)


def test_own_error_of_a_path_is_forgotten_after_a_long_rest():
    """Its error has been forgotten: what it then shows is no news of the other path."""
    speeds, profiles = PathSpeeds([0.0] * 2), (1e-3, 1e-3)
    for _ in range(50):
        speeds.update(0.1, (40, 40), (0.0, 0.5), profiles)
    for _ in range(3600):
        speeds.update(1.0, (0, 0), (0.0, 0.0), profiles, at_rest=True)
    speeds.update(0.1, (40, 0), (0.0, 0.0), profiles)
    speeds.update(0.1, (0, 40), (0.0, 0.5), profiles)
    assert speeds.errors == pytest.approx([0.0, 0.5], abs=0.1)


@pytest.mark.parametrize(("batches", "low", "high"), [(1, 0.0, 0.15), (40, 0.2, 0.3)])
def test_a_single_slow_batch_hardly_makes_a_path_seem_slow(batches, low, high):
    speeds, profiles = PathSpeeds([0.0] * 2), (1e-3, 1e-3)
    for _ in range(50):
        speeds.update(0.1, (40, 0), (0.0, 0.0), profiles)
    speeds.update(1e-3, (40, batches), (0.0, 0.3), profiles)
    speeds.update(1e-3, (40, 0), (0.0, 0.0), profiles)
    assert low <= speeds.optimistic()[1] <= high
    assert speeds.optimistic()[0] == speeds.errors[0]


def test_a_slow_batch_tells_less_of_a_path_whose_times_vary():
    steady, varying = PathSpeeds([0.0, 0.0]), PathSpeeds([0.0, 0.5**2])
    for speeds in (steady, varying):
        for _ in range(50):
            speeds.update(0.1, (40, 0), (0.0, 0.0), (1e-3, 1e-3))
        speeds.update(0.1, (40, 1), (0.0, 0.6), (1e-3, 1e-3))
    assert 0 < varying.errors[1] < 0.8 * steady.errors[1]
