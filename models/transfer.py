"""Copies host arrays to the device of a model without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Returns the array as a tensor on the device; on the CPU it shares the array's memory.

    Copies to a GPU go through pinned memory, which torch keeps until the copy is done: copies from pageable
    memory block the host.
    """
    here = torch.from_numpy(array)
    if device.type == "cpu":
        return here
    if device.type != "cuda":
        return here.to(device)
    return here.pin_memory().to(device, non_blocking=True)
