"""A Kalman filter that separates the core's speed from a path's own service time.

Paths of one lane are executed at different times, at different speeds of the core: neighbors, heat and the
server's own work come and go within seconds, and make a tenth or more. To compare paths that differ by less,
each path has an estimated error of its profile (logarithm of observed over profiled seconds), and the filter
the covariance of these estimates. All errors drift together quickly, and each by itself slowly. So while one
path is executed, the others follow it; when the path changes, the difference counts as the new path's own, to
the extent that the core is unlikely to have changed at that moment, and is remembered with OWN_MEMORY_S.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p

import numpy as np

from polyrec.models.schema.batch import F64

OWN_MEMORY_S = 30.0
"""Time constant with which a path returns to what the reference tells of it."""
COMMON_MEMORY_S = 2.5
"""Time constant with which the common error is forgotten at rest."""
COMMON_VARIANCE_S, OWN_VARIANCE_S = 0.3, 0.0015
"""Variances of the drift in a second: of all errors together, 0.17 in 0.1 s, and of each by itself."""
UNKNOWN_VARIANCE, UNTRIED_VARIANCE = 100.0, 0.5**2
"""Before the first batch, in common and of each: the first path executed tells only what is common."""
BATCH_VARIANCE, TICK_VARIANCE = 0.1**2, 0.02**2
"""Variances of a batch's error, and of a path's mean error over a tick beyond that."""


class PathSpeeds:
    """Estimated errors of the profiles of a lane's paths. errors: by path."""

    __slots__ = ("_covariance", "_reference", "errors")

    def __init__(self, paths: int) -> None:
        self.errors = [0.0] * paths
        self._covariance: F64 = np.full((paths, paths), UNKNOWN_VARIANCE) + np.eye(paths) * UNTRIED_VARIANCE
        self._reference = 0
        """The path with most batches when any were executed last."""

    def update(
        self,
        passed_s: float,
        batches: Sequence[int],
        errors: Sequence[float],
        medians: Sequence[float],
        at_rest: bool = False,
    ) -> None:
        """Lets passed_s seconds pass in which batches were executed.

        By path: batches, their number; errors, their mean errors; medians, profiled seconds. at_rest: whether
        none has been executed for so long that what they have in common is to be forgotten.
        """
        paths = range(len(batches))
        self._covariance += COMMON_VARIANCE_S * passed_s
        # without the part that all have in common, which is unknown after a rest
        own_variance = self._covariance.diagonal() - self._covariance.min(axis=1)
        drift = OWN_VARIANCE_S * passed_s * (own_variance < UNTRIED_VARIANCE)
        self._covariance[np.diag_indices_from(self._covariance)] += drift
        for path in paths:
            if batches[path]:
                self._observe(path, errors[path], BATCH_VARIANCE / batches[path] + TICK_VARIANCE, medians)
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

    def _observe(self, path: int, error: float, variance: float, medians: Sequence[float]) -> None:
        covariance = self._covariance[path].copy()
        gain = covariance / (covariance[path] + variance)
        before = self.errors[path]
        for other, step in enumerate((gain * (error - before)).tolist()):
            after = _expected(before + step, medians[path], medians[other])
            self.errors[other] += after - _expected(before, medians[path], medians[other])
        self._covariance -= np.outer(gain, covariance)


def _expected(error: float, reference_s: float, median_s: float) -> float:
    """Error to expect of a path that takes median_s by its profile, by that of a reference path.

    A slow core costs every path the same factor, work around a batch the same seconds. Of what is slower, the
    smaller is expected: a path that seems too fast is tried and measured, one that seems too slow is not.
    """
    if error <= 0 or median_s <= reference_s:
        return error
    return log1p((exp(error) - 1) * reference_s / median_s)
