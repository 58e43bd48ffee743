"""Treats denormal numbers as zero while a dense net is executed.

Float32 numbers below 1.2e-38 are denormal, and x86 processors take up to a hundred times as long for each
product of one. Clients choose dense features, so one client could otherwise make its batches slow for all
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Makes this thread treat denormal operands and results as zero, within a `with` block.

    It covers only an execution, because the event loop's thread computes other things. Libraries with their
    own threads have settings for it.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
