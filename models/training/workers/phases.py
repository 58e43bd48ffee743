"""FAE's schedule: batches with popular look-ups only alternate with others (Adnan et al., VLDB'22).

A training row is hot if all of its look-ups are of replicated rows. A window is drawn as hot batches, which
need no exchange of rows, and cold ones. They take turns: a share `rate` of the cold batches, then that share
of the hot ones, and so on. Long turns switch rarely, but train long on one kind: a worse validation loss
halves the rate, PATIENCE better ones in a row double it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.training.source import Rows
from polyrec.models.training.workers.stage import ShardedStage

FIRST_RATE, LEAST_RATE = 0.5, 1 / 64
PATIENCE = 4
CLASSIFIED_AT_ONCE = 8192


class Phases:
    """The turns of cold and hot batches. rate: share of a window's batches in a turn."""

    def __init__(self) -> None:
        self.rate = FIRST_RATE
        self._last, self._better = inf, 0

    def checked(self, log_loss: float) -> None:
        """Adapts the rate to a validation loss."""
        if log_loss > self._last:
            self.rate, self._better = max(LEAST_RATE, self.rate / 2), 0
        else:
            self._better += 1
            if self._better == PATIENCE:
                self.rate, self._better = min(1.0, self.rate * 2), 0
        self._last = log_loss

    def interleave(self, cold: Sequence[I64], hot: Sequence[I64]) -> Iterator[tuple[bool, I64]]:
        """Yields batches in turns, cold ones first, each with whether it is hot."""
        done = [0, 0]
        while done[0] < len(cold) or done[1] < len(hot):
            for kind, batches in enumerate((cold, hot)):
                upto = min(len(batches), done[kind] + max(1, ceil(self.rate * len(batches))))
                for chosen in batches[done[kind] : upto]:
                    yield bool(kind), chosen
                done[kind] = upto


def hot_rows_of(stage: ShardedStage, window: Rows, group: I64 | None) -> NDArray[np.bool_]:
    """Returns which rows of a window are hot, bool [rows]; with `group`, only rows of wholly hot requests."""
    parts = [
        stage.hot_rows_of(window.data.batch(window.rows[start : start + CLASSIFIED_AT_ONCE]))
        for start in range(0, window.rows.size, CLASSIFIED_AT_ONCE)
    ]
    hot = np.concatenate(parts) if parts else np.zeros(0, bool)
    return hot if group is None else whole_requests(hot, group[window.rows])


def whole_requests(hot: NDArray[np.bool_], group: I64) -> NDArray[np.bool_]:
    """Returns which rows are of requests whose rows are all hot."""
    _, request = np.unique(group, return_inverse=True)
    cold = np.bincount(request, weights=~hot)
    found: NDArray[np.bool_] = cold[request] == 0
    return found
