"""A runtime over tiers, which gathers each batch's rows in the view in which the batch was encoded.

A view is a snapshot: an order of the rows, plus the updates applied to them. Rows may be reordered or updated
while a batch waits for its lane, so the batch carries its view. The runtime also counts there the rows that
the remote store failed to return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import Stage
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import tiered_rows
from polyrec.models.tiers.view import View


@dataclass(slots=True, eq=False)
class BatchView:
    """The view of the tiers in which one batch is encoded and gathered.

    entered: the view as entered, which `leave` releases.
    view: the same view plus what is known of the batch before: its fetched rows, and which lookups they are.
    lost: number of rows replaced by the out-of-vocabulary row because the remote store failed.
    """

    stack: TierStack
    entered: View
    view: View
    lost: int = 0

    @classmethod
    def enter(cls, stack: TierStack) -> Self:
        """Enters the newest view, which must be released by `leave`."""
        view = stack.views.enter()
        return cls(stack, view, view)

    def add(self, fetched: Sequence[FetchedRows], others: I64 | None) -> None:
        """Adds prefetched remote rows and `View.others`.

        The views of both must have the same row order; those of fetched rows must still be held.
        """
        self.view = self.entered.of_batch(FetchedRows.merged(fetched) if fetched else None, others)

    @property
    def encoder(self) -> Encoder:
        """The encoder of this view, to be used for the batch."""
        encoder = self.view.encoder
        assert encoder is not None  # the server opens all tiers with an encoder
        return encoder

    def attach(self, batch: Batch) -> Batch:
        """Returns the batch with this view attached."""
        return TieredBatch(batch.context, batch.candidate, batch.context_row, batch.plain_rows, self)

    def leave(self) -> None:
        """Releases the view, in which nothing may be gathered afterwards."""
        self.stack.views.leave(self.entered)


@dataclass(frozen=True, slots=True)
class TieredBatch(Batch):
    """A batch with the view in which it was encoded."""

    batch_view: BatchView | None = None


class TieredRuntime:
    """A runtime over tiers. A batch without a view is gathered in the initial row order."""

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
