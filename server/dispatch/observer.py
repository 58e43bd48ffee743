"""The interface through which a dispatcher reports to metrics (server/metrics)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder


class ExecutedBatch(NamedTuple):
    """One executed batch: its rows, the number of queries in it, and the seconds of each stage.

    encoder: the encoder that its rows were encoded with, None if that is always the path's own.
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
    """Receives executed batches, lane states, and the lateness and duration of control ticks in seconds."""

    def batch_executed(self, executed: ExecutedBatch) -> None: ...

    def lane_alive(self, lane: int, alive: bool) -> None: ...

    def ticked(self, late_s: float, took_s: float) -> None: ...
