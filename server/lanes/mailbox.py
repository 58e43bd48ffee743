"""The mailbox of a process lane: one piece of shared memory that a batch goes in by and an answer out.

    head   4 KiB: which path, the sizes of the batch's arrays, what became of it
    data   the batch's int64 arrays, its float32 arrays, the answer; or a message in UTF-8 instead

The batch's arrays are written here once, and the worker's are views of the same bytes. The memory has no
name in any file system (memfd): it ends with the last process that holds it, however that ends. Only
pages that were touched take memory, so it starts large, and it grows when a batch needs more.

Who may write is agreed by the signals of server/lanes/child.py, whose system calls also order the memory
accesses: the server until it wakes the worker, the worker until it says that it is done.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from struct import Struct

import numpy as np

from models.batch import Batch, Block
from server.lanes.lane import Executed, ExecutionFailed

HEAD_BYTES = 4096
FIRST_BYTES = 4 << 20

# size of the data area, path, rows, contexts, whether they are shared; then, context before candidate:
# columns of ranks, values and offsets of bags, columns of dense
_REQUEST = Struct("=13q")
_REPLY = Struct("=qddq")  # state, seconds of embed and dense, bytes of the message
_REPLY_AT = _REQUEST.size


class State(IntEnum):
    """What a worker says of itself or its batch."""

    STARTING = 0
    READY = 1
    UNAVAILABLE = 2
    EXECUTED = 3
    FAILED = 4


class Mailbox:
    """One end of the shared memory behind `fd`, which it owns."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._answer = 0, 0
        self._map()

    @staticmethod
    def create(name: str) -> Mailbox:
        """A new one, empty. name: what /proc shows it as."""
        fd = os.memfd_create(f"polyrec lane {name}", os.MFD_CLOEXEC)
        os.ftruncate(fd, HEAD_BYTES + FIRST_BYTES)
        return Mailbox(fd)

    def _map(self) -> None:
        size = os.fstat(self.fd).st_size
        self._memory = mmap.mmap(self.fd, size)
        self.capacity = size - HEAD_BYTES
        self._ints = np.frombuffer(self._memory, np.int64, offset=HEAD_BYTES)
        self._floats = np.frombuffer(self._memory, np.float32, offset=HEAD_BYTES)

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * self.capacity)
        capacity += -capacity % mmap.PAGESIZE
        os.ftruncate(self.fd, HEAD_BYTES + capacity)
        self._map()

    def close(self) -> None:
        """Lets the memory go; it is freed with the last view of it."""
        os.close(self.fd)
        del self._ints, self._floats, self._memory

    def put(self, path: int, batch: Batch) -> None:
        """The server's: a batch for the path of this number."""
        context, candidate, row = batch.context, batch.candidate, batch.context_row
        contexts, singles = context.ranks.shape
        rows, own_singles = candidate.ranks.shape
        dense, own_dense = context.dense.shape[1], candidate.dense.shape[1]
        values, own_values = context.bag_values.size, candidate.bag_values.size
        offsets, own_offsets = context.bag_offsets.size, candidate.bag_offsets.size
        ints = [
            context.ranks.reshape(-1),
            candidate.ranks.reshape(-1),
            context.bag_values,
            candidate.bag_values,
            context.bag_offsets,
            candidate.bag_offsets,
        ]
        end = contexts * singles + rows * own_singles + values + own_values + offsets + own_offsets
        if row is not None:
            ints.append(row)
            end += rows
        first = 2 * end
        last = first + contexts * dense + rows * own_dense
        if (needed := 4 * (last + rows)) > self.capacity:
            self._grow(needed)
        np.concatenate(ints, out=self._ints[:end])
        if last > first:
            floats = (context.dense.reshape(-1), candidate.dense.reshape(-1))
            np.concatenate(floats, out=self._floats[first:last])
        self._answer = last, last + rows
        _REQUEST.pack_into(
            self._memory,
            0,
            self.capacity,
            path,
            rows,
            contexts,
            row is not None,
            singles,
            own_singles,
            values,
            own_values,
            offsets,
            own_offsets,
            dense,
            own_dense,
        )

    def take(self) -> tuple[int, Batch]:
        """The worker's: (number of the path, the batch), its arrays views that last until the answer."""
        head = _REQUEST.unpack_from(self._memory)
        capacity, path, rows, contexts, shared = head[:5]
        singles, own_singles, values, own_values, offsets, own_offsets, dense, own_dense = head[5:]
        if capacity != self.capacity:
            self._map()
        a = contexts * singles
        b = a + rows * own_singles
        c = b + values
        d = c + own_values
        e = d + offsets
        f = e + own_offsets
        end = f + rows if shared else f
        first = 2 * end
        middle = first + contexts * dense
        last = middle + rows * own_dense
        self._answer = last, last + rows
        ints, floats = self._ints, self._floats
        context = Block(
            floats[first:middle].reshape(contexts, dense),
            ints[:a].reshape(contexts, singles),
            ints[b:c],
            ints[d:e],
        )
        candidate = Block(
            floats[middle:last].reshape(rows, own_dense),
            ints[a:b].reshape(rows, own_singles),
            ints[c:d],
            ints[e:f],
        )
        return path, Batch(context, candidate, ints[f:end] if shared else None)

    def answer(self, executed: Executed) -> None:
        """The worker's: the probabilities of the batch that it took last."""
        start, end = self._answer
        self._floats[start:end] = executed.probabilities
        _REPLY.pack_into(self._memory, _REPLY_AT, State.EXECUTED, executed.embed_s, executed.dense_s, 0)

    def say(self, state: State, message: str = "") -> None:
        """A message instead of an answer (or of a batch: what the worker is told at its start)."""
        text = message.encode("utf-8", "backslashreplace")[:FIRST_BYTES]
        self._memory[HEAD_BYTES : HEAD_BYTES + len(text)] = text
        _REPLY.pack_into(self._memory, _REPLY_AT, state, 0.0, 0.0, len(text))

    def said(self) -> tuple[State, str]:
        """What the other end said last."""
        state, _, _, size = _REPLY.unpack_from(self._memory, _REPLY_AT)
        return State(state), self._memory[HEAD_BYTES : HEAD_BYTES + size].decode("utf-8", "replace")

    def outcome(self) -> Executed | ExecutionFailed:
        """The server's: what became of the batch that was put last; the probabilities are a copy."""
        state, embed_s, dense_s, _ = _REPLY.unpack_from(self._memory, _REPLY_AT)
        if state != State.EXECUTED:
            return ExecutionFailed(self.said()[1])
        start, end = self._answer
        return Executed(self._floats[start:end].copy(), embed_s, dense_s)
