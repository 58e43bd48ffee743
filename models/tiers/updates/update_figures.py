"""Counts the updates of a bundle's rows, for metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass

from polyrec.models.tiers.updates.update import StoredUpdate


@dataclass(slots=True)
class UpdateFigures:
    """Counts since the server started, with the time and lag of the last update.

    failed: updates that could not be kept. applied_at: Unix time, 0 if there was none.
    lag_s: age of the last update's values when they were first served; None if unknown.
    """

    updates: int = 0
    failed: int = 0
    rows: int = 0
    added: int = 0
    retracted: int = 0
    expired: int = 0
    applied_at: float = 0.0
    lag_s: float | None = None

    def note(self, update: StoredUpdate, lag_s: float | None) -> None:
        """Counts an update."""
        self.updates += 1
        self.rows += sum(given.ids.size for given in update.rows.values())
        self.added += update.added
        self.retracted += update.retracted
        self.applied_at = time.time()
        if lag_s is not None:
            self.lag_s = lag_s
