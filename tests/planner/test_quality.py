from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.quality import (
    MIN_WORTH,
    QualityDifference,
    differences_of,
    quality_groups,
    routing_values,
)


def difference(path: str, other: str, value: float, half: float) -> QualityDifference:
    return QualityDifference(path=path, other=other, value=value, low=value - half, high=value + half)


def test_paths_not_shown_worse_than_the_best_are_one_group() -> None:
    quality = {"a": 0.25, "b": 0.249, "c": 0.24, "d": 0.239}
    differences = [
        difference("a", "b", 0.001, 0.002),
        difference("a", "c", 0.01, 0.002),
        difference("d", "a", -0.011, 0.002),
        difference("b", "c", 0.009, 0.02),
        difference("c", "d", 0.001, 0.002),
    ]
    assert quality_groups(quality, differences) == [["a", "b"], ["c", "d"]]
    assert routing_values(quality, differences) == {"a": 0.25, "b": 0.25, "c": 0.24, "d": 0.24}


def test_pairs_without_an_interval_differ_at_face_value() -> None:
    assert quality_groups({"a": 0.2, "b": 0.3, "c": 0.3}) == [["b", "c"], ["a"]]


@given(st.integers(0, 100_000), st.integers(1, 8))
def test_groups_hold_every_path_once_and_nothing_shown_worse_than_their_best(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    quality = {f"p{i}": float(q) for i, q in enumerate(random.normal(0.2, 0.02, n))}
    differences = [
        difference(a, b, quality[a] - quality[b], float(random.exponential(0.02)))
        for a, b in combinations(quality, 2)
        if random.random() < 0.8
    ]
    groups = quality_groups(quality, differences)
    assert sorted(name for group in groups for name in group) == sorted(quality)
    shown = {frozenset((d.path, d.other)): d.shown for d in differences}
    left = set(quality)
    for group in groups:
        best = max(left, key=lambda name: quality[name])
        assert group[0] == best
        for name in left - {best}:
            worse = shown.get(frozenset((best, name)), quality[name] < quality[best])
            assert (name in group) is not worse
        left -= set(group)
    values = routing_values(quality, differences)
    assert len(set(values.values())) == len(groups)


def test_a_path_of_unknown_quality_is_worth_as_much_as_the_worst_known() -> None:
    assert routing_values({"a": None, "b": None}) == {"a": 1.0, "b": 1.0}
    assert routing_values({"a": 0.3, "b": None, "c": 0.2}) == {"a": 0.3, "b": 0.2, "c": 0.2}


def test_a_path_no_better_than_a_constant_is_worth_little_but_not_nothing() -> None:
    assert routing_values({"a": 0.3, "b": -0.1}) == {"a": 0.3, "b": pytest.approx(MIN_WORTH * 0.3)}
    values = routing_values({"a": -0.02, "b": -0.1})
    assert values["a"] > values["b"] > 0


def test_differences_of_a_part_of_the_paths() -> None:
    every = [difference(a, b, 0.1, 0.01) for a, b in combinations("abc", 2)]
    assert [(d.path, d.other) for d in differences_of("ac", every)] == [("a", "c")]
