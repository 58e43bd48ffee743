"""Chooses the model whose batch is next in a pool: the most urgent, unless another is behind its share.

Each model has a tag, the lane time it used divided by its share. Earliest deadline first meets the most
deadlines but lets one model delay another without limit; start-time fair queuing does not. So the most urgent
model goes first while it is ahead of no other by more than a tolerated time; otherwise the one furthest
behind goes first. A model that had nothing to execute starts level with the others: no time is saved up.

Source: Goyal, Vin and Cheng, Start-time fair queuing, SIGCOMM'96.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MIN_SHARE = 1e-3
M = TypeVar("M", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Contender(Generic[M]):
    """A model with waiting work.

    start_s: latest start that still meets the deadline.
    tolerated_s: lane time by which others may be ahead of it.
    """

    model: M
    start_s: float
    tolerated_s: float


class Turns(Generic[M]):
    """Tracks lane time used in one pool by model. shares: share of the pool's time by model."""

    def __init__(self) -> None:
        self.shares: dict[M, float] = {}
        self._tags: dict[M, float] = {}
        self._active: set[M] = set()
        self._now = 0.0

    def choose(self, contenders: Sequence[Contender[M]]) -> M:
        """Returns the model that may start the next batch."""
        for contender in contenders:
            self._activate(contender.model)
        tags = self._tags
        urgent = min(contenders, key=lambda c: c.start_s)
        behind = min(contenders, key=lambda c: tags[c.model])
        # in the time of those ahead, which is what the model behind has waited, however small its share
        lead_s = (tags[urgent.model] - tags[behind.model]) * self._share(urgent.model)
        return behind.model if lead_s > behind.tolerated_s else urgent.model

    def charge(self, model: M, seconds: float, waiting: Iterable[M]) -> None:
        """Records that a model starts a batch of `seconds`. waiting: all models with work left."""
        active = {model, *waiting}
        for each in active:
            self._activate(each)
        self._active = active
        self._now = max(self._now, min(self._tags[each] for each in active))
        self.correct(model, seconds)

    def correct(self, model: M, seconds: float) -> None:
        """Adds seconds, possibly negative, to the lane time that a model has used."""
        if model in self._tags:
            self._tags[model] += seconds / self._share(model)

    def _activate(self, model: M) -> None:
        if model not in self._active:
            self._active.add(model)
            self._tags[model] = max(self._tags.get(model, 0.0), self._now)

    def _share(self, model: M) -> float:
        return max(MIN_SHARE, self.shares.get(model, MIN_SHARE))
