"""Reads and writes the file of a disk tier: rows in pages, in popularity order."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from polyrec.models.tiers.slab import Bytes, Slab
from polyrec.models.tiers.tier_settings import PAGE_BYTES

SECTOR_BYTES = 512


def pages_of(slab: Slab, rows: int) -> int:
    """Returns the number of pages that hold `rows` rows."""
    return -(-rows // slab.rows_a_page)


def write_pages(path: Path, slab: Slab, parts: Iterable[Bytes]) -> None:
    """Writes the file of a disk tier. parts: uint8 [n, bytes per row] each, in order of address."""
    size = slab.rows_a_page * slab.row_format.bytes
    left = np.empty((0, slab.row_format.bytes), np.uint8)
    with path.open("wb") as file:

        def put(rows: Bytes) -> None:
            pages = np.zeros((pages_of(slab, len(rows)), slab.page_bytes), np.uint8)
            flat = pages[:, :size]
            whole = len(rows) // slab.rows_a_page * slab.rows_a_page
            flat[: whole // slab.rows_a_page] = rows[:whole].reshape(-1, size)
            if whole < len(rows):
                flat[-1, : (len(rows) - whole) * slab.row_format.bytes] = rows[whole:].ravel()
            file.write(pages.data)

        for part in parts:
            rows = np.concatenate((left, part)) if len(left) else part
            whole = len(rows) // slab.rows_a_page * slab.rows_a_page
            put(rows[:whole])
            left = rows[whole:].copy()
        if len(left):
            put(left)
        file.flush()
        # otherwise a direct read would wait until the kernel has written back its cached copy
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def open_direct(path: Path, length: int, access: int = os.O_RDONLY) -> tuple[int, bool]:
    """Opens a file for reads of `length` bytes; returns (descriptor, whether they bypass the page cache).

    access: O_RDONLY, or O_RDWR for writes too.
    """
    if _reads_directly(path, length):
        return os.open(path, access | os.O_DIRECT | os.O_CLOEXEC), True
    file = os.open(path, access | os.O_CLOEXEC)
    # accesses are random, so the kernel's read-ahead would be wasted
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    return file, False


def sector_bytes(directory: Path) -> int:
    """Returns the length of the shortest direct read from a folder's files: a disk sector, or a page."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        file.write(bytes(PAGE_BYTES))
        file.flush()
        return SECTOR_BYTES if _reads_directly(Path(file.name), SECTOR_BYTES) else PAGE_BYTES


def _reads_directly(path: Path, length: int) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, length) as memory:
            os.preadv(file, [memory], 0)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
