"""Measures the disk for tier files: free space, sequential reads, and reads of single pages.

It uses a temporary file, with direct reads if the file system supports them; otherwise the file's pages are
dropped from the page cache first. Takes tens of megabytes and less than two seconds.
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
    """Measured properties of a disk.

    free_bytes: of the file system.

    bandwidth: bytes/s of sequential reads; latency_s: median read of a page.
    """

    free_bytes: int | None
    bandwidth: float | None = None
    latency_s: float | None = None


def measure_disk(folder: Path, measure: bool) -> Disk:
    """Measures the disk of a folder or its nearest existing ancestor; only free space if it is not
    writable.
    """
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
            # random bytes, because some disks compress repeated ones
            file.write(np.random.default_rng(0).bytes(FILE))
            file.flush()
            os.fsync(file.fileno())
            return Disk(free, *_read(file.name))
    except OSError:
        return Disk(free)


def _read(name: str) -> tuple[float, float]:
    """Returns (bytes/s of sequential reads, seconds per page)."""
    descriptor, direct = _open(name)
    # direct reads need page-aligned memory
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
    """Returns (descriptor, whether reads bypass the page cache)."""
    if hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):
            return os.open(name, os.O_RDONLY | os.O_DIRECT), True
    return os.open(name, os.O_RDONLY), False


def drop_page_cache(descriptor: int, direct: bool) -> None:
    """Drops the file's pages from the page cache, unless reads bypass it."""
    if not direct and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
