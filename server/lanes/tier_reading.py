"""A reading: one batch of a path whose rows are in tiers, from its encoding to its answers.

What a batch is encoded in (an order of the rows, and updates laid over it) is what it must be gathered in,
however long it waits for its lane in between. So it carries the view of that moment, and comes back with the
number of rows that the remote store did not give. Lanes know nothing of this: the runtime does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import Stage
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import tiered_rows
from polyrec.models.tiers.view import View


@dataclass(slots=True, eq=False)
class Reading:
    """lost: rows answered by the out-of-vocabulary row, as the remote store did not answer."""

    stack: TierStack
    view: View
    lost: int = 0

    @classmethod
    def begin(cls, stack: TierStack) -> Self:
        """In what is newest now; to be ended."""
        return cls(stack, stack.views.enter())

    @property
    def encoder(self) -> Encoder:
        """What the batch is to be encoded with."""
        encoder = self.view.encoder
        assert encoder is not None  # a server opens its tiers with one
        return encoder

    def of(self, batch: Batch) -> Batch:
        """The batch, to be gathered in this reading."""
        return ReadBatch(batch.context, batch.candidate, batch.context_row, batch.plain_rows, self)

    def end(self) -> None:
        """Nothing is gathered in this view any more."""
        self.stack.views.leave(self.view)


@dataclass(frozen=True, slots=True)
class ReadBatch(Batch):
    """A batch that says in which view it was encoded."""

    reading: Reading | None = None


class TieredRuntime:
    """A runtime over tiers: gathers each batch in its own reading. One that has none, in the first order."""

    def __init__(self, runtime: Runtime) -> None:
        rows = tiered_rows(runtime.stage)
        if rows is None:
            raise ValueError("the runtime's rows are in no tiers")
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
        reading = batch.reading if isinstance(batch, ReadBatch) else None
        if reading is None:
            return self._runtime.embed(batch)
        with self._rows.within(reading.view):
            try:
                return self._runtime.embed(batch)
            finally:
                reading.lost += self._rows.take_fallbacks()

    def dense(self, embedded: Any) -> F32:
        return self._runtime.dense(embedded)

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))
