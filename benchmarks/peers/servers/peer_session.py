"""The model inside every peer: rows looked up by numpy, the dense net in an ONNX Runtime session.

It has one thread without spinning, like Polyrec's lanes, and imports nothing of Polyrec, because peers run in
their own environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
import orjson

TYPES = {"FP32": np.float32, "INT64": np.int64}
MAX_ROWS = 4096


class BadRequest(ValueError):
    """Raised for a request that the model cannot take."""


class PeerSession:
    """Executes a model. folder: files of benchmarks/peers/graphs.py."""

    def __init__(self, folder: Path, precision: str = "fp32") -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        file = "dense.onnx" if precision == "fp32" else f"dense.{precision}.onnx"
        self.session = ort.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])
        self.first, self.rows = np.load(folder / "tables.npy")
        self._limits = self.rows.astype(np.uint64)
        self._table = np.load(folder / "rows.npy")
        self._vectors = np.empty((MAX_ROWS, self.first.size, self._table.shape[1]), np.float32)

    def __call__(self, dense: Any, sparse: Any) -> Any:
        """Returns probabilities, float32 [rows]. Raises BadRequest."""
        # one comparison for all features: seen as unsigned, a negative id is a huge one
        if (sparse.view(np.uint64) >= self._limits).any():
            raise BadRequest("an id is out of range")
        rows = len(sparse)
        vectors = (
            self._vectors[:rows] if rows <= MAX_ROWS else np.empty((rows, *self._vectors.shape[1:]), "f4")
        )
        # clip: the ids were checked, and take() with a buffer copies unless it may clip
        np.take(self._table, sparse + self.first, axis=0, out=vectors, mode="clip")
        return self.session.run(None, {"dense_candidate": dense, "candidate": vectors})[0]


def decode(body: bytes) -> tuple[Any, Any]:
    """Returns `dense` and `sparse` of an inference-protocol request in JSON. Raises BadRequest."""
    try:
        found = {
            tensor["name"]: np.array(tensor["data"], TYPES[tensor["datatype"]]).reshape(tensor["shape"])
            for tensor in orjson.loads(body)["inputs"]
        }
        return found["dense"], found["sparse"]
    except (KeyError, TypeError, ValueError) as e:
        raise BadRequest(str(e)) from None


def encode(probabilities: Any) -> bytes:
    """Returns the inference-protocol answer as JSON."""
    output = {"name": "probability", "datatype": "FP32", "shape": [probabilities.size], "data": probabilities}
    return orjson.dumps({"model_name": "dlrm", "outputs": [output]}, option=orjson.OPT_SERIALIZE_NUMPY)
