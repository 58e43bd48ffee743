"""Executes bundles with torch: the whole model on one device (cpu, cuda), dense net in fp32 or bf16.

On a GPU, the dense net is replayed as CUDA graphs (buckets.py), and tiered lookups are one kernel.
"""

from __future__ import annotations

import torch

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.weights import BundleWeights
from polyrec.models.dlrm.batch_invariance import BLOCK, min_batch_rows
from polyrec.models.dlrm.context_once import ContextOnce
from polyrec.models.dlrm.dlrm import Inputs, inputs_of
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.buckets import Buckets, predict_unbucketed
from polyrec.models.runtimes.denormals import denormals_as_zero
from polyrec.models.runtimes.mixed_batch import run_parts, split_plain_and_ranking
from polyrec.models.runtimes.runtime import RuntimeKind, require_precision
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.tiers.slab import Slab
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_stage

DTYPES: dict[DensePrecision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class TorchRuntime:
    """Executes a bundle with torch. Set torch's thread count, which is per process, beforehand."""

    name = "torch"

    def __init__(
        self,
        bundle: Bundle | BundleWeights,
        device: str = "cpu",
        precision: DensePrecision = "fp32",
        tiers: TierStack | Slab | None = None,
    ) -> None:
        require_precision("torch", precision, DTYPES)
        try:
            self._device = torch.device(device)
            torch.empty(0, device=self._device)
        except (RuntimeError, AssertionError) as e:
            raise RuntimeUnavailable(_missing(device, e)) from None
        self.device = str(self._device)
        self.precision = precision
        self._type = DTYPES[precision]
        self._buckets: Buckets | None = None
        try:
            self._open(bundle, tiers)
        except RuntimeError as e:
            # errors of a device: out of memory, and whatever the driver reports
            if self._device.type == "cpu":
                raise
            raise RuntimeUnavailable(f"torch fails on '{device}': {str(e).splitlines()[0]}") from None

    def _open(self, bundle: Bundle | BundleWeights, tiers: TierStack | Slab | None) -> None:
        self.stage = open_stage(bundle, tiers, self._device)
        self._net = ContextOnce(bundle.net()).eval().to(self._device, self._type)
        if self._device.type == "cpu" and self._type is torch.bfloat16:
            self._net.pad_products()
        self._min_rows = min_rows(self._net, self._type)
        if self._device.type == "cuda":
            self._buckets = Buckets(self._net, self._device, self._type, capture=True)
            with torch.inference_mode():
                self._buckets.prepare()

    def embed(self, batch: Batch) -> tuple[Inputs, ...]:
        with torch.inference_mode():
            return split_plain_and_ranking(inputs_of(batch, self.stage(batch)), batch.plain_rows)

    def dense(self, embedded: tuple[Inputs, ...]) -> F32:
        with torch.inference_mode(), denormals_as_zero():
            return run_parts(embedded, self._run)

    def _run(self, inputs: Inputs) -> F32:
        if self._buckets is not None:
            return self._buckets(inputs)
        return predict_unbucketed(self._net, inputs, self._device, self._type, self._min_rows)

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))


def min_rows(net: ContextOnce, dtype: torch.dtype) -> int:
    """Returns the minimum batch rows on a CPU; smaller batches are padded, so that results do not depend
    on size.
    """
    # ATen uses MKL for fp32 matrices of any size
    return BLOCK if dtype is torch.float32 else min_batch_rows(net.products(), dtype)


def precisions(device: str) -> tuple[DensePrecision, ...]:
    """Returns the precisions of the dense net, which torch has on every device."""
    return ("fp32", "bf16")


def probe(device: str) -> str | None:
    """Multiplies two matrices on the device; returns why that fails, or None."""
    try:
        one = torch.ones((2, 2), device=device)
        right = bool(torch.equal((one @ one).cpu(), torch.full((2, 2), 2.0)))
    except (RuntimeError, AssertionError) as e:
        return _missing(device, e)
    return None if right else "its product of two matrices is wrong"


def _missing(device: str, error: Exception) -> str:
    """Explains why torch has no such device."""
    why = str(error).splitlines()[0]
    if device.startswith("cuda") and torch.version.cuda is None:
        why = "this is the build of torch for CPUs (docs/runtimes.md, On a GPU)"
    return f"torch has no device '{device}': {why}"


KIND = RuntimeKind(TorchRuntime, ("cpu", "cuda"), precisions, probe, f"torch {torch.__version__}")
