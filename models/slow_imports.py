"""Shortens the imports of a starting process. Imports nothing heavy itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def slow_imports() -> Iterator[None]:
    """Context manager for imports that take seconds, in which the garbage collector is off.

    It would take a fifth of that time and find nothing to free.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
