"""Counts that the writer of the prediction log shares with its server, in anonymous shared memory."""

from __future__ import annotations

import mmap
import os
import struct

NAMES = ("written", "invalid", "lost", "labels_written", "labels_lost")
"""Requests in files, those that could not be read again, those that could not be written; labels alike."""
_VALUES = struct.Struct(f"={len(NAMES)}Q")


class SharedCounts:
    """One number for each of NAMES. fd: of the memory, None to make it; one process adds, others read."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("polyrec-prediction-log") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, _VALUES.size)
        self._memory = mmap.mmap(self.fd, _VALUES.size)

    def add(self, name: str, by: int) -> None:
        """Adds to one of NAMES."""
        values = [*_VALUES.unpack_from(self._memory)]
        values[NAMES.index(name)] += by
        _VALUES.pack_into(self._memory, 0, *values)

    def read(self) -> dict[str, int]:
        """Returns the numbers by name."""
        return dict(zip(NAMES, _VALUES.unpack_from(self._memory), strict=True))

    def close(self) -> None:
        """Releases the memory in this process."""
        self._memory.close()
        os.close(self.fd)
