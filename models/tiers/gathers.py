"""Numbers the batches that are being gathered, to know when those begun before a moment have ended.

Memory that a batch may still read is not reused, and tiers are not closed, before that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gathers:
    """Numbers the batches that are being gathered. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = threading.Condition(self._lock)
        self._begun = 0
        self._active: set[int] = set()
        self._closed = False

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Marks the gathering of a batch as a context manager. Raises OSError if closed."""
        number = self.begin()
        try:
            yield
        finally:
            self.end(number)

    def begin(self) -> int:
        """Begins the gathering of a batch; returns its number for `end`. Raises OSError if closed."""
        with self._lock:
            if self._closed:
                raise OSError("these tiers are closed")
            self._begun += 1
            self._active.add(self._begun)
            return self._begun

    def end(self, number: int) -> None:
        """Ends the gathering of a batch; a second call does nothing."""
        with self._lock:
            self._active.discard(number)
            if not self._active:
                self._rest.notify_all()

    @property
    def begun(self) -> int:
        """Number of the latest batch begun."""
        return self._begun

    def ended(self, number: int) -> bool:
        """Returns whether all batches up to this number have ended."""
        with self._lock:
            return min(self._active, default=number + 1) > number

    def close(self, timeout_s: float) -> bool:
        """Refuses new batches; returns whether all others ended before the timeout."""
        with self._lock:
            self._closed = True
            return self._rest.wait_for(lambda: not self._active, timeout_s)
