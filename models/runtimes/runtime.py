"""Defines the runtime protocol: a runtime executes one bundle on one device.

A prediction has two stages: `embed` turns ranks into vectors, `dense` turns vectors into probabilities. They
are separate so that a lane can time them, and overlap one batch's gather with another's dense part. A runtime
is used by one lane: it reuses its buffers and is not thread-safe. The result of `embed` is valid until its
next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import Stage
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.schema.batch import F32, Batch

if TYPE_CHECKING:
    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.bundle.weights import BundleWeights
    from polyrec.models.tiers.slab import Slab
    from polyrec.models.tiers.stack import TierStack


class Runtime(Protocol):
    """One bundle on one device, ready to execute batches."""

    @property
    def name(self) -> str:
        """The kind of runtime, as in the registry: `torch`, `onnx`."""
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
        """Precision of the dense net's products; the precision of stored rows belongs to the bundle."""
        ...

    def embed(self, batch: Batch) -> Any:
        """Looks up the batch's vectors; pass the result to `dense` before the next `embed`."""
        ...

    def dense(self, embedded: Any) -> F32:
        """Returns the click probability of each row, float32 [rows], in a new array."""
        ...

    def predict(self, batch: Batch) -> F32:
        """Returns `dense(embed(batch))`, float32 [rows]."""
        ...


class OpenRuntime(Protocol):
    """Opens a bundle, or only its weights, on a device; see polyrec.models.runtimes.open_runtime."""

    def __call__(
        self,
        bundle: Bundle | BundleWeights,
        device: str,
        precision: DensePrecision,
        tiers: TierStack | Slab | None,
    ) -> Runtime: ...


@dataclass(frozen=True, slots=True)
class RuntimeKind:
    """Describes a runtime to the registry (models/runtimes/registry.py).

    devices: kinds of devices it supports, the part of a name before the colon: `cuda` of `cuda:0`.
    precisions: returns the dense net's precisions on a device of this machine; empty if the device is
    unknown.
    probe: executes a product on a device; returns why that fails, or None.
    library: name and version of the executing library; when it changes, profiles are measured again.
    """

    open: OpenRuntime
    devices: tuple[str, ...]
    precisions: Callable[[str], tuple[DensePrecision, ...]]
    probe: Callable[[str], str | None]
    library: str


def require_precision(runtime: str, precision: DensePrecision, known: Iterable[DensePrecision]) -> None:
    """Raises RuntimeUnavailable unless a dense precision is known. runtime: its name in the message."""
    known = tuple(known)
    if precision not in known:
        raise RuntimeUnavailable(f"{runtime} has no dense precision '{precision}'; known: {', '.join(known)}")
