"""The file of a disk tier: rows in pages, in popularity order."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from polyrec.models.tiers.slab import Bytes, Slab


def pages_of(slab: Slab, rows: int) -> int:
    """Number of pages that hold `rows` rows."""
    return -(-rows // slab.rows_a_page)


def write_pages(path: Path, slab: Slab, parts: Iterable[Bytes]) -> None:
    """Writes the file of a disk tier. parts: uint8 [n, bytes of a row] each, in the order of addresses."""
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


def open_direct(path: Path) -> tuple[int, bool]:
    """Opens a file for reading; returns (descriptor, whether reads bypass the page cache)."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # accesses are random: read-ahead by the kernel would be wasted
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return file, False
