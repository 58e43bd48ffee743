"""Keeps samples of the counters of the last five minutes, for the status page.

A sample is taken every two seconds while the control loop runs or the page is open. Counts are cumulative;
readers compute differences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

EVERY_S = 2.0
KEPT_S = 300.0

Sample = dict[str, Any]


class History:
    """The samples of one server.

    sample: makes a sample, as plain data for JSON. started_s: time in seconds from which a sample's `t`
    counts.
    """

    def __init__(self, sample: Callable[[], Sample], started_s: float) -> None:
        self._sample = sample
        self._started_s = started_s
        self._samples: deque[Sample] = deque(maxlen=round(KEPT_S / EVERY_S))
        self._due_s = started_s

    def sample_if_due(self, now_s: float) -> Sample | None:
        """Takes and keeps a sample if one is due; returns it or None."""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + EVERY_S
        self._samples.append(self.current_sample(now_s))
        return self._samples[-1]

    def current_sample(self, now_s: float) -> Sample:
        """Takes a sample without keeping it."""
        return {"t": round(now_s - self._started_s, 3)} | self._sample()

    def since(self, t: float) -> list[Sample]:
        """Returns the samples after `t`, oldest first."""
        return [sample for sample in self._samples if sample["t"] > t]
