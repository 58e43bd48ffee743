"""Computes mean and deviation of a dense feature over a stream of batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.errors import DataError
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.schema import Dense

LEAST = 1e-20


class Moments:
    """Mean and deviation of one dense feature after log1p, in one pass.

    Batches are merged by the formula of Chan, Golub and LeVeque (1979), which avoids the cancellation of sums
    of squares.
    """

    def __init__(self, feature: Dense) -> None:
        self.feature = feature
        self._count = 0
        self._mean = self._squares = 0.0

    def add(self, raw: NDArray[np.float64]) -> None:
        """Adds values. raw: float64 [rows], NaN where missing. Raises DataError for values whose squares
        overflow.
        """
        x = raw[~np.isnan(raw)]
        if not x.size:
            return
        if "log1p" in self.feature.transform:
            x = np.log1p(np.maximum(x, 0.0))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.mean()
            delta, total = mean - self._mean, self._count + x.size
            squares = ((x - mean) ** 2).sum() + np.square(delta) * self._count * x.size / total
        if not np.isfinite(squares):
            raise DataError(
                f"dense feature '{self.feature.name}': its values, up to {np.abs(x).max():g}, are too large "
                "to have a deviation; correct them, or say `transform: [log1p, standardise]`"
            )
        self._squares += float(squares)
        self._mean += float(delta * x.size / total)
        self._count = total

    def standard(self) -> Standard:
        """Returns mean and deviation so far; the deviation of a feature that is constant up to rounding is 1.

        So is a deviation below LEAST, as dividing an ordinary value by it would overflow float32.
        """
        deviation = float(np.sqrt(self._squares / self._count)) if self._count else 0.0
        varies = deviation > max(1e-12 * abs(self._mean), LEAST)
        return Standard(self._mean, deviation if varies else 1.0)
