"""The last minutes of what was counted, for the status page: who opens it sees what has just happened.

Samples of the counters are kept every two seconds while requests come (the control loop turns) or somebody
looks; whoever reads them takes differences. Nothing else is stored, and nothing on the path of requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

EVERY_S = 2.0
KEPT_S = 300.0

Sample = dict[str, Any]


class History:
    """`sample` makes one, JSON-able; its key `t` becomes the seconds since `started_s`, of the same clock."""

    def __init__(self, sample: Callable[[], Sample], started_s: float) -> None:
        self._sample = sample
        self._started_s = started_s
        self._kept: deque[Sample] = deque(maxlen=round(KEPT_S / EVERY_S))
        self._due_s = started_s

    def note(self, now_s: float) -> None:
        """Keeps a sample if it is time for one."""
        if now_s >= self._due_s:
            self._due_s = now_s + EVERY_S
            self._kept.append(self.now(now_s))

    def now(self, now_s: float) -> Sample:
        """A sample of this moment, which is not kept."""
        return {"t": round(now_s - self._started_s, 3)} | self._sample()

    def since(self, t: float) -> list[Sample]:
        """The samples later than `t`, oldest first."""
        return [sample for sample in self._kept if sample["t"] > t]
