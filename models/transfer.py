"""Host arrays to where a model executes, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device; on the cpu, the array itself.

    To a GPU it goes by way of pinned memory, which torch keeps until the copy is done: from pageable memory a
    copy makes the host wait.
    """
    here = torch.from_numpy(array)
    if device.type != "cuda":
        return here.to(device)
    return here.pin_memory().to(device, non_blocking=True)
