"""The ONNX Runtime runtime: embedding stage in torch on the host, dense net in a session.

The execution provider is asked for by name and checked: ONNX Runtime itself falls back to the CPU
in silence, this runtime never does.
"""

from __future__ import annotations

import onnxruntime as ort
import torch

from models.batch import F32, Batch
from models.bundle import Bundle
from models.dlrm import Inputs, inputs_of
from models.embeddings.tiers.stack import TierStack
from models.embeddings.tiers.stage import open_stage
from models.errors import RuntimeUnavailable
from models.precision import DensePrecision
from models.runtimes.graph import plain_graph, ranking_graph
from models.weights import Weights

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


class OnnxRuntime:
    """Executes a bundle's dense net with an execution provider: `cpu`, `cuda[:n]`, `tensorrt[:n]`."""

    name = "onnx"

    def __init__(
        self,
        bundle: Bundle | Weights,
        device: str = "cpu",
        precision: DensePrecision = "fp32",
        tiers: TierStack | None = None,
    ) -> None:
        if precision not in ("fp32", "int8"):
            raise RuntimeUnavailable(f"onnx has no dense precision '{precision}'; known: fp32, int8")
        self.device = device
        self.precision = precision
        self.stage = open_stage(bundle, tiers)
        net = bundle.net()
        self._plain = _named(open_session(plain_graph(net, precision).SerializeToString(), device))
        self._ranking: tuple[ort.InferenceSession, list[str]] | None = None
        if min(net.slots):
            self._ranking = _named(open_session(ranking_graph(net, precision).SerializeToString(), device))

    def embed(self, batch: Batch) -> Inputs:
        with torch.inference_mode():
            return inputs_of(batch, self.stage(batch))

    def dense(self, embedded: Inputs) -> F32:
        inputs = embedded
        if inputs.context_row is not None and self._ranking is None:
            row = inputs.context_row
            inputs = Inputs(inputs[0][row], inputs[1], inputs[2][row], inputs[3], None)
        session, names = self._plain if inputs.context_row is None or not self._ranking else self._ranking
        out: F32 = session.run(None, {name: getattr(inputs, name).numpy() for name in names})[0]
        return out

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))


def _named(session: ort.InferenceSession) -> tuple[ort.InferenceSession, list[str]]:
    """A session and the names of its inputs, which are slow to ask for."""
    return session, [i.name for i in session.get_inputs()]


def open_session(model: bytes, device: str) -> ort.InferenceSession:
    """A session on exactly the provider asked for. Raises RuntimeUnavailable otherwise."""
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
    # what a failing provider logs beside its exception is said in one line below
    ort.set_default_logger_severity(4)
    settings = {} if kind == "cpu" else {"device_id": index or "0"}
    try:
        session = ort.InferenceSession(model, options, providers=[(provider, settings)])
    except Exception as e:  # onnxruntime raises its own pybind classes, and RuntimeError
        raise RuntimeUnavailable(f"onnx cannot use device '{device}': {str(e).splitlines()[0]}") from None
    if session.get_providers()[0] != provider:
        raise RuntimeUnavailable(f"onnx fell back from {provider} to {session.get_providers()[0]}")
    return session
