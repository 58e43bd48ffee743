from __future__ import annotations

import numpy as np
import pytest

from polyrec.measure.profile.quality import PathQuality, quality_differences


def measured(value: float, noise: float, seed: int, shared: float = 0.02) -> PathQuality:
    """A path whose resamples share most of their noise with those of others."""
    common = np.random.default_rng(0).normal(0, shared, 400)
    own = np.random.default_rng(seed).normal(0, noise, 400)
    return PathQuality(value, {}, "data", str(seed), resampled=value + common + own)


def test_paired_intervals_show_what_the_paths_own_intervals_do_not() -> None:
    found = {"a": measured(0.250, 1e-4, 1), "b": measured(0.248, 1e-4, 2), "c": measured(0.2481, 1e-3, 3)}
    (ab, ac, bc) = quality_differences(found)
    assert (ab.path, ab.other, ab.kind) == ("a", "b", "paired")
    assert ab.shown
    assert not bc.shown
    assert ac.value == pytest.approx(0.0019)
    a, b = found["a"].interval, found["b"].interval
    assert a is not None
    assert b is not None
    assert a[0] < b[1]


def test_figures_of_bundles_differ_by_their_standard_errors() -> None:
    wide, narrow = (PathQuality(v, {}, "bundle", s, error=1e-3) for v, s in ((0.25, "x"), (0.24, "y")))
    near = PathQuality(0.248, {}, "bundle", "z", error=1e-3)
    shown = {(d.path, d.other): d.shown for d in quality_differences({"w": wide, "n": narrow, "c": near})}
    assert shown == {("w", "n"): True, ("w", "c"): False, ("n", "c"): True}


def test_precisions_of_one_bundle_are_assumed_equal_and_given_values_exact() -> None:
    fp32 = PathQuality(0.25, {}, "bundle", "x")
    int8 = PathQuality(0.25, {}, "assumed", "x")
    given = PathQuality(0.2501, {}, "given", "y")
    unknown = PathQuality(0.24, {}, "bundle", "z")
    found = quality_differences({"fp32": fp32, "int8": int8, "given": given, "unknown": unknown})
    kinds = {(d.path, d.other): (d.kind, d.shown) for d in found}
    assert kinds == {
        ("fp32", "int8"): ("assumed", False),
        ("fp32", "given"): ("given", True),
        ("int8", "given"): ("given", True),
        ("given", "unknown"): ("given", True),
    }
