"""A Kalman filter that separates the core's current speed from a path's own service time.

correction.py uses it to compare the paths of one lane. Paths execute at different times, and neighbors, heat
and the server's own work change the core's speed by 10% or more within seconds, whereas paths may differ by
less. The filter estimates the error of each path's profile (logarithm of observed over profiled seconds) and
the covariance of these errors. All errors drift together quickly, and each by itself slowly. So while one
path executes, the estimates of the others follow it. When another path executes, the difference is attributed
to that path, to the extent that a simultaneous change of the core is unlikely, and is remembered with
OWN_MEMORY_S.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p

import numpy as np

from polyrec.models.schema.batch import F64

OWN_MEMORY_S = 30.0
"""Time constant with which a path's own error decays to the one expected from the reference path."""
COMMON_MEMORY_S = 2.5
"""Time constant with which the common error is forgotten while nothing executes."""
COMMON_VARIANCE_S, OWN_VARIANCE_S = 0.3, 0.0005
"""Variance of the drift per second: common to all errors (0.17 in 0.1 s), and of each error by itself."""
UNKNOWN_VARIANCE, UNTRIED_VARIANCE = 100.0, 0.5**2
"""Initial variances, common and per path, so that the first path executed determines the common error."""
BATCH_VARIANCE, TICK_VARIANCE = 0.3**2, 0.02**2
"""Least variance of a batch's error, as one in ten is disturbed, and additional variance of a path's mean
error over a tick."""
OPTIMISM = 0.5
"""Standard deviations by which a path that seems slow is expected to be better."""


class PathSpeeds:
    """Estimates the profile errors of a lane's paths. errors: the estimates by path."""

    __slots__ = ("_covariance", "_reference", "_variances", "errors")

    def __init__(self, variances: Sequence[float]) -> None:
        """variances: of a batch's profiled time, by path, as a logarithm."""
        paths = len(variances)
        self.errors = [0.0] * paths
        self._variances = [max(variance, BATCH_VARIANCE) for variance in variances]
        self._covariance: F64 = np.full((paths, paths), UNKNOWN_VARIANCE) + np.eye(paths) * UNTRIED_VARIANCE
        self._reference = 0
        """The path with the most batches in the last tick that had any."""

    def update(
        self,
        passed_s: float,
        batches: Sequence[int],
        errors: Sequence[float],
        medians: Sequence[float],
        at_rest: bool = False,
    ) -> None:
        """Advances the filter by passed_s seconds in which batches were executed.

        batches, errors, medians: by path, number of batches, their mean error, and the profiled seconds.
        at_rest: whether no batch has executed for so long that the common error should be forgotten.
        """
        paths = range(len(batches))
        self._covariance += COMMON_VARIANCE_S * passed_s
        # exclude the common part, which is unknown after an idle period
        own_variance = self._covariance.diagonal() - self._covariance.min(axis=1)
        drift = OWN_VARIANCE_S * passed_s * (own_variance < UNTRIED_VARIANCE)
        self._covariance[np.diag_indices_from(self._covariance)] += drift
        for path in paths:
            if batches[path]:
                variance = self._variances[path] / batches[path] + TICK_VARIANCE
                self._observe(path, errors[path], variance, medians)
        if any(batches):
            self._reference = max(paths, key=lambda path: batches[path])
        common_kept = exp(-passed_s / COMMON_MEMORY_S) if at_rest else 1.0
        own_kept = exp(-passed_s / OWN_MEMORY_S)
        error, reference_s = self.errors[self._reference], medians[self._reference]
        for path in paths:
            if not batches[path]:
                own = self.errors[path] - _expected(error, reference_s, medians[path])
                kept = _expected(common_kept * error, reference_s, medians[path])
                self.errors[path] = kept + own_kept * own

    def optimistic(self) -> list[float]:
        """Returns the errors, with those that make a path seem slow reduced by their uncertainty.

        A path that seems too fast is tried and measured, but one that seems too slow because a single batch
        was disturbed would not be tried again for long.
        """
        reference, covariance = self._reference, self._covariance
        variances = covariance.diagonal() + covariance[reference, reference] - 2 * covariance[reference]
        margins = (OPTIMISM * np.sqrt(np.maximum(variances, 0.0))).tolist()
        base = self.errors[reference]
        return [
            max(base, error - margin) if error > base else error
            for error, margin in zip(self.errors, margins, strict=True)
        ]

    def _observe(self, path: int, error: float, variance: float, medians: Sequence[float]) -> None:
        covariance = self._covariance[path].copy()
        gain = covariance / (covariance[path] + variance)
        before = self.errors[path]
        for other, step in enumerate((gain * (error - before)).tolist()):
            after = _expected(before + step, medians[path], medians[other])
            self.errors[other] += after - _expected(before, medians[path], medians[other])
        self._covariance -= np.outer(gain, covariance)


def _expected(error: float, reference_s: float, median_s: float) -> float:
    """Returns the expected error of a path with profiled median_s, given the error of a reference path.

    A slow core costs every path the same factor, and overhead around a batch costs the same seconds. Of these
    two explanations of a slowdown, the one with the smaller error is assumed: a path that seems too fast is
    tried and measured, but one that seems too slow is not.
    """
    if error <= 0 or median_s <= reference_s:
        return error
    return log1p((exp(error) - 1) * reference_s / median_s)
