"""Interface through which a dispatcher reports executed batches, lanes and control-loop ticks to metrics."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder


class ExecutedBatch(NamedTuple):
    """One executed batch: its rows, the number of queries in it, and the seconds of each stage.

    encoder: the encoder of its rows, None where that is always the path's own.
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
    """Receives batches, lane states, and for each control tick its lateness and duration in seconds."""

    def batch_executed(self, batched: ExecutedBatch) -> None: ...

    def lane_alive(self, lane: int, alive: bool) -> None: ...

    def ticked(self, late_s: float, took_s: float) -> None: ...
