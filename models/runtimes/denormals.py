"""Takes denormal numbers as zero while a dense net is executed.

Below 1.2e-38 float32 numbers are denormal, and x86 processors take up to a hundred times as long for each
product of one. Clients choose dense features, so one client's could make its batches slow for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Context in which this thread takes denormal operands as zero, and results too.

    Not for longer than an execution, as the event loop's thread computes other things. Libraries with threads
    of their own have settings for it.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
