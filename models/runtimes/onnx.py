"""The ONNX Runtime runtime: embedding stage in torch on the host, dense net in a session.

The execution provider is asked for by name and checked: ONNX Runtime itself falls back to the CPU
in silence, this runtime never does.
"""

from __future__ import annotations

import onnxruntime as ort
import torch

from models.batch import F32, Batch
from models.bundle import Bundle
from models.dlrm import dense_of
from models.errors import RuntimeUnavailable
from models.runtimes.graph import dense_graph
from models.runtimes.runtime import DensePrecision

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}


class OnnxRuntime:
    """Executes a bundle's dense net with an execution provider: `cpu`, `cuda[:n]`, `tensorrt[:n]`."""

    name = "onnx"

    def __init__(self, bundle: Bundle, device: str = "cpu", precision: DensePrecision = "fp32") -> None:
        if precision not in ("fp32", "int8"):
            raise RuntimeUnavailable(f"onnx has no dense precision '{precision}'; known: fp32, int8")
        self.device = device
        self.precision = precision
        self._stage = bundle.stage()
        graph = dense_graph(bundle.net(), self._stage.singles, self._stage.bags, precision)
        self._session = open_session(graph.SerializeToString(), device)
        self._inputs = [i.name for i in self._session.get_inputs()]

    def embed(self, batch: Batch) -> dict[str, F32]:
        with torch.inference_mode():
            vectors = self._stage(batch)
        parts = {
            "dense": dense_of(batch, torch.device("cpu")).numpy(),
            "singles": vectors.singles.numpy(),
            "bags": vectors.bags.numpy(),
        }
        return {name: parts[name] for name in self._inputs}

    def dense(self, embedded: dict[str, F32]) -> F32:
        out: F32 = self._session.run(None, embedded)[0]
        return out

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))


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
    settings = {} if kind == "cpu" else {"device_id": index or "0"}
    try:
        session = ort.InferenceSession(model, options, providers=[(provider, settings)])
    except Exception as e:  # onnxruntime raises its own pybind classes, and RuntimeError
        raise RuntimeUnavailable(f"onnx cannot use device '{device}': {str(e).splitlines()[0]}") from None
    if session.get_providers()[0] != provider:
        raise RuntimeUnavailable(f"onnx fell back from {provider} to {session.get_providers()[0]}")
    return session
