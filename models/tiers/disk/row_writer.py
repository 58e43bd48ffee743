"""Writes rows to positions in a file, many per system call.

Rows are copied into a mapping of the file by process_vm_writev, which takes a fifth of a write call per row,
because every write call is a transaction for the file system. Unlike a store to the mapping, it reports a
failed disk as an error instead of killing the process with a signal, and it releases the interpreter for
other threads. Where the kernel or a container forbids it, each row is a write call.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.slab import Bytes

ROWS = 256
"""Rows of a system call."""
MAPPED_ROWS = 1 << 14
"""Rows after which the pages written so far are let go: they count as memory of the process."""

_copy = ctypes.CDLL(None, use_errno=True).process_vm_writev
# pid; local vectors and their number; remote vectors and their number; flags
_copy.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
_copy.restype = ctypes.c_ssize_t


class RowWriter:
    """Writes rows of `row_bytes` to an open file. Not thread-safe.

    mapped: False uses write calls even if the file can be mapped.
    """

    def __init__(self, file: int, row_bytes: int, mapped: bool = True) -> None:
        self._file = file
        self._mapped = _MappedRows.opened(file, row_bytes) if mapped else None

    def write(self, offsets: I64, values: Bytes) -> None:
        """Writes values [n, row_bytes] at distinct offsets [n] of the file. Raises OSError."""
        if self._mapped is None:
            for offset, row in zip(offsets.tolist(), values, strict=True):
                if os.pwrite(self._file, row.data, offset) != row.nbytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        for first in range(0, offsets.size, ROWS):
            part = slice(first, first + ROWS)
            self._mapped.write(offsets[part], values[part])

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()


class _MappedRows:
    """Writes to a mapping of the file."""

    def __init__(self, file: int, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._written = 0
        self._memory = mmap.mmap(file, 0)
        # rows are far apart, so reading the pages around each would be wasted
        self._memory.madvise(mmap.MADV_RANDOM)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data

    @staticmethod
    def opened(file: int, row_bytes: int) -> _MappedRows | None:
        """Opens a mapping; returns None if the file cannot be mapped or the kernel refuses to copy."""
        try:
            rows = _MappedRows(file, row_bytes)
            there = np.zeros(1, np.uint8)
            _copy_rows(there, np.array([[there.ctypes.data, 1]], np.uint64))
        except (OSError, ValueError):
            return None
        return rows

    def write(self, offsets: I64, values: Bytes) -> None:
        if offsets.min() < 0 or offsets.max() > len(self._memory) - self._row_bytes:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        to = np.full((offsets.size, 2), self._row_bytes, np.uint64)
        to[:, 0] = offsets + self._address
        _copy_rows(np.ascontiguousarray(values), to)
        self._written += offsets.size
        if self._written > MAPPED_ROWS:
            self._written = 0
            # the mapping is shared, so written data stay in the kernel's page cache
            self._memory.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._memory.close()


def _copy_rows(values: Bytes, to: NDArray[np.uint64]) -> None:
    """Copies contiguous values to ranges of this process's memory. to: [n, 2], addresses and lengths.

    Raises OSError if the kernel refuses or a page cannot be read.
    """
    source = np.array([[values.ctypes.data, values.nbytes]], np.uint64)
    copied = _copy(os.getpid(), source.ctypes.data, 1, to.ctypes.data, len(to), 0)
    if copied != values.nbytes:
        code = ctypes.get_errno() if copied < 0 else errno.EIO
        raise OSError(code, f"rows could not be written: {os.strerror(code)}")
