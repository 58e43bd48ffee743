"""The disk that tier files would lie on: free space, long reads, and reads of one page, past the cache.

Measured on a temporary file, with direct reads where the file system has them; elsewhere the file's
pages are dropped from the cache first. Bounded: some tens of megabytes, under two seconds.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = 64 * 2**20
LONG, PAGE = 2**20, 4096
PASS_S = 0.5
READS = 400


@dataclass(frozen=True, slots=True)
class Disk:
    """free_bytes: of the file system. bandwidth: bytes/s of long reads; latency_s: median of one page's."""

    free_bytes: int | None
    bandwidth: float | None = None
    latency_s: float | None = None


def measure_disk(folder: Path, measure: bool) -> Disk:
    """The disk of a folder, or of its nearest ancestor that is there; unmeasured if it cannot be written."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return Disk(None)
    if not measure or free < 4 * FILE:
        return Disk(free)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".polyrec-disk-") as file:
            # random bytes: some disks store repeated ones without writing them
            file.write(np.random.default_rng(0).bytes(FILE))
            file.flush()
            os.fsync(file.fileno())
            return Disk(free, *_read(file.name))
    except OSError:
        return Disk(free)


def _read(name: str) -> tuple[float, float]:
    """(bytes/s of long reads, seconds of a page's)."""
    descriptor, direct = _open(name)
    # direct reads need memory that begins at a page
    buffer = mmap.mmap(-1, LONG)
    view = memoryview(buffer)
    page = view[:PAGE]
    random = np.random.default_rng(1)
    try:
        drop_page_cache(descriptor, direct)
        start, done = time.perf_counter(), 0
        for offset in range(0, FILE, LONG):
            done += os.preadv(descriptor, [view], offset)
            if time.perf_counter() - start > PASS_S:
                break
        bandwidth = done / (time.perf_counter() - start)
        drop_page_cache(descriptor, direct)
        taken: list[float] = []
        began = time.perf_counter()
        for block in random.permutation(FILE // PAGE)[:READS].tolist():
            start = time.perf_counter()
            os.preadv(descriptor, [page], block * PAGE)
            taken.append(time.perf_counter() - start)
            if time.perf_counter() - began > PASS_S:
                break
        return bandwidth, statistics.median(taken)
    finally:
        page.release()
        view.release()
        buffer.close()
        os.close(descriptor)


def _open(name: str) -> tuple[int, bool]:
    """(descriptor, whether reads go past the page cache)."""
    if hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):
            return os.open(name, os.O_RDONLY | os.O_DIRECT), True
    return os.open(name, os.O_RDONLY), False


def drop_page_cache(descriptor: int, direct: bool) -> None:
    """Has the system drop the file's pages, where reads would otherwise be answered from memory."""
    if not direct and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
