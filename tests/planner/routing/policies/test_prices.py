"""Prices: the dual of the linear program, as a solver finds it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from polyrec.planner.routing.policies.prices import capacity, price

OPTION = st.tuples(st.floats(0.5, 1.0), st.floats(1e-6, 1e-4))
DEVICES = st.lists(
    st.tuples(st.integers(1, 8), st.lists(OPTION, min_size=1, max_size=4)), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(devices=DEVICES, load=st.floats(0.05, 2.0))
def test_dual_equals_primal(devices, load):
    lanes = [float(n) for n, _ in devices]
    options = [own for _, own in devices]
    rate = load * capacity(lanes, options)
    found = price(rate, lanes, options)
    dual = rate * found.row + sum(n * p for n, p in zip(lanes, found.device, strict=True))
    values = [v for own in options for v, _ in own]
    limits = np.zeros((len(devices) + 1, len(values)))
    at = 0
    for d, own in enumerate(options):
        for _, row_s in own:
            limits[d, at] = row_s * 1e4
            limits[-1, at] = 1.0
            at += 1
    solved = linprog(-np.asarray(values), A_ub=limits, b_ub=[1e4 * n for n in lanes] + [rate], method="highs")
    assert dual == pytest.approx(-solved.fun, rel=1e-6)
    for d, own in enumerate(options):
        for value, row_s in own:
            assert found.earns(d, value, row_s) <= found.row + 1e-9


def test_device_time_is_free_while_the_best_path_keeps_up():
    found = price(100.0, [1.0], [[(0.8, 1e-3), (0.7, 1e-4)]])
    assert found.device == (0.0,)
    assert found.row == pytest.approx(0.8)


def test_between_two_paths_capacities_both_are_worth_the_same():
    found = price(5000.0, [1.0], [[(0.8, 1e-3), (0.7, 1e-4)]])
    assert found.earns(0, 0.8, 1e-3) == pytest.approx(found.earns(0, 0.7, 1e-4))
    assert found.row > 0


def test_past_capacity_another_row_brings_nothing():
    assert price(20_000.0, [1.0], [[(0.8, 1e-3), (0.7, 1e-4)]]).row == pytest.approx(0)
