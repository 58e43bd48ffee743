"""Request features that are not computed until a batch of requests is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.models.schema.request.features import RequestFeatures
from polyrec.models.schema.request.rows import RequestRows


@dataclass(frozen=True)
class PendingFeatures:
    """The request features of `rows`, still to be computed.

    Requests in one batch are computed together, because the dozens of array operations take about as long for
    eight requests of 25 rows as for one.
    """

    features: RequestFeatures
    rows: RequestRows

    def compute(self) -> F64:
        """Computes them: float64 [rows, features], NaN where missing."""
        return self.features(self.rows)

    @cached_property
    def for_parts(self) -> F64:
        """The same, computed once for all parts of a request that is split."""
        return self.compute()


RequestValues = PendingFeatures | F64
"""Request features, computed or not."""


def computed(values: RequestValues | None) -> F64 | None:
    """Returns request features, float64 [rows, features]; None if there are none."""
    return values.compute() if isinstance(values, PendingFeatures) else values


def part_of(values: RequestValues | None, first: int, end: int) -> F64 | None:
    """Returns the request features of rows [first, end)."""
    if isinstance(values, PendingFeatures):
        values = values.for_parts
    return None if values is None else values[first:end]


def joined(parts: Sequence[RequestValues | None]) -> RequestValues | None:
    """Concatenates request features, which either all or no requests of a schema have."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    pending = [part for part in given if isinstance(part, PendingFeatures)]
    if len(pending) == len(given):
        return PendingFeatures(pending[0].features, RequestRows.joined([part.rows for part in pending]))
    return np.concatenate([part.compute() if isinstance(part, PendingFeatures) else part for part in given])
