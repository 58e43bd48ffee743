"""Preemption: work that meets a span continues after it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.simulation.faults import Fault
from polyrec.planner.simulation.preemption import (
    BURST_S,
    PERIOD_S,
    Preemptions,
    loop_preemptions,
    process_stops,
)

SPANS = st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 2)), max_size=6)


@given(SPANS, st.floats(0, 12), st.floats(0, 3))
def test_work_takes_its_own_time_and_that_of_the_spans_it_meets(spans, start_s, work_s):
    held = Preemptions((begin, begin + length) for begin, length in spans)
    done_s = held.done_s(start_s, work_s)
    at = np.linspace(start_s, done_s, 20_001)
    free = np.ones_like(at, bool)
    for begin, length in spans:
        free &= ~((at >= begin) & (at < begin + length))
    assert free.mean() * (done_s - start_s) == pytest.approx(work_s, abs=1e-2)
    assert held.free_s(start_s) >= start_s
    assert held.done_s(start_s, 0.0) == held.free_s(start_s)
    assert held.within_s(start_s, done_s) == pytest.approx(done_s - start_s - work_s, abs=1e-9)


def test_a_neighbor_takes_half_of_its_bursts_from_the_loop_and_a_stop_everything():
    faults = (Fault("neighbor", -1, 0.0, float("inf")), Fault("stop", -1, 5.0, 5.3))
    core = loop_preemptions(faults, 10.0)
    at = np.arange(0.0, 4.0, 1e-4)
    taken = np.array([core.free_s(t) > t for t in at.tolist()])
    assert taken.mean() == pytest.approx(0.5 * BURST_S / PERIOD_S, abs=0.03)
    assert process_stops(faults).done_s(4.9, 0.2) == pytest.approx(5.4)
    assert process_stops(faults).done_s(1.0, 0.2) == pytest.approx(1.2)
    assert not process_stops(())
