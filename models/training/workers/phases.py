"""Implements FAE's schedule: hot batches, with popular lookups only, alternate with cold ones (Adnan et al.,
VLDB'22).

A training row is hot if all of its lookups are of replicated rows. A window is drawn as hot batches, which
need no exchange of rows, and cold ones. They take turns; a round is one turn of each, and has an equal share
of the cold and of the hot batches.

Long turns rarely switch, but the net forgets one kind while it trains on the other. Turns of a share of the
window, which the paper doubles while the validation loss falls, cost ML-1M .0017 of AUC
(docs/results/training-equivalence.md). So a round is short, and the loss can only shorten it: a worse loss
halves it, PATIENCE better ones in a row double it again. A switch copies only what steps have changed since
the previous one, so short turns copy little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.training.source import Rows
from polyrec.models.training.workers.stage import ShardedStage

MIN_STEPS, ROUND_STEPS = 2, 8
"""Batches of a round, at least and at most."""
MAX_SHARE = 0.5
"""Share of a window's batches in a round, at most."""
PATIENCE = 4
CLASSIFIED_AT_ONCE = 8192


class Phases:
    """The turns of cold and hot batches. steps: batches per round, before rounding."""

    def __init__(self) -> None:
        self.steps = ROUND_STEPS
        self._last, self._better = inf, 0

    def checked(self, log_loss: float) -> None:
        """Adapts the length of rounds to a validation loss."""
        if log_loss > self._last:
            self.steps, self._better = max(MIN_STEPS, self.steps // 2), 0
        else:
            self._better += 1
            if self._better == PATIENCE:
                self.steps, self._better = min(ROUND_STEPS, self.steps * 2), 0
        self._last = log_loss

    def interleave(self, cold: Sequence[I64], hot: Sequence[I64]) -> Iterator[tuple[bool, I64]]:
        """Yields batches in turns, cold ones first, each with whether it is hot."""
        total, share, done = len(cold) + len(hot), 0.0, [0, 0]
        while sum(done) < total:
            share += min(MAX_SHARE, self.steps / total)
            for kind, batches in enumerate((cold, hot)):
                upto = min(len(batches), ceil(share * len(batches)))
                for chosen in batches[done[kind] : upto]:
                    yield bool(kind), chosen
                done[kind] = upto


def hot_rows_of(stage: ShardedStage, window: Rows, group: I64 | None) -> NDArray[np.bool_]:
    """Returns which rows of a window are hot, bool [rows]; with `group`, only rows of entirely hot
    requests.
    """
    parts = [
        stage.hot_rows_of(window.data.batch(window.rows[start : start + CLASSIFIED_AT_ONCE]))
        for start in range(0, window.rows.size, CLASSIFIED_AT_ONCE)
    ]
    hot = np.concatenate(parts) if parts else np.zeros(0, bool)
    return hot if group is None else whole_requests(hot, group[window.rows])


def whole_requests(hot: NDArray[np.bool_], group: I64) -> NDArray[np.bool_]:
    """Returns which rows belong to requests whose rows are all hot."""
    _, request = np.unique(group, return_inverse=True)
    cold = np.bincount(request, weights=~hot)
    found: NDArray[np.bool_] = cold[request] == 0
    return found
