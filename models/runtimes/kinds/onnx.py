"""Executes bundles with ONNX Runtime: embedding stage in torch, dense net in a session.

If torch can use the same GPU, the stage is there and the session reads its vectors in place (binding.py). The
execution provider is requested by name and verified, because ONNX Runtime would silently fall back to the
CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnx import ModelProto

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.weights import BundleWeights
from polyrec.models.dlrm.dlrm import Inputs
from polyrec.models.dlrm.interaction import Cross
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.computed import ComputedStage, Decode, computed_part
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.binding import BoundSession
from polyrec.models.runtimes.decoder_graph import decoder_graph, decoder_inputs
from polyrec.models.runtimes.denormals import denormals_as_zero
from polyrec.models.runtimes.embedder import Embedder
from polyrec.models.runtimes.mixed_batch import HostInputs, run_parts, with_own_contexts
from polyrec.models.runtimes.onnx_graph import plain_graph, product_graph, ranking_graph
from polyrec.models.runtimes.runtime import RuntimeKind, require_precision
from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.tiers.slab import Slab
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_stage

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


OUTPUTS = ["probability"]
Embedded = Sequence[Inputs | HostInputs]
LARGEST_DECODERS = 2**28
"""Weights of decoders in a session; a serialized graph holds at most 2 GiB."""


class OnnxRuntime:
    """Executes a bundle's dense net with an execution provider: `cpu`, `cuda[:n]`, `tensorrt[:n]`."""

    name = "onnx"

    def __init__(
        self,
        bundle: Bundle | BundleWeights,
        device: str = "cpu",
        precision: DensePrecision = "fp32",
        tiers: TierStack | Slab | None = None,
    ) -> None:
        require_precision("onnx", precision, precisions(device))
        self.device = device
        self.precision = precision
        where = _memory(device)
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(where) if where.type == "cuda" else None
        self.stage = open_stage(bundle, tiers, where)
        self._embedder = Embedder(self.stage)
        computed = computed_part(self.stage)
        if computed is not None and where.type == "cpu":
            computed.decode = session_decoders(computed, device, precision)
        net = bundle.net()
        largest = bundle.activations
        self._plain = self._session(plain_graph(net, precision, largest))
        self._ranking: _Session | None = None
        self._one_context: _Session | None = None
        if min(net.slots):
            self._ranking = self._session(ranking_graph(net, precision, largest))
            if not isinstance(net.interaction, Cross):
                one_context = ranking_graph(net, precision, largest, one_context=True)
                self._one_context = self._session(one_context)

    def _session(self, graph: ModelProto) -> _Session:
        session = open_session(graph.SerializeToString(), self.device, self._stream)
        names = [i.name for i in session.get_inputs()]
        return _Session(session, names, None if self._stream is None else BoundSession(session, names))

    def embed(self, batch: Batch) -> Embedded:
        if self._stream is None:
            arrays = self._embedder.arrays(batch)
            if arrays is not None:
                return arrays
        with _on(self._stream):
            return self._embedder(batch)

    def dense(self, embedded: Embedded) -> F32:
        with denormals_as_zero():  # a session's own setting only affects the thread that opens the first one
            return run_parts(embedded, self._run)

    def _run(self, inputs: Inputs | HostInputs) -> F32:
        repeated = inputs.context_row is not None and self._ranking is None
        if isinstance(inputs, HostInputs):
            if repeated:
                inputs = with_own_contexts(inputs)
            return self._session_for(inputs).run(inputs)
        with _on(self._stream):
            if repeated:
                inputs = with_own_contexts(inputs)
            chosen = self._session_for(inputs)
            if chosen.bound is not None:
                given = {name: getattr(inputs, name) for name in chosen.inputs}
                return chosen.bound(given, inputs.candidate.shape[0])
            # tiered rows may be on a device that the session cannot read
            arrays = (None if x is None else x.cpu().numpy() for x in inputs)
            return chosen.run(HostInputs(*arrays))  # type: ignore[arg-type]

    def _session_for(self, inputs: Inputs | HostInputs) -> _Session:
        if inputs.context_row is None or self._ranking is None:
            return self._plain
        return (self._one_context if inputs.context.shape[0] == 1 else None) or self._ranking

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))


@dataclass(frozen=True, slots=True)
class _Session:
    """A session, the names of its inputs (slow to query), and its binding on a GPU."""

    session: ort.InferenceSession
    inputs: list[str]
    bound: BoundSession | None

    def run(self, given: HostInputs) -> F32:
        """Executes a batch; returns a new float32 [rows]."""
        out: F32 = self.session.run(OUTPUTS, {name: getattr(given, name) for name in self.inputs})[0]
        return out


def session_decoders(stage: ComputedStage, device: str, precision: DensePrecision) -> Decode | None:
    """Opens a session for a stage's decoders; None if their weights exceed a session's size limit."""
    if sum(p.numel() for p in stage.decoders.parameters()) > LARGEST_DECODERS:
        return None
    graph = decoder_graph(stage.decoders, precision, stage.encoding.transform == "uniform")
    session = open_session(graph.SerializeToString(), device)

    def decode(codes: torch.Tensor, counts: I64) -> torch.Tensor:
        return torch.from_numpy(session.run(None, decoder_inputs(codes.numpy(), counts))[0])

    return decode


def _memory(device: str) -> torch.device:
    """Returns the device for the vectors of a session on `device`: the same if torch can use it, else the
    CPU.
    """
    kind, _, index = device.partition(":")
    if kind in ("cuda", "tensorrt") and (not index or index.isdigit()):
        number = int(index or 0)
        if number < torch.cuda.device_count():
            return torch.device("cuda", number)
    return torch.device("cpu")


def _on(stream: Any) -> AbstractContextManager[Any]:
    """Makes `stream` torch's current stream, if given."""
    if stream is None:
        return nullcontext()
    cuda: Any = torch.cuda
    context: AbstractContextManager[Any] = cuda.stream(stream)
    return context


def open_session(model: bytes, device: str, stream: Any = None) -> ort.InferenceSession:
    """Opens a session on exactly the requested provider, else raises RuntimeUnavailable.

    stream: torch's CUDA stream to use; None: the session creates one.
    """
    kind, _, index = device.partition(":")
    provider = PROVIDERS.get(kind)
    if provider is None or (index and not index.isdigit()):
        raise RuntimeUnavailable(f"onnx has no device '{device}'; known: {', '.join(PROVIDERS)}")
    if provider not in ort.get_available_providers():
        raise RuntimeUnavailable(f"this onnxruntime has no {provider} (device '{device}')")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    # silence the provider's own log; the exception below reports the failure in one line
    ort.set_default_logger_severity(4)
    settings = {} if kind == "cpu" else {"device_id": index or "0"}
    if stream is not None:
        settings["user_compute_stream"] = str(stream.cuda_stream)
    try:
        session = ort.InferenceSession(model, options, providers=[(provider, settings)])
    except Exception as e:  # onnxruntime raises its own pybind classes, and RuntimeError
        raise RuntimeUnavailable(f"onnx cannot use device '{device}': {str(e).splitlines()[0]}") from None
    if session.get_providers()[0] != provider:
        raise RuntimeUnavailable(
            f"onnx cannot use device '{device}': there is none, or {provider} lacks its libraries"
        )
    return session


def precisions(device: str) -> tuple[DensePrecision, ...]:
    """Returns the precisions of the dense net; the CPU provider has no bf16."""
    return ("fp32", "int8")


def probe(device: str) -> str | None:
    """Multiplies two matrices in a session on the device; returns why that fails, or None."""
    one = np.ones((2, 2), np.float32)
    try:
        product = open_session(product_graph(), device).run(None, {"a": one, "b": one})[0]
    except RuntimeUnavailable as e:
        return str(e)
    except Exception as e:  # onnxruntime raises its own pybind classes
        return f"onnx fails on device '{device}': {str(e).splitlines()[0] if str(e) else type(e).__name__}"
    return None if np.array_equal(product, np.full((2, 2), 2.0)) else "its product of two matrices is wrong"


KIND = RuntimeKind(OnnxRuntime, tuple(PROVIDERS), precisions, probe, f"onnxruntime {ort.__version__}")
