"""The observer of a dispatcher: who is told what was executed and how the lanes and the control loop are."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder


class Batched(NamedTuple):
    """One executed batch: its rows, how many queries shared it, and the time of each stage.

    encoder: what it was encoded with, where that is not always the path's own.
    """

    lane: int
    path: int
    batch: Batch
    queries: int
    encode_s: float
    embed_s: float
    dense_s: float
    took_s: float
    encoder: Encoder | None = None


class Observer(Protocol):
    """Who is told about batches, lanes and turns of the control loop (how late it came, what it took)."""

    def batch_executed(self, batched: Batched) -> None: ...

    def lane_alive(self, lane: int, alive: bool) -> None: ...

    def ticked(self, late_s: float, took_s: float) -> None: ...
