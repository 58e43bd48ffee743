"""Executes bundles through runtimes, one per kind of executor; `open_runtime` opens one by name.

ONNX Runtime writes telemetry files to the home folder on import, unless the environment disables it. Every
import of it goes through this package, so telemetry is disabled here for commands, server, lanes and tests. A
value set by the operator is kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.runtimes.registry import runtime_kind
from polyrec.models.schema.batch import F32, I64

if TYPE_CHECKING:
    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.bundle.weights import BundleWeights
    from polyrec.models.data.encoded import EncodedRows
    from polyrec.models.dlrm.precision import DensePrecision
    from polyrec.models.runtimes.runtime import Runtime
    from polyrec.models.tiers.slab import Slab
    from polyrec.models.tiers.stack import TierStack

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def open_runtime(
    name: str,
    bundle: Bundle | BundleWeights,
    device: str = "cpu",
    precision: DensePrecision = "fp32",
    tiers: TierStack | Slab | None = None,
) -> Runtime:
    """Opens a bundle, or only its weights, on a device with a dense precision.

    tiers: open tiers of its rows (polyrec.models.tiers.stage.open_tiers), which the caller closes; None: all
    rows are on the device.
    Raises RuntimeUnavailable if there is no such runtime or this machine cannot run it.
    """
    return runtime_kind(name).open(bundle, device, precision, tiers)


def best_runtime() -> tuple[str, str]:
    """Returns the default (runtime, device) for serving: torch on a GPU if there is one, else onnx.

    On a CPU, ONNX Runtime's fp32 products are about twice as fast as torch's (docs/dependencies.md).
    """
    import torch

    return ("torch", "cuda:0") if torch.cuda.is_available() else ("onnx", "cpu")


def predict_rows(
    runtime: Runtime,
    data: EncodedRows,
    rows: I64 | None = None,
    progress: RowsDone = ignore_rows,
    batch_rows: int = 4096,
) -> F32:
    """Predicts rows; returns float32 [rows.size]. rows: int64 [n]; None: all, in order."""
    rows = np.arange(data.rows) if rows is None else rows
    out = np.empty(rows.size, np.float32)
    for start in range(0, rows.size, batch_rows):
        some = rows[start : start + batch_rows]
        out[start : start + some.size] = runtime.predict(data.batch(some))
        progress(some.size)
    return out
