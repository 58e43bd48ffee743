"""Counts that the writer of the prediction log shares with its server, in anonymous shared memory."""

from __future__ import annotations

import mmap
import os
import struct

Outcome = tuple[str, str]
"""`requests` or `labels`, and their outcome."""
OUTCOMES: tuple[Outcome, ...] = (
    ("requests", "written"),
    ("requests", "invalid"),
    ("requests", "lost"),
    ("labels", "written"),
    ("labels", "lost"),
)
"""Requests that were written, could not be parsed again, or could not be written; the same for labels."""
_VALUES = struct.Struct(f"={len(OUTCOMES)}Q")


class SharedCounts:
    """One count for each of OUTCOMES; one process adds, others read.

    fd: descriptor of the shared memory; None creates it.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("polyrec-prediction-log") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, _VALUES.size)
        self._memory = mmap.mmap(self.fd, _VALUES.size)

    def add(self, outcome: Outcome, by: int) -> None:
        """Increases the count of one of OUTCOMES."""
        values = [*_VALUES.unpack_from(self._memory)]
        values[OUTCOMES.index(outcome)] += by
        _VALUES.pack_into(self._memory, 0, *values)

    def read(self) -> dict[Outcome, int]:
        """Returns the counts by outcome."""
        return dict(zip(OUTCOMES, _VALUES.unpack_from(self._memory), strict=True))

    def close(self) -> None:
        """Closes the descriptor. The counts can be read until this object is deleted."""
        os.close(self.fd)
