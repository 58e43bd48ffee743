"""The runtime protocol: executes one bundle on one device.

A prediction has two stages: `embed` turns ranks into vectors, `dense` turns vectors into probabilities. They
are separate so that a lane can time them, and overlap one batch's gather with another's dense part. A runtime
belongs to one lane: it reuses its buffers and is not thread-safe. The result of `embed` is valid until its
next call.
"""

from __future__ import annotations

from typing import Any, Protocol

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import Stage
from polyrec.models.schema.batch import F32, Batch


class Runtime(Protocol):
    """One bundle on one device, ready to execute batches."""

    @property
    def name(self) -> str:
        """The kind of runtime: `torch` or `onnx`."""
        ...

    @property
    def device(self) -> str:
        """The device: `cpu`, `cuda:0`."""
        ...

    @property
    def stage(self) -> Stage:
        """The embedding stage, for cost estimates and measurements."""
        ...

    @property
    def precision(self) -> DensePrecision:
        """Precision of the dense net's products; that of stored rows is the bundle's."""
        ...

    def embed(self, batch: Batch) -> Any:
        """Looks up the batch's vectors, to be passed to `dense` before the next `embed`."""
        ...

    def dense(self, embedded: Any) -> F32:
        """Returns the click probability of each row, float32 [rows], in a new array."""
        ...

    def predict(self, batch: Batch) -> F32:
        """Returns `dense(embed(batch))`, float32 [rows]."""
        ...
