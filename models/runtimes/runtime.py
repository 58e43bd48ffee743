"""The runtime protocol: executes one bundle on one device.

A prediction has two stages: `embed` turns ranks into vectors, `dense` turns vectors into
probabilities. They are apart so that a lane can time them, and overlap one batch's gather with
another's dense part. A runtime belongs to one lane: it reuses its buffers and is not thread-safe.
What `embed` returns is only valid until its next call.
"""

from __future__ import annotations

from typing import Any, Protocol

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import Stage
from polyrec.models.schema.batch import F32, Batch


class Runtime(Protocol):
    """One bundle on one device, ready to answer."""

    @property
    def name(self) -> str:
        """The kind of runtime: `torch` or `onnx`."""
        ...

    @property
    def device(self) -> str:
        """Where it executes: `cpu`, `cuda:0`."""
        ...

    @property
    def stage(self) -> Stage:
        """The embedding stage, for whoever asks what it costs or measures it."""
        ...

    @property
    def precision(self) -> DensePrecision:
        """Of the dense net's products; the rows' own precision is the bundle's."""
        ...

    def embed(self, batch: Batch) -> Any:
        """Looks up the batch's vectors; the result goes to `dense` before the next `embed`."""
        ...

    def dense(self, embedded: Any) -> F32:
        """float32 [rows], the click probability of each row; the array is the caller's."""
        ...

    def predict(self, batch: Batch) -> F32:
        """float32 [rows]: `dense(embed(batch))`."""
        ...
