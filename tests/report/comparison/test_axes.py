from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyrec.report.comparison.axes import ticks


@given(st.floats(1e-3, 1e12), st.floats(1.05, 1e7))
def test_a_log_scale_has_a_readable_number_of_ticks_inside_it(low: float, span: float) -> None:
    found = ticks(low, low * span)
    assert found == sorted(found)
    assert all(low <= value <= low * span for value in found)
    assert len(found) <= 9
    if span > 2:
        assert len(found) >= 3
