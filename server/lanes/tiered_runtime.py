"""A runtime over tiers: gathers each batch in the view of the rows in which it was encoded.

A view is an order of the rows with the updates over it. A batch may wait for its lane while rows are
reordered or updated, so it carries its view, where the runtime also counts rows that the remote store failed
to give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import Stage
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import tiered_rows
from polyrec.models.tiers.view import View


@dataclass(slots=True, eq=False)
class BatchView:
    """The view of the tiers that one batch is encoded and gathered in.

    entered: the one that is held; view: the same, with what was fetched for the batch. lost: rows answered by
    the out-of-vocabulary row, since the remote store failed.
    """

    stack: TierStack
    entered: View
    view: View
    lost: int = 0

    @classmethod
    def enter(cls, stack: TierStack) -> Self:
        """Enters the newest view, which `leave` must release."""
        view = stack.views.enter()
        return cls(stack, view, view)

    def add(self, fetched: Sequence[FetchedRows]) -> None:
        """Adds remote rows that were fetched ahead, in views of the same order that are still held."""
        self.view = replace(self.entered, staged=FetchedRows.merged(fetched), readers=0)

    @property
    def encoder(self) -> Encoder:
        """The encoder to use for the batch."""
        encoder = self.view.encoder
        assert encoder is not None  # a server opens its tiers with one
        return encoder

    def attach(self, batch: Batch) -> Batch:
        """Returns the batch with this view."""
        return TieredBatch(batch.context, batch.candidate, batch.context_row, batch.plain_rows, self)

    def leave(self) -> None:
        """Releases the view; nothing may be gathered in it any more."""
        self.stack.views.leave(self.entered)


@dataclass(frozen=True, slots=True)
class TieredBatch(Batch):
    """A batch with the view in which it was encoded."""

    batch_view: BatchView | None = None


class TieredRuntime:
    """A runtime over tiers. A batch without a view is gathered in the first order of the rows."""

    def __init__(self, runtime: Runtime) -> None:
        rows = tiered_rows(runtime.stage)
        if rows is None:
            raise ValueError("the runtime's rows are not in tiers")
        self._runtime = runtime
        self._rows: TieredRows = rows

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def device(self) -> str:
        return self._runtime.device

    @property
    def stage(self) -> Stage:
        return self._runtime.stage

    @property
    def precision(self) -> DensePrecision:
        return self._runtime.precision

    def embed(self, batch: Batch) -> Any:
        batch_view = batch.batch_view if isinstance(batch, TieredBatch) else None
        if batch_view is None:
            return self._runtime.embed(batch)
        with self._rows.within(batch_view.view):
            try:
                return self._runtime.embed(batch)
            finally:
                batch_view.lost += self._rows.take_fallbacks()

    def dense(self, embedded: Any) -> F32:
        return self._runtime.dense(embedded)

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))
