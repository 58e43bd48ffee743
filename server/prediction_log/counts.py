"""Counts that the writer of the prediction log shares with its server, in anonymous shared memory."""

from __future__ import annotations

import mmap
import os
import struct

Outcome = tuple[str, str]
"""`requests` or `labels`, and what became of them."""
OUTCOMES: tuple[Outcome, ...] = (
    ("requests", "written"),
    ("requests", "invalid"),
    ("requests", "lost"),
    ("labels", "written"),
    ("labels", "lost"),
)
"""Requests in files, those that could not be read again, those that could not be written; labels alike."""
_VALUES = struct.Struct(f"={len(OUTCOMES)}Q")


class SharedCounts:
    """One number for each of OUTCOMES. fd: of the memory, None to make it; one process adds, others read."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("polyrec-prediction-log") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, _VALUES.size)
        self._memory = mmap.mmap(self.fd, _VALUES.size)

    def add(self, outcome: Outcome, by: int) -> None:
        """Adds to one of OUTCOMES."""
        values = [*_VALUES.unpack_from(self._memory)]
        values[OUTCOMES.index(outcome)] += by
        _VALUES.pack_into(self._memory, 0, *values)

    def read(self) -> dict[Outcome, int]:
        """Returns the numbers by outcome."""
        return dict(zip(OUTCOMES, _VALUES.unpack_from(self._memory), strict=True))

    def close(self) -> None:
        """Closes the descriptor. The numbers can still be read; their memory goes with this object."""
        os.close(self.fd)
