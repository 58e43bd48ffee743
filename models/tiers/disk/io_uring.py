"""Reads and writes files in batches with io_uring: arrays of offsets, no Python code per read.

The kernel's submission queue is an array of 64-byte records in shared memory. Mapped as a numpy array, it
takes a batch of reads in a few whole-array assignments, and one system call starts them. A waiting thread
sleeps in the kernel without holding the GIL. Layouts and constants are from linux/io_uring.h. Containers
often forbid the calls: `Ring` then raises OSError, and `polyrec.models.tiers.disk.reads` uses threads.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading

import numpy as np

from polyrec.models.schema.batch import I64

_SETUP, _ENTER = 425, 426
_OFF_CQ, _OFF_SQES = 0x8000000, 0x10000000
_SINGLE_MMAP, _GETEVENTS, _READ, _WRITE = 1, 1, 22, 23
_HEAD, _TAIL, _ARRAY, _CQES = 0, 1, 6, 5
_SQ_OFF, _CQ_OFF = 10, 20
"""Start of the two tables of offsets in the parameters, in 32-bit words."""

_SQE = np.dtype(
    [
        ("opcode", "u1"),
        ("flags", "u1"),
        ("ioprio", "u2"),
        ("fd", "i4"),
        ("off", "u8"),
        ("addr", "u8"),
        ("len", "u4"),
        ("rw_flags", "u4"),
        ("user_data", "u8"),
        ("rest", "u8", 3),
    ]
)
_ENTRIES = 1024
_CQE = np.dtype([("user_data", "u8"), ("res", "i4"), ("flags", "u4")])

_syscall = ctypes.CDLL(None, use_errno=True).syscall
# every argument is a machine word, as variadic C functions require
_syscall.argtypes = (ctypes.c_long,) * 7
_syscall.restype = ctypes.c_long


def _call(number: int, a: int, b: int, c: int = 0, d: int = 0) -> int:
    result: int = _syscall(number, a, b, c, d, 0, 0)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Ring:
    """One io_uring over one file. Any thread may submit and wait.

    memory: address of the buffer that is read into; each read gives an offset into it.
    writes: writes from the buffer to the file instead.
    """

    kind = "io_uring"

    def __init__(self, file: int, memory: int, writes: bool = False) -> None:
        parameters = (ctypes.c_uint32 * 30)()
        self._fd = _call(_SETUP, _ENTRIES, ctypes.addressof(parameters))
        self._file, self._memory = file, memory
        p = np.frombuffer(memoryview(parameters), np.uint32)
        self.entries, self._capacity = int(p[0]), int(p[1])
        sq, cq = p[_SQ_OFF:], p[_CQ_OFF:]
        if not p[5] & _SINGLE_MMAP:
            os.close(self._fd)
            raise OSError(errno.ENOSYS, "this kernel's io_uring is too old")
        size = max(int(sq[_ARRAY]) + 4 * self.entries, int(cq[_CQES]) + _CQE.itemsize * self._capacity)
        self._rings = mmap.mmap(self._fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        length = _SQE.itemsize * self.entries
        self._requests = mmap.mmap(self._fd, length, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=_OFF_SQES)
        words = np.frombuffer(self._rings, np.uint32, len(self._rings) // 4)
        self._sq_tail = words[int(sq[_TAIL]) // 4 :][:1]
        self._cq_head = words[int(cq[_HEAD]) // 4 :][:1]
        self._cq_tail = words[int(cq[_TAIL]) // 4 :][:1]
        self._cq_mask = self._capacity - 1
        words[int(sq[_ARRAY]) // 4 :][: self.entries] = np.arange(self.entries)
        self._sqes = np.frombuffer(self._requests, _SQE, self.entries)
        self._cqes = np.frombuffer(self._rings, _CQE, self._capacity, int(cq[_CQES]))
        self._sqes["opcode"] = _WRITE if writes else _READ
        self._sqes["fd"] = file
        self._state = threading.Lock()
        # Held while taking completions from the queue, because a thread asleep in the kernel would miss those
        # taken by another thread. Acquired before `_state`.
        # another thread took. Acquired before `_state`.
        self._reaping = threading.Lock()
        self._left: dict[int, int] = {}
        self._failed: dict[int, int] = {}
        self._flying = 0
        self._next = 1
        self._length = 0

    def submit(self, offsets: I64, targets: I64, length: int) -> int:
        """Starts a read of `length` bytes at each of `offsets` in the file, into memory at `targets`.

        Returns a ticket for `wait`; 0 if there is nothing to read.
        """
        if not offsets.size:
            return 0
        with self._state:
            ticket = self._next
            self._next += 1
            self._left[ticket] = offsets.size
        start = 0
        while start < offsets.size:
            self._reap_unless_awaited()
            with self._state:
                count = min(self._capacity - self._flying, self.entries, offsets.size - start)
                if count:
                    part = slice(start, start + count)
                    self._start(offsets[part], targets[part], length, ticket)
                    start += count
            if not count:
                self._sleep()
        return ticket

    def _start(self, offsets: I64, targets: I64, length: int, ticket: int) -> None:
        tail = int(self._sq_tail[0])
        place = (tail + np.arange(offsets.size)) & (self.entries - 1)
        requests = self._sqes
        requests["off"][place] = offsets
        requests["addr"][place] = targets + self._memory
        requests["user_data"][place] = ticket
        if length != self._length:
            requests["len"] = self._length = length
        self._sq_tail[0] = (tail + offsets.size) & 0xFFFFFFFF
        self._flying += offsets.size
        left = int(offsets.size)
        while left:
            left -= self._enter(left, 0, 0)

    def _enter(self, submit: int, wait: int, flags: int) -> int:
        while True:
            try:
                return _call(_ENTER, self._fd, submit, wait, flags)
            except InterruptedError:
                continue
            except BlockingIOError:
                # the kernel lacks memory for requests; retry when those in flight have freed it
                if not submit:
                    raise

    def _reap(self) -> None:
        head, tail = int(self._cq_head[0]), int(self._cq_tail[0])
        count = (tail - head) & 0xFFFFFFFF
        if not count:
            return
        place = (head + np.arange(count)) & self._cq_mask
        owner, result = self._cqes["user_data"][place], self._cqes["res"][place]
        self._cq_head[0] = tail
        self._flying -= count
        bad = result != self._length
        if bad.any():
            self._failed |= zip(owner[bad].tolist(), result[bad].tolist(), strict=True)
        for ticket in list(self._left):
            self._left[ticket] -= int(np.count_nonzero(owner == ticket))
            if not self._left[ticket]:
                del self._left[ticket]

    def _reap_unless_awaited(self) -> None:
        if self._reaping.acquire(blocking=False):
            try:
                with self._state:
                    self._reap()
            finally:
                self._reaping.release()

    def _sleep(self) -> None:
        """Waits until a read has completed, if any is in flight."""
        with self._reaping:
            with self._state:
                self._reap()
                waiting = self._flying
            if waiting:
                self._enter(0, 1, _GETEVENTS)

    def under_way(self) -> set[int]:
        """Returns the tickets with unfinished reads."""
        self._reap_unless_awaited()
        with self._state:
            return set(self._left)

    def wait(self, ticket: int) -> None:
        """Waits for every read of the ticket. Raises OSError if one failed, on every call."""
        while True:
            with self._reaping:
                with self._state:
                    self._reap()
                    left = self._left.get(ticket)
                    if left is None:
                        break
                # No other thread reaps now, so the completions that wake this one are still in the queue.
                # Wait for all at once: each wake-up would take the interpreter lock from the thread that is
                # computing.
                # at once: each wake-up takes the interpreter lock from the thread that executes.
                self._enter(0, left, _GETEVENTS)
        with self._state:
            failed = self._failed.get(ticket)
        if failed is not None:
            code = -failed if failed < 0 else errno.EIO
            raise OSError(code, f"a page could not be read or written: {os.strerror(code)}")

    def close(self) -> None:
        """Closes the ring after all reads in flight, which would otherwise write into freed memory."""
        while self._flying:
            self._sleep()
        os.close(self._fd)
