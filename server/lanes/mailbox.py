"""The mailbox of a process lane: shared memory that carries batches to the worker and answers back.

    head    the path and the sizes of the batch's arrays
    reply   the outcome
    data    the batch's arrays and space for the answer (server/lanes/layout.py), or a message in UTF-8

The worker's arrays are views of the bytes that the server wrote. The memory is a memfd without a name, so the
kernel frees it together with the last process that holds it. It starts large, since only touched pages use
memory, and grows when a batch needs more.

The signals in server/lanes/child.py decide who may write: the server until it wakes the worker, then the
worker until it signals completion. Their system calls also order the memory accesses.

Between two batches each side's code leaves the CPU caches, so a hand-over costs the code and memory it
touches rather than the bytes it copies. Therefore a small batch fits one page and is written by one call, and
a worker caches the views for sizes it has seen.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from struct import Struct
from typing import Any

import numpy as np

from polyrec.models.schema.batch import F32, Batch
from polyrec.models.tiers.shared.resolved import ResolvedRows
from polyrec.server.lanes.lane import Executed, ExecutionFailed
from polyrec.server.lanes.layout import HEAD, NO_TIERS, Layout

FIRST_BYTES = 4 << 20
"""Initial size."""
JOINED_ROWS = 512
"""Maximum rows of a batch whose arrays are joined before writing. Copying a few KB once more costs less than
writing nine arrays one by one."""
MAX_LAYOUTS = 1024
"""Maximum layouts that a worker caches, of 2 KB each."""

_REPLY = Struct("=qdddq")  # state; seconds of embed, dense and waiting; bytes of the message
_REPLY_AT = 160
_DATA_AT = 256
_INT, _FLOAT = np.dtype(np.int64), np.dtype(np.float32)
_TYPES = [*7 * [_INT], *2 * [_FLOAT]]
_NO_ROWS = np.empty(0, np.int64)
_PADDING = np.zeros(3, np.uint8)


class WorkerState(IntEnum):
    """State of a worker or of its batch."""

    STARTING = 0
    READY = 1
    UNAVAILABLE = 2
    EXECUTED = 3
    FAILED = 4


_EXECUTED = int(WorkerState.EXECUTED)


class Mailbox:
    """One end of the shared memory behind `fd`, which it owns."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._layouts: dict[bytes, Layout] = {}  # worker only: by head
        self._expected = slice(0)  # server only: position of the answer
        self._map()

    @staticmethod
    def create(name: str) -> Mailbox:
        """Creates an empty mailbox. name: appears in /proc."""
        fd = os.memfd_create(f"polyrec lane {name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, FIRST_BYTES)
            return Mailbox(fd)
        except BaseException:
            os.close(fd)
            raise

    def _map(self) -> None:
        size = os.fstat(self.fd).st_size
        self._memory = mmap.mmap(self.fd, size)
        self.capacity = size - _DATA_AT
        self._ints = np.frombuffer(self._memory, np.int64, offset=_DATA_AT)
        self._floats = np.frombuffer(self._memory, np.float32, offset=_DATA_AT)
        self._answer = self._floats[:0]
        self._layouts.clear()

    def _grow(self, needed: int) -> None:
        size = _DATA_AT + max(needed, 2 * self.capacity)
        os.ftruncate(self.fd, size + -size % mmap.PAGESIZE)
        self._map()

    def close(self) -> None:
        """Releases the memory, which is freed with its last view."""
        os.close(self.fd)
        self._layouts.clear()
        del self._ints, self._floats, self._answer, self._memory

    def put(self, path: int, batch: Batch, resolved: ResolvedRows | None = None) -> None:
        """Writes a batch (server only). Raises TypeError if ranks or offsets are not int64.

        path: index of the path.
        resolved: the batch's rows resolved in the tiers, None if they are not in tiers.
        """
        context, candidate, context_row = batch.context, batch.candidate, batch.context_row
        context_ranks, context_dense = context.ranks, context.dense
        context_values, context_offsets = context.bag_values, context.bag_offsets
        ranks, dense = candidate.ranks, candidate.dense
        values, offsets = candidate.bag_values, candidate.bag_offsets
        is_shared = context_row is not None
        if context_row is None:
            context_row = _NO_ROWS
        ints = [context_ranks, ranks, context_values, values, context_offsets, offsets, context_row]
        arrays: list[Any] = [*ints, context_dense, dense]
        if not (
            context_ranks.dtype is ranks.dtype is context_values.dtype is values.dtype is _INT
            and context_offsets.dtype is offsets.dtype is context_row.dtype is _INT
            and context_dense.dtype is dense.dtype is _FLOAT
        ):
            arrays = [a.astype(t, casting="same_kind") for a, t in zip(arrays, _TYPES, strict=True)]
        rows = dense.shape[0]
        tiers = NO_TIERS
        if resolved is not None:
            tiers = (resolved.addresses.size, *resolved.values.shape)
            arrays[7:7] = [resolved.addresses, resolved.at]
            arrays += [resolved.values, _PADDING[: -resolved.values.size % 4]]
        at = self._write_joined(arrays, rows) if rows <= JOINED_ROWS else self._write_each(arrays, rows)
        HEAD.pack_into(
            self._memory,
            0,
            self.capacity,
            at,
            path,
            rows,
            context_dense.shape[0],
            is_shared,
            batch.plain_rows,
            context_ranks.shape[1],
            ranks.shape[1],
            context_values.size,
            values.size,
            context_offsets.size,
            offsets.size,
            context_dense.shape[1],
            dense.shape[1],
            *tiers,
        )
        self._expected = slice(at, at + rows)

    def _write_joined(self, arrays: list[Any], rows: int) -> int:
        """Writes all arrays with one call; returns the offset of the answer, in float32."""
        try:
            joined = b"".join(arrays)
        except TypeError:  # only contiguous arrays can be joined
            joined = b"".join([np.ascontiguousarray(a).data for a in arrays])
        end = len(joined)
        if end + 4 * rows > self.capacity:
            self._grow(end + 4 * rows)
        self._memory[_DATA_AT : _DATA_AT + end] = joined
        return end // 4

    def _write_each(self, arrays: list[Any], rows: int) -> int:
        """Writes the arrays one by one; returns the offset of the answer, in float32."""
        end: int = sum(array.nbytes for array in arrays)
        if end + 4 * rows > self.capacity:
            self._grow(end + 4 * rows)
        start = _DATA_AT
        for array in arrays:
            size = array.nbytes
            self._memory[start : start + size] = np.ascontiguousarray(array).data
            start += size
        return end // 4

    def take(self) -> tuple[int, Batch, ResolvedRows | None]:
        """Returns the path's index, the batch and its resolved rows (worker only).

        The arrays are views, valid until the answer is written.
        """
        head = self._memory[: HEAD.size]
        layout = self._layouts.get(head) or self._lay_out(head)
        self._answer = layout.answer
        return layout.path, layout.batch, layout.resolved

    def _lay_out(self, head: bytes) -> Layout:
        capacity, *_ = HEAD.unpack(head)
        if capacity != self.capacity:
            self._map()
        if len(self._layouts) == MAX_LAYOUTS:
            del self._layouts[next(iter(self._layouts))]
        self._layouts[head] = layout = Layout.from_header(head, self._ints, self._floats)
        return layout

    def answer(self, probabilities: F32, embed_s: float, dense_s: float, waited_s: float = 0.0) -> None:
        """Writes the probabilities and times of the last batch taken (worker only). See `Executed`."""
        self._answer[:] = probabilities
        _REPLY.pack_into(self._memory, _REPLY_AT, _EXECUTED, embed_s, dense_s, waited_s, 0)

    def put_message(self, state: WorkerState, message: str = "") -> None:
        """Writes a message in place of an answer or, before the worker starts, of a batch."""
        text = message.encode("utf-8", "backslashreplace")[: self.capacity]
        self._memory[_DATA_AT : _DATA_AT + len(text)] = text
        _REPLY.pack_into(self._memory, _REPLY_AT, state, 0.0, 0.0, 0.0, len(text))

    def message(self) -> tuple[WorkerState, str]:
        """Reads the last message."""
        state, _, _, _, size = _REPLY.unpack_from(self._memory, _REPLY_AT)
        return WorkerState(state), self._memory[_DATA_AT : _DATA_AT + size].decode("utf-8", "replace")

    def outcome(self) -> Executed | ExecutionFailed:
        """Returns the outcome of the last batch put, with a copy of the probabilities (server only)."""
        state, embed_s, dense_s, waited_s, _ = _REPLY.unpack_from(self._memory, _REPLY_AT)
        if state != _EXECUTED:
            return ExecutionFailed(self.message()[1])
        return Executed(self._floats[self._expected].copy(), embed_s, dense_s, waited_s)
