"""Copies host arrays to a model's device without waiting, and parses names of devices."""

from __future__ import annotations

import threading
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.errors import DataError

CAPTURING = threading.Lock()
"""Held while a CUDA graph is captured, and while a thread waits for a whole device, which would end the
capture with an error."""


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Returns the array as a tensor on the device; on the CPU it shares the array's memory.

    Copies to a GPU go through pinned memory, which torch keeps until the copy is done; copies from pageable
    memory would block the host.
    """
    here = torch.from_numpy(array)
    return here if device.type == "cpu" else pinned_for(here, device).to(device, non_blocking=True)


def pinned_for(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a CPU tensor in memory from which copies to the device do not block."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has finished all work, submitted by any thread."""
    with CAPTURING:
        torch.cuda.synchronize(device)


def require_device(name: str) -> torch.device:
    """Returns the named device: `cpu`, `cuda`, `cuda:1`. Raises DataError if torch does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DataError(f"'{name}' is not a device; use cpu, cuda or cuda:N") from None
    found = torch.cuda.device_count()
    if device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < found):
        return device
    raise DataError(f"this machine has no device '{name}': torch finds {found} of cuda, and cpu")
