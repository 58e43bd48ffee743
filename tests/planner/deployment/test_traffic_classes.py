from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.deployment.traffic_classes import EDGES, load_levels, size_classes
from polyrec.planner.traffic import Arrivals, Sizes, Traffic

SIZES = st.one_of(
    st.builds(Sizes, kind=st.just("fixed"), mean=st.floats(1, 4096)),
    st.builds(Sizes, kind=st.sampled_from(["lognormal", "heavy"]), mean=st.floats(2, 1000)),
    st.just(Sizes(kind="mlperf")),
    st.lists(st.tuples(st.integers(1, 4096), st.floats(0.01, 10)), min_size=1, max_size=60).map(
        lambda drawn: Sizes(
            kind="measured", values=tuple(v for v, _ in drawn), shares=tuple(s for _, s in drawn)
        )
    ),
)


@given(SIZES)
def test_classes_cover_all_queries_and_keep_their_mean(sizes: Sizes) -> None:
    classes = size_classes(sizes)
    assert 1 <= len(classes) < len(EDGES)
    assert sum(c.share for c in classes) == pytest.approx(1.0)
    assert sum(c.share * c.rows for c in classes) == pytest.approx(sizes.mean_rows, rel=0.01)
    rows = [c.rows for c in classes]
    assert rows == sorted(rows)
    assert all(c.rows <= c.largest for c in classes)


def test_the_largest_class_includes_the_largest_drawn_size() -> None:
    drawn = Sizes(kind="heavy", mean=64).sample(20_000, np.random.default_rng(0))
    largest = size_classes(Sizes(kind="heavy", mean=64))[-1].largest
    assert np.quantile(drawn, 0.999) < largest


def test_few_different_sizes_stay_as_they_are() -> None:
    assert [c.rows for c in size_classes(Sizes(kind="mlperf"))] == [100, 200, 300, 400, 500, 600, 700]


@given(
    st.sampled_from(["poisson", "bursty", "diurnal"]),
    st.floats(1, 1e5),
    st.floats(1.5, 20),
    st.floats(11, 100),
)
def test_levels_keep_the_mean_rate(kind: str, rate: float, factor: float, period: float) -> None:
    arrivals = Arrivals.model_validate({"kind": kind, "factor": factor, "period_s": period})
    levels = load_levels(Traffic(rate=rate, sizes=Sizes(mean=5), arrivals=arrivals))
    assert sum(level.share for level in levels) == pytest.approx(1.0)
    assert sum(level.share * level.rate for level in levels) == pytest.approx(rate)


def test_a_burst_is_a_level_of_its_own() -> None:
    arrivals = Arrivals(kind="bursty", factor=4, burst_s=10, period_s=40)
    low, high = load_levels(Traffic(rate=70, sizes=Sizes(mean=5), arrivals=arrivals))
    assert (low.rate, low.share) == (pytest.approx(40), 0.75)
    assert (high.rate, high.share) == (pytest.approx(160), 0.25)


def test_a_step_comes_on_top_of_the_rate() -> None:
    levels = load_levels(
        Traffic(rate=50, sizes=Sizes(mean=5), arrivals=Arrivals(kind="step", factor=3, burst_s=6))
    )
    assert [(level.rate, level.share) for level in levels] == [(50, 0.9), (150, 0.1)]
