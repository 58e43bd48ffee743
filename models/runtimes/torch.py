"""The torch runtime: the whole model on one torch device (cpu, cuda)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from models.batch import F32, Batch
from models.bundle import Bundle
from models.dlrm import dense_of
from models.embeddings.stage import Vectors
from models.errors import RuntimeUnavailable


class TorchRuntime:
    """Executes a bundle with torch. Set torch's thread count before: it is one per process."""

    name = "torch"

    def __init__(self, bundle: Bundle, device: str = "cpu") -> None:
        try:
            self._device = torch.device(device)
            torch.empty(0, device=self._device)
        except (RuntimeError, AssertionError) as e:
            raise RuntimeUnavailable(f"torch has no device '{device}': {str(e).splitlines()[0]}") from None
        self.device = str(self._device)
        self._model = bundle.model().to(self._device).eval()

    def embed(self, batch: Batch) -> tuple[Tensor, Vectors]:
        with torch.inference_mode():
            return dense_of(batch, self._device), self._model.stage(batch)

    def dense(self, embedded: tuple[Tensor, Vectors]) -> F32:
        with torch.inference_mode():
            out: F32 = self._model.score(*embedded).sigmoid_().cpu().numpy()
        return np.ascontiguousarray(out)

    def predict(self, batch: Batch) -> F32:
        return self.dense(self.embed(batch))
