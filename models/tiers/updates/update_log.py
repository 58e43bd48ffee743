"""Keeps a durable log of a bundle's row updates, so that acknowledged updates survive a crash or power loss.

    file:  MAGIC, then records of  uint32 length | uint32 CRC-32 of the rest | msgpack of Record

A record is either complete or, at the end of the file, torn by a crash, in which case it was not
acknowledged. A torn record is cut off but kept beside the log, since disk damage looks the same. Callers that
wait for the disk at the same time share one fsync (group commit). When most of the log is superseded, it is
rewritten with the last value of each row.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from polyrec.models.errors import PolyrecError
from polyrec.models.files import sync
from polyrec.models.tiers.updates.names import NameChanges, NamedId
from polyrec.models.tiers.updates.update import StoredTableUpdate

Buffer = bytes | memoryview

log = logging.getLogger("polyrec.serving")

MAGIC = b"polyrec-updates-1\n"
_FRAME = struct.Struct("<II")
# msgpack headers: arrays of 2 and 3, a map, bytes
_ARRAY_OF_2, _ARRAY_OF_3, _MAP, _BYTES = b"\x92", b"\x93", struct.Struct(">BI"), struct.Struct(">BI")
MAX_PARTS = 1024
"""Parts of a system call, the kernel's limit."""
MAX_RECORD_BYTES = 2**31
SUPERSEDED = 4
"""The log is rewritten when it is this many times as large as its rows' last values."""
MIN_REWRITTEN_BYTES = 2**26


class UpdateLogError(PolyrecError):
    """Raised when an update log cannot be opened or read, or is in use by another server."""


class StoredRows(msgspec.Struct, array_like=True, frozen=True):
    """Bytes of the rows of one table. ids: int64, little-endian. values: of all rows, concatenated."""

    ids: memoryview
    values: memoryview


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One update.

    key: the caller's name for it, which identifies repeats; empty if it has none.
    names: table -> (value, id or None, Unix time of expiry) as in NamedId.
    """

    key: str
    tables: dict[str, StoredRows]
    names: dict[str, list[tuple[str | int, int | None, float]]] = {}

    def updates(self) -> dict[str, StoredTableUpdate]:
        """Returns the rows by table. Raises ValueError."""
        found = {}
        for table, rows in self.tables.items():
            ids = np.frombuffer(rows.ids, "<i8")
            values = np.frombuffer(rows.values, np.uint8).reshape(ids.size, -1)
            found[table] = StoredTableUpdate(ids, values)
        return found

    def name_changes(self) -> NameChanges:
        """Returns the changes of names, by table."""
        return {table: [NamedId(*name) for name in names] for table, names in self.names.items()}


def record_of(key: str, update: Mapping[str, StoredTableUpdate], names: NameChanges | None = None) -> Record:
    """Creates the record of an update."""
    return Record(
        key,
        {
            table: StoredRows(_bytes(given.ids.astype("<i8", copy=False)), _bytes(given.values))
            for table, given in update.items()
            if given.ids.size
        },
        {table: [(n.value, n.id, n.expires) for n in changed] for table, changed in (names or {}).items()},
    )


class UpdateLog:
    """The log in a file, created with its folder if absent. Raises UpdateLogError.

    One process at a time has it open. The caller's lock serializes `append` and `rewrite`; `sync` is called
    without it.
    """

    def __init__(self, file: Path) -> None:
        self.path = file
        self._lock_file = self._sibling(".lock")
        self._encoder = msgspec.msgpack.Encoder()
        self._syncing = threading.Lock()
        self._broken: str | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as e:
            raise UpdateLogError(f"the log of updates '{file}' cannot be opened: {e.strerror or e}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_named(self._lock, self._lock_file):
                # another server removed the file before the lock was taken, and a third may have created a
                # new one
                raise BlockingIOError
            self._fd = self._open()
        except BlockingIOError:
            os.close(self._lock)
            raise UpdateLogError(f"the log of updates '{file}' is in use by another server") from None
        except OSError as e:
            os.close(self._lock)
            raise UpdateLogError(f"the log of updates '{file}' cannot be opened: {e.strerror or e}") from None
        self.bytes = os.fstat(self._fd).st_size
        # bytes ever appended; a rewrite does not reduce it
        self._appended = self._synced = 0
        self._min_rewritten = 0

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _is_unbegun(fd):
                # new, or the process or machine crashed before the first record
                os.ftruncate(fd, 0)
                _write_at(fd, [MAGIC], 0)
                os.fsync(fd)
            # of a server that was killed in `rewrite`
            self._sibling(".partial").unlink(missing_ok=True)
            # also for an existing file: a server may have ended before it synced the folder
            sync(self.path.parent)
        except OSError:
            os.close(fd)
            raise
        return fd

    def replay(self) -> Iterator[Record]:
        """Yields the records in order, and cuts off a torn one at the end. Raises UpdateLogError."""
        size = os.fstat(self._fd).st_size
        if os.pread(self._fd, len(MAGIC), 0) != MAGIC:
            raise UpdateLogError(f"'{self.path}' is not a log of updates")
        decoder = msgspec.msgpack.Decoder(Record)
        at = len(MAGIC)
        while at < size:
            payload = self._payload(at, size)
            if payload is None:
                break
            try:
                record = decoder.decode(payload)
            except msgspec.DecodeError as e:
                raise UpdateLogError(f"'{self.path}': the record at byte {at} cannot be read: {e}") from None
            yield record
            at += _FRAME.size + len(payload)
        if at < size:
            self._cut_off(at, size)
        self.bytes = at

    def _cut_off(self, at: int, size: int) -> None:
        """Truncates the log before an incomplete record; keeps the rest in another file, of a new name."""
        cut_file = next(file for n in count(1) if not (file := self._sibling(f".cut-{n}")).exists())
        kept = f"kept in '{cut_file.name}'"
        try:
            # on disk before the truncation, or a second crash could lose both
            _write_durably(cut_file, _read_at(self._fd, size - at, at))
        except OSError as e:
            kept = f"not kept: {e.strerror or e}"
        log.warning(
            "'%s': %d bytes after the last whole record are cut off and %s; torn by a crash, they were not "
            "acknowledged; otherwise the file was damaged, and updates are lost",
            self.path,
            size - at,
            kept,
        )
        os.ftruncate(self._fd, at)
        os.fsync(self._fd)

    def _sibling(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def _payload(self, at: int, size: int) -> bytes | None:
        """Returns the record at a byte offset; None if it is torn."""
        head = os.pread(self._fd, _FRAME.size, at)
        if len(head) < _FRAME.size:
            return None
        length, checksum = _FRAME.unpack(head)
        # length 0 means zeros left by a power loss, whose checksum would match
        if not 0 < length <= min(MAX_RECORD_BYTES, size - at - _FRAME.size):
            return None
        payload = _read_at(self._fd, length, at + _FRAME.size)
        return payload if zlib.crc32(payload) == checksum else None

    def append(self, record: Record) -> int:
        """Writes a record; returns the position to `sync`. Raises OSError, in which case nothing is
        written.
        """
        if self._broken is not None:
            raise OSError(0, self._broken)
        frame = self._frame(record)
        try:
            written = _write_at(self._fd, frame, self.bytes)
        except OSError:
            os.ftruncate(self._fd, self.bytes)
            raise
        self.bytes += written
        self._appended += written
        return self._appended

    def _frame(self, record: Record) -> list[Buffer]:
        """Returns the bytes of a record in parts, because copying a long one would block other threads.

        Raises OSError if it is too long to be read back.
        """
        encode = self._encoder.encode
        parts: list[Buffer] = [_ARRAY_OF_3 + encode(record.key) + _MAP.pack(0xDF, len(record.tables))]
        for table, rows in record.tables.items():
            parts.append(encode(table) + _ARRAY_OF_2 + _BYTES.pack(0xC6, len(rows.ids)))
            parts += rows.ids, _BYTES.pack(0xC6, len(rows.values)), rows.values
        parts.append(encode(record.names))
        length, checksum = sum(map(len, parts)), 0
        if length > MAX_RECORD_BYTES:
            raise OSError(errno.EFBIG, f"an update of {length} bytes; at most {MAX_RECORD_BYTES}")
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return [_FRAME.pack(length, checksum), *parts]

    @property
    def was_lost(self) -> bool:
        """Whether another program, such as logrotate, has moved, removed or truncated the file."""
        return not _is_named(self._fd, self.path) or os.fstat(self._fd).st_size < self.bytes

    @property
    def position(self) -> int:
        """Position after the last record, for `sync`."""
        return self._appended

    def sync(self, position: int) -> None:
        """Returns once everything before a position is on disk. Raises OSError."""
        with self._syncing:
            if self._broken is not None:
                raise OSError(0, self._broken)
            if self._synced >= position:
                return
            written = self._appended
            try:
                os.fdatasync(self._fd)
            except OSError as e:
                # the kernel may have dropped the unwritten pages, which no later fsync would report
                self._broken = f"the disk failed ({e.strerror or e}); restart the server"
                raise
            self._synced = written

    def is_mostly_superseded(self, live_bytes: int) -> bool:
        """Returns whether the log should be rewritten. live_bytes: size of the last values of all rows."""
        return self.bytes > max(SUPERSEDED * live_bytes, MIN_REWRITTEN_BYTES, self._min_rewritten)

    def rewrite(self, records: Iterator[Record]) -> None:
        """Replaces all records atomically; a crash leaves either the old or the new ones. Raises OSError.

        After a failure, the log must grow further before it `is_mostly_superseded` again, because the next
        attempt would fail as well.
        """
        partial = self._sibling(".partial")
        fd = folder = -1
        try:
            fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            # open the folder first: after the replacement, running out of descriptors must not cause a
            # failure
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            at = _write_at(fd, [MAGIC], 0)
            for record in records:
                at += _write_at(fd, self._frame(record), at)
            os.fsync(fd)
            with self._syncing:
                os.replace(partial, self.path)
                fd, self._fd = self._fd, fd
                self.bytes = at
                try:
                    os.fsync(folder)
                except OSError as e:
                    self._broken = f"the disk failed ({e.strerror or e}); restart the server"
                    raise
                self._synced = self._appended
        except BaseException:
            self._min_rewritten = self.bytes + MIN_REWRITTEN_BYTES
            partial.unlink(missing_ok=True)
            raise
        finally:
            for descriptor in (fd, folder):
                if descriptor >= 0:
                    os.close(descriptor)

    def close(self, remove: bool = False) -> None:
        """Closes the file. remove: also deletes it, because its bundle will not be served again.

        Callers waiting in `sync` return first, with an error if the disk fails.
        """
        with self._syncing:
            if not remove and self._synced < self._appended and self._broken is None:
                try:
                    os.fdatasync(self._fd)
                except OSError as e:
                    self._broken = f"the disk failed ({e.strerror or e}); restart the server"
            self._synced = self._appended
            os.close(self._fd)
        if remove:
            cut_files = self.path.parent.glob(glob.escape(self.path.name) + ".cut*")
            for file in (self.path, *cut_files, self._lock_file):
                file.unlink(missing_ok=True)
        os.close(self._lock)


def _write_at(fd: int, parts: Sequence[Buffer], at: int) -> int:
    """Writes all parts, one after another; returns their total length."""
    left, done = [memoryview(part) for part in parts], 0
    while left:
        written = os.pwritev(fd, left[:MAX_PARTS], at + done)
        done += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]
    return done


def _bytes(array: NDArray[Any]) -> memoryview:
    """Returns an array's bytes, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).data.cast("B")


def _read_at(fd: int, length: int, at: int) -> bytes:
    parts, done = [], 0
    while done < length and (part := os.pread(fd, length - done, at + done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _is_named(fd: int, file: Path) -> bool:
    """Returns whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), file.stat())
    except FileNotFoundError:
        return False


def _is_unbegun(fd: int) -> bool:
    """Returns whether a log is empty, or has only a part of MAGIC and the zeros that a power loss leaves."""
    size = os.fstat(fd).st_size
    head = os.pread(fd, len(MAGIC), 0)
    return size <= len(MAGIC) and head != MAGIC and MAGIC.startswith(head.rstrip(b"\0"))


def _write_durably(file: Path, data: bytes) -> None:
    """Creates a file; returns once it and its folder's entry are on disk. Raises OSError, with no file."""
    with file.open("xb", buffering=0) as f:
        try:
            _write_at(f.fileno(), [data], 0)
            os.fsync(f.fileno())
            sync(file.parent)
        except OSError:
            file.unlink(missing_ok=True)
            raise
