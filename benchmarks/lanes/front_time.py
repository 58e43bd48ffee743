"""Measures a core's time outside the lanes: reading, answering and rejecting, for any number of answers.

A bound that answers more requests than a run did must also pay for their answers: as much as in that run, and
for each more what an answer costs more than a rejection.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Front:
    """Time of the core beside the lanes. spent_s: in a run of `requests`, of which `answered` were answered.

    answer_s: reading and answering one request, as when it is alone.
    """

    spent_s: float
    requests: int
    answered: int
    answer_s: float

    def seconds(self, answered: float) -> float:
        """Seconds if `answered` requests were answered instead; no rejection costs more than an answer."""
        rejected = self.requests - self.answered
        reject_s = self.answer_s
        if rejected:
            reject_s = min(reject_s, max(0.0, self.spent_s - self.answered * self.answer_s) / rejected)
        return self.spent_s + (answered - self.answered) * (self.answer_s - reject_s)
