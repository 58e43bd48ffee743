"""Keeps the updates of a bundle's rows, so that they outlive the tiers that received them.

A bundle is immutable and tiers close with their generation, so reopening a bundle's tiers would restore its
original rows. The latest values are kept by stable id in an unlinked file. Tiers opened later are filled with
them, and updates reach all open tiers of the bundle. Updates that arrive while tiers are being filled are
overlaid before the tiers serve. With an update log, updates outlive the process too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.layout import REMOTE
from polyrec.models.tiers.slab import Bytes, ReadRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.kept_values import KeptValues
from polyrec.models.tiers.updates.last import last_of_equal
from polyrec.models.tiers.updates.names import Names
from polyrec.models.tiers.updates.update import (
    StoredTableUpdate,
    StoredUpdate,
    TableUpdate,
    UpdateNotKept,
    install_update,
    overlay,
)
from polyrec.models.tiers.updates.update_figures import UpdateFigures
from polyrec.models.tiers.updates.update_log import Record, UpdateLog, UpdateLogError, record_of
from polyrec.models.tiers.updates.value_file import ValueFile

log = logging.getLogger("polyrec.serving")

MAX_KEYS = 100_000
"""Maximum keys of updates that are remembered; the oldest are dropped."""
KEY_BYTES = 16
"""Bytes of a key in a log, without its text."""
ROWS_PER_RECORD = 4096
"""Rows of a record when the log is rewritten: it is encoded in one piece, and requests wait meanwhile."""
EXPIRY_INTERVAL_S = 0.5
"""Least time between expiries; values that expire within it are retracted together."""
MAX_EXPIRY_WAIT_S = 60.0
"""Longest wait for an expiry. A timer follows no clock that is set, and stops while a machine sleeps."""
EXPIRY_RETRY_S = 10.0
"""Time until an expiry is tried again that failed, as on a full disk."""
NONE = np.empty(0, np.int64)


class Changes:
    """Updates of the rows of one bundle on one device. Thread-safe.

    names: values that have reserved ids; read it only while holding the lock `held`.
    served: whether these rows have been in service, which the server sets.
    directory: folder of the file.
    update_log: read first, then appended to; closed together with this object.
    Raises UpdateLogError if the log cannot be read.
    """

    def __init__(self, directory: Path, update_log: UpdateLog | None = None) -> None:
        self._directory = directory
        self._update_log = update_log
        self._keys: dict[str, None] = {}
        self._key_bytes = 0
        self._lock = threading.RLock()
        self._tables: dict[str, KeptValues] = {}
        self._file = ValueFile(directory)
        self._rows = 0
        self._latest = 0
        self._stacks: list[TierStack] = []
        self._in_order: tuple[int, I64, I64] = (0, NONE, NONE)
        self._timer: threading.Timer | None = None
        self.names = Names()
        self.served = False
        self.figures = UpdateFigures()
        if update_log is not None:
            try:
                self._replay(update_log)
            except BaseException:
                update_log.close()
                raise

    @property
    def rows(self) -> int:
        """Number of updated rows."""
        return self._rows

    @property
    def taken(self) -> int:
        """Number of reserved rows assigned to values."""
        return sum(len(added) for added in tuple(self.names.added.values()))

    @property
    def reserved(self) -> int:
        """Number of reserved rows, assigned or free; 0 while no tiers are open."""
        stacks = tuple(self._stacks)
        encoder = stacks[-1].views.newest.encoder if stacks else None
        values = [] if encoder is None else [v.values for v in encoder.vocabularies.values()]
        return sum(v.null_count for v in values if v is not None)

    @property
    def latest(self) -> int:
        """Number of updates so far."""
        return self._latest

    @property
    def held(self) -> AbstractContextManager[object]:
        """Lock that blocks updates while held."""
        return self._lock

    def has_applied(self, key: str) -> bool:
        """Returns whether an update with this key was applied; an empty key never was."""
        return bool(key) and key in self._keys

    def apply(self, update: StoredUpdate, key: str = "") -> bool:
        """Stores an update and overlays it on all open tiers; returns once it is logged on disk.

        Returns False without changes if the key was applied before. Raises UpdateNotKept if it cannot be
        stored. If only the disk's sync failed, its rows are served but may not survive a crash.
        """
        with self._lock:
            fresh = not self.has_applied(key)
            position = self.install(update, key) if fresh else self.position
        self.sync(position)
        return fresh

    def install(self, update: StoredUpdate, key: str = "", lag_s: float | None = None) -> int:
        """Stores an update and overlays it; returns the log position to `sync`. Raises UpdateNotKept.

        lag_s: age of its values. The caller must hold the lock `held`.
        """
        self._store(update, key)
        if update.rows:
            for stack in self._stacks:
                overlay(stack, update.rows, self.names.added if update.names else None)
        self.figures.note(update, lag_s)
        if update.names:
            self._set_timer()
        return self.position

    def open_one(self, stack: TierStack) -> TierStack:
        """Returns the stack if it is open, else an open stack of the same rows. Raises UpdateNotKept."""
        if stack in self._stacks:
            return stack
        if not self._stacks:
            raise UpdateNotKept("update: these rows are no longer served")
        return self._stacks[-1]

    @property
    def position(self) -> int:
        """Log position after the last update, for `sync`."""
        return 0 if self._update_log is None else self._update_log.position

    def sync(self, position: int) -> None:
        """Waits until the log is on disk up to a position. Raises UpdateNotKept.

        Call it without the lock: concurrent callers share one sync.
        """
        update_log = self._update_log
        if update_log is None:
            return
        try:
            update_log.sync(position)
        except OSError as e:
            with self._lock:
                self.figures.failed += 1
            raise UpdateNotKept(f"update: '{update_log.path}' cannot be written: {e.strerror or e}") from None

    def _store(self, update: StoredUpdate, key: str) -> None:
        where = self._directory
        try:
            # allocate first, because a rejected update must leave no trace
            self._file.make_room(self._rows, update.rows)
            if self._update_log is not None:
                where = self._update_log.path
                self._restore(self._update_log)
                self._update_log.append(record_of(key, update.rows, update.names))
        except OSError as e:
            self.figures.failed += 1
            raise UpdateNotKept(
                f"update: the values cannot be kept in '{where}': {e.strerror or e}"
            ) from None
        self._keep(update.rows)
        self.names.apply(update.names)
        self._remember(key)
        self._compact()

    def expire(self) -> int:
        """Retracts expired values; returns how many. Raises UpdateNotKept."""
        with self._lock:
            expired = self.names.expired(time.time())
            if not expired or not self._stacks:
                return 0
            retractions = {table: TableUpdate.retraction(values) for table, values in expired.items()}
            # not synced, as others wait for the lock; after a crash the log still has their expiry times
            applied, _ = install_update(self._stacks[-1], retractions)
            self.figures.expired += applied.retracted
        return applied.retracted

    def _set_timer(self, min_s: float = EXPIRY_INTERVAL_S) -> None:
        """Sets the timer for the next value that expires. min_s: minimum delay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.names.next_expiry()
        if due is None or not self._stacks:
            return
        wait_s = max(min(due - time.time(), MAX_EXPIRY_WAIT_S), min_s)
        self._timer = threading.Timer(wait_s, self._expire_now)
        self._timer.daemon = True
        self._timer.start()

    def _expire_now(self) -> None:
        wait_s = EXPIRY_INTERVAL_S
        try:
            self.expire()
        except UpdateNotKept as e:
            wait_s = EXPIRY_RETRY_S
            log.warning("expired values are still served, trying again in %.0f s: %s", wait_s, e)
        except Exception:
            wait_s = EXPIRY_RETRY_S
            log.exception("expired values are still served")
        with self._lock:
            self._set_timer(wait_s)

    def _remember(self, key: str) -> None:
        if not key or key in self._keys:
            return
        self._keys[key] = None
        self._key_bytes += len(key) + KEY_BYTES
        if len(self._keys) > MAX_KEYS:
            oldest = next(iter(self._keys))
            del self._keys[oldest]
            self._key_bytes -= len(oldest) + KEY_BYTES

    def _replay(self, update_log: UpdateLog) -> None:
        """Applies the log's records. Raises UpdateLogError."""
        try:
            for record in update_log.replay():
                update = record.updates()
                if update:
                    self._keep(update)
                self.names.apply(record.name_changes())
                self._remember(record.key)
        except ValueError as e:
            raise UpdateLogError(f"'{update_log.path}' has rows of another format: {e}") from None
        except OSError as e:
            raise UpdateLogError(f"'{update_log.path}' cannot be read: {e.strerror or e}") from None
        self._compact()

    def _restore(self, update_log: UpdateLog) -> None:
        """Writes all updates to the log again if another program lost its file. Raises OSError."""
        if update_log.was_lost:
            log.warning("'%s' was moved, removed or truncated: it is written again", update_log.path)
            update_log.rewrite(self.last_values())

    def _compact(self) -> None:
        """Rewrites the log if most of it is superseded; keeps the old one on failure."""
        live = self._rows * (8 + self._file.row_bytes) + self._key_bytes + self.names.bytes
        if self._update_log is None or not self._update_log.is_mostly_superseded(live):
            return
        try:
            self._update_log.rewrite(self.last_values())
        except OSError as e:
            log.warning("'%s' cannot be rewritten: %s", self._update_log.path, e.strerror or e)

    def last_values(self) -> Iterator[Record]:
        """Yields records that hold the keys, the names and the last value of every row."""
        for key in self._keys:
            yield Record(key, {})
        yield record_of("", {}, self.names.everything())
        for table, kept in self._tables.items():
            for first in range(0, kept.ids.size, ROWS_PER_RECORD):
                part = slice(first, first + ROWS_PER_RECORD)
                yield record_of(
                    "", {table: StoredTableUpdate(kept.ids[part], self._file.values[kept.slots[part]])}
                )

    def over(self, source: ReadRows, sizes: Mapping[str, int], encoder: Encoder) -> ReadRows:
        """Returns the source with updates applied. encoder: the bundle's, for its row order."""

        def rows(first: int, count: int) -> Bytes:
            given = source(first, count)
            with self._lock:
                fused, slots = self._ordered(sizes, encoder)
                begin, end = np.searchsorted(fused, (first, first + count))
                if end > begin:
                    given = given.copy()
                    given[fused[begin:end] - first] = self._file.values[slots[begin:end]]
            return given

        return rows

    def join(self, stack: TierStack, since: int, filled: bool = True) -> None:
        """Overlays updates later than `since` on the stack, and includes the stack in every later update.

        filled: whether the stack wrote its remote rows. If not, the store may lack earlier updates too, as
        when it was down until the process or generation that received them ended.
        """
        with self._lock:
            self._overlay_again(stack, since, remote=not filled)
            if self.names.added:
                stack.rename(self.names.added)
            self._stacks.append(stack)
            self._set_timer()

    def restore_remote(self, stack: TierStack) -> None:
        """Overlays the updates of remote rows again: the store was restarted, and may have lost them."""
        with self._lock:
            if stack in self._stacks:
                self._overlay_again(stack, self._latest, remote=True)

    def _overlay_again(self, stack: TierStack, since: int, remote: bool) -> None:
        """Overlays updates later than `since`. remote: also earlier ones of the stack's remote rows."""
        missed = {}
        for table, kept in self._tables.items():
            late = kept.at > since
            if remote:
                late |= _are_remote(stack, table, kept.ids)
            if late.any():
                missed[table] = StoredTableUpdate(kept.ids[late], self._file.values[kept.slots[late]])
        if missed:
            overlay(stack, missed)

    def leave(self, stack: TierStack) -> None:
        """Removes a stack that is being closed."""
        with self._lock:
            if stack in self._stacks:
                self._stacks.remove(stack)

    def close(self, remove: bool = True) -> None:
        """Discards all updates. remove: also deletes their log, because the bundle will not be opened
        again.
        """
        with self._lock:
            self._stacks = []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._update_log is not None:
                try:
                    if not remove:
                        self._restore(self._update_log)
                except OSError as e:
                    log.error("'%s' lost its updates: %s", self._update_log.path, e.strerror or e)
                self._update_log.close(remove)
                self._update_log = None
            self._tables, self._rows = {}, 0
            self._file.close()

    def _keep(self, update: Mapping[str, StoredTableUpdate]) -> None:
        self._file.make_room(self._rows, update)
        self._latest += 1
        for table, given in update.items():
            # logs of earlier versions may repeat ids
            ids, values = last_of_equal(given.ids, given.values)
            kept = self._tables.setdefault(table, KeptValues())
            slots, new = kept.put(ids, self._latest, self._rows)
            self._rows += new
            # in place, since all reads hold the lock
            self._file.values[slots] = values

    def _ordered(self, sizes: Mapping[str, int], encoder: Encoder) -> tuple[I64, I64]:
        """Returns (updated rows of the fused weight, sorted; their rows in the file)."""
        if self._in_order[0] != self._latest:
            rows, slots, first = [NONE], [NONE], 0
            for table, size in sizes.items():
                if (kept := self._tables.get(table)) is not None:
                    rows.append(first + encoder.vocabularies[table].rank_of_id[kept.ids])
                    slots.append(kept.slots)
                first += size
            fused, where = np.concatenate(rows), np.concatenate(slots)
            order = np.argsort(fused)
            self._in_order = self._latest, fused[order], where[order]
        return self._in_order[1], self._in_order[2]


def _are_remote(stack: TierStack, table: str, ids: I64) -> NDArray[np.bool_]:
    encoder, layout = stack.views.newest.encoder, stack.tiers.layout
    assert encoder is not None
    stored = layout.sizes[layout.tables.index(table)]
    return encoder.vocabularies[table].rank_of_id[ids] >= stored - layout.cuts[table][REMOTE]
