"""Estimates a core's time outside the lanes (reading, answering, rejecting) for any number of answers.

A bound that answers more requests than a run did must include the cost of these answers: the run's time,
plus, for each further answer, the difference between the cost of an answer and of a rejection.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Front:
    """A core's time outside the lanes.

    spent_s: time in a run of `requests`, of which `answered` were answered. answer_s: time to read and answer
    a single request on an idle server.
    """

    spent_s: float
    requests: int
    answered: int
    answer_s: float

    def seconds(self, answered: float) -> float:
        """Returns the seconds if `answered` requests were answered; a rejection costs at most an answer."""
        rejected = self.requests - self.answered
        reject_s = self.answer_s
        if rejected:
            reject_s = min(reject_s, max(0.0, self.spent_s - self.answered * self.answer_s) / rejected)
        return self.spent_s + (answered - self.answered) * (self.answer_s - reject_s)
