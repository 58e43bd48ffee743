"""Binds a session to torch's device memory, so that inputs are not copied and answers are written to the
host.

`run` would take host arrays and copy them to the device; with bound pointers, ONNX Runtime reads the
embedding stage's output in place. Both use one stream of the device, so that neither waits for the other, and
only the copy of the answers waits. On the CPU nothing is copied either way, and `run` is cheaper
(docs/results/tiers.md).
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor

from polyrec.models.schema.batch import F32

TYPES = {torch.float32: np.float32, torch.int64: np.int64}


class BoundSession:
    """Binds a session's inputs and its output, `probability`, for each batch."""

    def __init__(self, session: ort.InferenceSession, inputs: list[str]) -> None:
        self._session, self._inputs = session, inputs
        self._binding = session.io_binding()

    def __call__(self, given: dict[str, Tensor], rows: int) -> F32:
        """Executes a batch; returns a new float32 [rows].

        given: input name -> tensor, float32 or int64, on the host or the device.
        """
        out = np.empty(rows, np.float32)
        if not rows:
            return out
        binding = self._binding
        # bound tensors must outlive the run
        kept = [given[name].contiguous() for name in self._inputs]
        for name, tensor in zip(self._inputs, kept, strict=True):
            place = tensor.device
            binding.bind_input(
                name,
                place.type,
                place.index or 0,
                TYPES[tensor.dtype],
                tuple(tensor.shape),
                tensor.data_ptr(),
            )
        binding.bind_output("probability", "cpu", 0, np.float32, (rows,), out.ctypes.data)
        self._session.run_with_iobinding(binding)
        return out
