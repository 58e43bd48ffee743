"""Executes bundles with OpenVINO: embedding stage in torch, dense net compiled by one of OpenVINO's plugins.

It uses the graphs of ONNX Runtime (models/runtimes/onnx_graph.py), which in fp32 consist of standard
operators. Precision is set by OpenVINO's hint: bf16 only if the plugin reports that the device executes it.
Without a hint, the CPU plugin would use bf16 on its own where it can.

The CPU plugin compiles kernels for each new number of rows, which delays that batch by 5 to 40 ms. So rows
and shared contexts are padded to a few sizes, and those of plain batches are compiled at the start.

`import openvino` reports its use to the vendor (package openvino_telemetry), through openvino.tools.ovc,
which converts models. Polyrec does not need that module and prevents its import.
"""

from __future__ import annotations

import io
import sys
from functools import cache

import numpy as np
import torch
from torch import Tensor

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.weights import BundleWeights
from polyrec.models.dlrm.dlrm import DenseNet, Inputs
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.denormals import denormals_as_zero
from polyrec.models.runtimes.embedder import Embedder
from polyrec.models.runtimes.mixed_batch import run_parts, with_own_contexts
from polyrec.models.runtimes.onnx_graph import plain_graph, product_graph, ranking_graph
from polyrec.models.runtimes.runtime import RuntimeKind, require_precision
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.tiers.slab import Slab
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_stage

sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]

import openvino as ov  # noqa: E402

DEVICES = ("cpu", "gpu", "npu")
HINTS: dict[DensePrecision, str] = {"fp32": "f32", "bf16": "bf16"}
WARM_ROWS = 270
"""Largest plain batch whose kernels are compiled at the start: that of MLPerf's mean request."""
CAPABILITIES: dict[DensePrecision, str] = {"fp32": "FP32", "bf16": "BF16"}


class OpenVinoRuntime:
    """Executes a bundle's dense net on an OpenVINO device: `cpu`, `gpu[:n]`, `npu`."""

    name = "openvino"

    def __init__(
        self,
        bundle: Bundle | BundleWeights,
        device: str = "cpu",
        precision: DensePrecision = "fp32",
        tiers: TierStack | Slab | None = None,
    ) -> None:
        require_precision(f"openvino on '{device}'", precision, precisions(device))
        self.device = device
        self.precision = precision
        self.stage = open_stage(bundle, tiers)
        self._embedder = Embedder(self.stage)
        net = bundle.net()
        self._plain = Compiled(plain_graph(net).SerializeToString(), device, precision)
        self._ranking: Compiled | None = None
        if min(net.slots):
            self._ranking = Compiled(ranking_graph(net).SerializeToString(), device, precision)
        for rows in sizes_up_to(WARM_ROWS):
            self._plain(empty_inputs(net, rows))

    def embed(self, batch: Batch) -> tuple[Inputs, ...]:
        return self._embedder(batch)

    def dense(self, embedded: tuple[Inputs, ...]) -> F32:
        return run_parts(embedded, self._run)

    def _run(self, inputs: Inputs) -> F32:
        rows = inputs.candidate.shape[0]
        if not rows:
            return np.empty(0, np.float32)
        if self._ranking is None:
            inputs = with_own_contexts(inputs)
        compiled = self._plain if inputs.context_row is None or self._ranking is None else self._ranking
        return _without_infinite(compiled(padded(inputs))[:rows], inputs)

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))


def padded_size(n: int) -> int:
    """Rounds n up to a padded size: every size up to 16, then 8 sizes per doubling."""
    step = 1 << max(0, (n - 1).bit_length() - 4)
    return -(-n // step) * step


def sizes_up_to(max_size: int) -> list[int]:
    """Returns all padded sizes up to `max_size`."""
    return sorted({padded_size(n) for n in range(1, max_size + 1)})


def padded(inputs: Inputs) -> Inputs:
    """Pads rows and contexts with zeros to padded sizes; padding rows use the first context."""
    dense_context, dense_candidate, context, candidate = (_padded(part) for part in inputs[:4])
    row = None if inputs.context_row is None else _padded(inputs.context_row)
    return Inputs(dense_context, dense_candidate, context, candidate, row)


def _padded(x: Tensor) -> Tensor:
    missing = padded_size(x.shape[0]) - x.shape[0]
    return torch.cat((x, x.new_zeros((missing, *x.shape[1:])))) if missing else x


def empty_inputs(net: DenseNet, rows: int) -> Inputs:
    """Returns zero inputs for a plain batch."""
    dense_context, dense_candidate = (torch.zeros((rows, size)) for size in net.dense)
    context, candidate = (torch.zeros((rows, size, net.shape.width)) for size in net.slots)
    return Inputs(dense_context, dense_candidate, context, candidate, None)


def _without_infinite(probability: F32, inputs: Inputs) -> F32:
    """Sets the probabilities of rows with infinite inputs to NaN, since OpenVINO's ReLU turns NaN into 0."""
    finite = [torch.isfinite(dense) for dense in (inputs.dense_context, inputs.dense_candidate)]
    if not all(bool(each.all()) for each in finite):
        context, candidate = (each.all(dim=1) for each in finite)
        row = inputs.context_row
        probability[~((context if row is None else context[row]) & candidate).numpy()] = np.nan
    return probability


class Compiled:
    """A graph compiled for a device, with one reused request. Not thread-safe."""

    def __init__(self, graph: bytes, device: str, precision: DensePrecision = "fp32") -> None:
        try:
            model = core().read_model(io.BytesIO(graph))
            settings = {"INFERENCE_PRECISION_HINT": HINTS[precision], "PERFORMANCE_HINT": "LATENCY"}
            if device == "cpu":
                # lanes provide the parallelism and pin themselves
                settings |= {"INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO"}
                settings["CPU_DENORMALS_OPTIMIZATION"] = "YES"
            compiled = core().compile_model(model, device_name(device), settings)
        except RuntimeError as e:
            raise RuntimeUnavailable(f"openvino cannot use device '{device}': {_last(e)}") from None
        self.inputs = [port.any_name for port in compiled.inputs]
        self._request = compiled.create_infer_request()

    def __call__(self, inputs: Inputs) -> F32:
        """Executes a batch with at least one row; returns a new float32 [rows]."""
        return self.run([getattr(inputs, name).numpy() for name in self.inputs])

    def run(self, arrays: list[np.ndarray]) -> F32:
        """Executes arrays in the order of `inputs`; returns the output in a new array."""
        given = dict(enumerate(np.ascontiguousarray(array) for array in arrays))
        with denormals_as_zero():  # the plugin's own setting would stay on in this thread
            out: F32 = self._request.infer(given, share_inputs=True, share_outputs=True)[0].copy()
        return out


@cache
def core() -> ov.Core:
    """Returns the process's single core, which holds the plugins."""
    return ov.Core()


def device_name(device: str) -> str:
    """Translates `cpu`, `gpu:1`, `npu` to OpenVINO's `CPU`, `GPU.1`, `NPU`. Raises RuntimeUnavailable."""
    kind, _, index = device.partition(":")
    if kind not in DEVICES or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise RuntimeUnavailable(f"openvino has no device '{device}'; known: {', '.join(DEVICES)}")
    name = kind.upper() + (f".{index}" if index else "")
    available = core().available_devices
    if name not in available and f"{name}.0" not in available:
        raise RuntimeUnavailable(f"openvino finds no device '{device}'; it finds {', '.join(available)}")
    return name


def precisions(device: str) -> tuple[DensePrecision, ...]:
    """Returns the precisions that the device executes natively; bf16 only if its instruction set has it.

    Raises RuntimeUnavailable if there is no such device.
    """
    able = core().get_property(device_name(device), "OPTIMIZATION_CAPABILITIES")
    return tuple(precision for precision, word in CAPABILITIES.items() if word in able)


def probe(device: str) -> str | None:
    """Multiplies two matrices on the device; returns why that fails, or None."""
    one = np.ones((2, 2), np.float32)
    try:
        product = Compiled(product_graph(), device).run([one, one])
    except RuntimeUnavailable as e:
        return str(e)
    except RuntimeError as e:
        return f"openvino fails on device '{device}': {_last(e)}"
    return None if np.array_equal(product, np.full((2, 2), 2.0)) else "its product of two matrices is wrong"


def _last(error: RuntimeError) -> str:
    """Returns the last line of an error, without OpenVINO's preceding source locations."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


KIND = RuntimeKind(OpenVinoRuntime, DEVICES, precisions, probe, f"openvino {ov.__version__}")
