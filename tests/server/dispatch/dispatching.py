"""A dispatcher of one path on one lane, and runtimes that fail or wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import Columns, Rows
from polyrec.server.dispatch.answer import Pending
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.dispatch.executor import ExecutionPath
from polyrec.server.dispatch.observer import ExecutedBatch
from polyrec.server.lanes.lane import Lane


class Tally:
    """Remembers the batches that it observed: (rows, queries)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def batch_executed(self, executed: ExecutedBatch) -> None:
        self.batches.append((executed.batch.rows, executed.queries))

    def lane_alive(self, lane: int, alive: bool) -> None:
        raise AssertionError("no lane dies here")

    def ticked(self, late_s: float, took_s: float) -> None:
        assert late_s >= 0
        assert took_s >= 0


class Troubled:
    """A runtime around another: fails on batches with an item of a given rank, or gives a fixed answer."""

    def __init__(
        self, runtime: Runtime, breaks_at_rank: int | None = None, answers: float | None = None
    ) -> None:
        self._runtime = runtime
        self._breaks_at = breaks_at_rank
        self._answers = answers
        self.name, self.device = runtime.name, runtime.device

    def embed(self, batch: Batch) -> Any:
        if self._breaks_at is not None and (batch.candidate.ranks[:, 0] == self._breaks_at).any():
            raise RuntimeError("the device is on fire")
        return self._runtime.embed(batch)

    def dense(self, embedded: Any) -> F32:
        p = self._runtime.dense(embedded)
        return p if self._answers is None else np.where(np.arange(p.size) == 0, self._answers, p)


class Held(Troubled):
    """Embeds when it is let go."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.entered, self.release = threading.Event(), threading.Event()

    def embed(self, batch: Batch) -> Any:
        self.entered.set()
        self.release.wait()
        return super().embed(batch)


QUICK = LatencyModel(rows=(1, 1024), median_s=(1e-6, 1e-4), tail_s=(1e-6, 1e-4))


def dispatcher(bundle: Bundle, lane: Lane, kind: LaneKind, **limits: int) -> tuple[Dispatcher, Tally]:
    """One path on one lane."""
    bounds = Limits(**{"max_request_rows": 8, **limits})
    paths, lanes = [PathSpec("table@cpu", "cpu", 0.9, QUICK)], [LaneSpec("cpu", "cpu", kind)]
    router = Router(RouterState(paths, lanes, Routing(policy="static:table@cpu"), bounds, clock()))
    tally = Tally()
    return Dispatcher(router, [lane], [ExecutionPath("table@cpu", bundle.encoder)], tally), tally


def submit(lane: Dispatcher, rows: Rows, budget_s: float = 60, arrived_s: float = 0.0) -> Pending:
    """arrived_s: seconds ago."""
    answer: Pending = lane.submit(rows, clock() - arrived_s, budget_s).payload.answer
    return answer


Make = Callable[..., tuple[Dispatcher, Tally]]
Ranking = Callable[..., Columns]


def items(bundle: Bundle, count: int) -> list[str]:
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    return [str(v) for v in values.to_pylist()[:count]]
