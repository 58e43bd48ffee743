"""The queries that a simulation runs, or a bound is computed for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyrec.models.schema.batch import F64, I64
from polyrec.planner.plan import Limits
from polyrec.planner.routing.lanes.path import PathSpec


@dataclass(frozen=True, slots=True)
class Trace:
    """The queries of one model, and the paths and limits that serve them.

    arrival_s: float64 [queries], ascending.
    rows: int64 [queries].
    budget_s: float64 [queries], or one for all.
    weight: weight of the model's information beside that of others.
    """

    paths: Sequence[PathSpec]
    limits: Limits
    arrival_s: F64
    rows: I64
    budget_s: float | F64
    weight: float = 1.0

    @property
    def budgets(self) -> F64:
        """The budget of each query in seconds, float64 [queries]."""
        return np.broadcast_to(np.asarray(self.budget_s, np.float64), self.arrival_s.shape)
