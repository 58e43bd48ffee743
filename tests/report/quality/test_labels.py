from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.report.quality.labels import place, spread_apart, touching

FRAME = (0.0, 0.0, 900.0, 560.0)
NOTHING = np.empty((0, 4))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 14), st.booleans())
def test_labels_touch_neither_one_another_nor_points_and_stay_inside(
    seed: int, n: int, crowded: bool
) -> None:
    random = np.random.default_rng(seed)
    anchors = random.random((n, 2)) * ((60, 40) if crowded else (880, 540)) + 10
    sizes = np.stack((random.uniform(20, 140, n), np.full(n, 18.0)), axis=1)
    points = np.concatenate((anchors - 6, anchors + 6), axis=1)
    corners = place(anchors, sizes, points, NOTHING, FRAME, gap=8)
    boxes = np.concatenate((corners, corners + sizes), axis=1)
    for a, b in itertools.combinations(boxes, 2):
        assert not touching(a[None], b[None]).any()
    assert not touching(boxes, points).any()
    assert (corners >= FRAME[:2]).all()
    assert (corners + sizes <= FRAME[2:]).all()


def test_a_lone_label_stands_to_the_right_of_its_point() -> None:
    corners = place(np.array([[100.0, 100.0]]), np.array([[50.0, 20.0]]), NOTHING, NOTHING, FRAME, gap=8)
    assert corners.tolist() == [[108.0, 90.0]]


def test_a_label_makes_way_for_a_line() -> None:
    anchors, sizes = np.array([[100.0, 100.0]]), np.array([[50.0, 20.0]])
    line = np.array([[0.0, 99.0, 900.0, 101.0]])
    corners = place(anchors, sizes, NOTHING, line, FRAME, gap=8)
    assert not touching(np.concatenate((corners, corners + sizes), axis=1), line).any()


def test_a_label_stands_closer_to_its_own_point_than_to_another() -> None:
    anchors, sizes = np.array([[100.0, 100.0], [120.0, 100.0]]), np.array([[80.0, 20.0], [80.0, 20.0]])
    points = np.concatenate((anchors - 6, anchors + 6), axis=1)
    left, right = place(anchors, sizes, points, NOTHING, FRAME, gap=8)
    assert left[0] + 80 <= 100
    assert right[0] >= 120


def test_label_without_a_free_position_is_placed_beside_its_point() -> None:
    everything = np.array([[0.0, 0.0, 900.0, 560.0]])
    corners = place(np.array([[100.0, 100.0]]), np.array([[50.0, 20.0]]), everything, NOTHING, FRAME, gap=8)
    assert corners.tolist() == [[108.0, 90.0]]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.floats(0.5, 20))
def test_dodged_positions_are_apart_and_only_moved_where_needed(x: list[float], apart: float) -> None:
    values = np.array(x)
    moved = spread_apart(values, apart)
    order = np.argsort(values, kind="stable")
    assert (np.diff(moved[order]) >= apart - 1e-9).all()
    assert moved.mean() == pytest.approx(values.mean())
    if (np.diff(values[order]) >= apart).all():
        assert moved == pytest.approx(values)
