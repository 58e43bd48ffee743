"""Prices: the dual of the linear program, as a solver finds it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from polyrec.planner.routing.prices import Prices, is_efficient, solve_prices

OPTION = st.tuples(st.floats(0.5, 1.0), st.floats(1e-6, 1e-4))
DEVICES = st.lists(
    st.tuples(st.integers(1, 8), st.lists(OPTION, min_size=1, max_size=4)), min_size=1, max_size=3
)


def capacity(lanes: list[float], options: list[list[tuple[float, float]]]) -> float:
    """Rows/s of all devices on their cheapest paths."""
    return sum(n / min(s for _, s in own) for n, own in zip(lanes, options, strict=True) if own)


@settings(max_examples=60, deadline=None)
@given(devices=DEVICES, load=st.floats(0.05, 2.0))
def test_dual_equals_primal(devices, load):
    lanes = [float(n) for n, _ in devices]
    options = [own for _, own in devices]
    rate = load * capacity(lanes, options)
    found = solve_prices(rate, lanes, options)
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
            assert found.net_value(d, value, row_s) <= found.row + 1e-9


def test_device_time_is_free_while_the_best_path_keeps_up():
    found = solve_prices(100.0, [1.0], [[(0.8, 1e-3), (0.7, 1e-4)]])
    assert found.device == (0.0,)
    assert found.row == pytest.approx(0.8)


@given(
    value=st.floats(0.5, 1.0),
    share=st.floats(0.5, 0.99),
    row_s=st.floats(1e-5, 1e-3),
    lanes=st.integers(1, 8),
)
def test_device_time_is_free_up_to_the_very_capacity_of_the_best_path(value, share, row_s, lanes):
    options = [[(value, row_s), (share * value, row_s / 10)]]
    found = solve_prices(lanes / row_s, [float(lanes)], options)
    assert (found.device, found.row) == ((0.0,), value)


def test_without_traffic_another_row_is_worth_the_best_path():
    assert solve_prices(0.0, [1.0], [[(0.8, 1e-4), (0.7, 1e-3)]]).row == 0.8
    assert solve_prices(0.0, [1.0], [[(0.7, 1e-3), (0.8, 1e-4)]]).row == 0.8


def test_between_the_capacities_of_two_paths_both_have_the_same_net_value():
    found = solve_prices(5000.0, [1.0], [[(0.8, 1e-3), (0.7, 1e-4)]])
    assert found.net_value(0, 0.8, 1e-3) == pytest.approx(found.net_value(0, 0.7, 1e-4))
    assert found.row > 0


def test_past_capacity_another_row_is_worth_nothing():
    assert solve_prices(20_000.0, [1.0], [[(0.8, 1e-3), (0.7, 1e-4)]]).row == pytest.approx(0)


def test_a_path_below_the_mix_of_two_others_is_inefficient():
    fast, slow = (0.6, 1.0), (0.8, 3.0)
    assert not is_efficient(0.69, 2.0, [fast, (0.69, 2.0), slow])
    assert is_efficient(0.71, 2.0, [fast, (0.71, 2.0), slow])
    assert all(is_efficient(*path, [fast, (0.69, 2.0), slow]) for path in (fast, slow))


def test_the_highest_value_is_of_paths_worth_their_price():
    prices = Prices((0.1,), 0.5)
    assert prices.highest_value(0, [(0.6, 1.0), (0.8, 4.0)]) == 0.6
    assert prices.highest_value(0, [(0.6, 1.0), (0.8, 3.0)]) == 0.8  # a tie
    assert prices.highest_value(0, []) == 0.0
