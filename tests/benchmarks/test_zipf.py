from __future__ import annotations

import numpy as np
import pytest

from benchmarks.zipf import zipf, zipf_cdf

DRAWS = 200_000


def test_the_discrete_law_gives_each_rank_its_chance() -> None:
    cdf = zipf_cdf(4, 1.0)
    assert np.diff(cdf, prepend=0) == pytest.approx(np.array([12, 6, 4, 3]) / 25)
    assert cdf[-1] == 1


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2])
def test_the_continuous_law_is_near_the_discrete_law(exponent: float) -> None:
    """It gives the first ranks less: .51 instead of .57 to the first ten of 1,000 with exponent 1.2."""
    ranks = zipf(np.random.default_rng(0), 1000, exponent, DRAWS)
    assert ranks.min() == 0
    assert ranks.max() <= 999
    drawn = np.cumsum(np.bincount(ranks, minlength=1000)) / DRAWS
    assert drawn[9::10] == pytest.approx(zipf_cdf(1000, exponent)[9::10], abs=0.07)
