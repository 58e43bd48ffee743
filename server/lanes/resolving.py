"""Resolves the rows of batches for lanes in other processes, from ranks to addresses and values.

Only the server process owns the tiers: it moves rows, reads files and applies updates. A process lane just
maps the tiers' slab (polyrec.models.tiers.shared.slab_reader). So a lane that dies loses nothing, and every
lane sees an update at once. Resolving that may wait for a file or a remote store runs in a thread, so that
the event loop is not blocked; batches of hot or fetched rows never do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import Schema
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.shared.resolved import Resolved
from polyrec.models.tiers.stack import TierStack
from polyrec.server.lanes.tiered_runtime import BatchView, TieredBatch


class PathRows:
    """The rows of one path in tiers. schema: the schema of the path's bundle."""

    def __init__(self, stack: TierStack, schema: Schema) -> None:
        self.stack = stack
        layout = stack.tiers.layout
        self._rows = FusedRows(schema, dict(zip(layout.tables, layout.sizes, strict=True)))
        self._near = NearRows(layout, stack.tiers.prefix, self._rows)

    def resolve(self, batch: Batch) -> Resolved:
        """Finds the rows of a batch in its view, and counts lost rows there.

        Raises OSError, see `TierStack`.
        """
        batch_view = _view_of(batch)
        resolved = self.stack.resolve(batch_view.view, self._rows.lookups(batch).in_order())
        batch_view.lost += resolved.lost
        return resolved

    def resolve_at_once(self, batch: Batch) -> Resolved | None:
        """Like `resolve`; returns None, with nothing done, unless it is known not to wait."""
        batch_view = _view_of(batch)
        resolved = self.stack.near.resolve(batch_view.view, self._near, batch)
        if resolved is None:
            return None if self.stack.waits else self.resolve(batch)
        batch_view.lost += resolved.lost
        return resolved


def _view_of(batch: Batch) -> BatchView:
    """Returns the view that a batch was encoded in. Raises TypeError if it has none."""
    if not isinstance(batch, TieredBatch) or batch.batch_view is None:
        raise TypeError("a batch over tiers needs the view that it was encoded in")
    return batch.batch_view


Resolution = Resolved | Exception


class Resolver:
    """Resolves one batch at a time, and pins the rows it found until `release`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: ThreadPoolExecutor | None = None
        self._resolving: Future[Resolved] | None = None

    def begin(self, rows: PathRows, batch: Batch, on_resolved: Callable[[Resolution], None]) -> None:
        """Resolves a batch and calls `on_resolved` on the event loop.

        Calls it before returning if there is nothing to wait for, and never if `release` comes first.
        """
        done: Future[Resolved] = Future()
        try:
            found = rows.resolve_at_once(batch)
            if found is not None:
                done.set_result(found)
        except Exception as e:
            done.set_exception(e)
        if done.done():
            self._resolving = done
            on_resolved(_outcome(done))
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, f"resolving {self._name}")
        loop = asyncio.get_running_loop()
        resolving = self._resolving = self._threads.submit(rows.resolve, batch)

        def tell() -> None:
            if resolving is self._resolving:
                on_resolved(_outcome(resolving))

        def done_in_thread(_: Future[Resolved]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell)

        resolving.add_done_callback(done_in_thread)

    def release(self) -> None:
        """Unpins the rows of the last batch, so that the tiers may move them; cancels one in progress."""
        resolving, self._resolving = self._resolving, None
        if resolving is not None:
            resolving.add_done_callback(_release)

    def close(self) -> None:
        """Releases the last batch and waits for a resolution in progress."""
        self.release()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


def _outcome(resolving: Future[Resolved]) -> Resolution:
    error = resolving.exception()
    if error is None:
        return resolving.result()
    if isinstance(error, Exception):
        return error
    raise error


def _release(resolving: Future[Resolved]) -> None:
    if resolving.exception() is None:
        resolving.result().release()
