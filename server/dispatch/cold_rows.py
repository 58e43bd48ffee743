"""Finds queries whose rows are not in memory, and reads these while hot queries execute (popular first).

A query that arrives is encoded, and its rows are looked for in the tiers of the path that will probably
answer. If all are at hand it is hot, and its batch reuses the encoding. Else it is cold: the router holds it
(planner/routing/holding.py) while its pages are read into memory and its remote rows are fetched, in threads
of their own; the batch then finds them there. Nothing here decides an answer: a batch still gathers every row
in its own view, and reads what is missing after all.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.ahead import MissingRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import fused_rows
from polyrec.models.tiers.updates.delta import UpdateLayer
from polyrec.models.tiers.view import View
from polyrec.planner.routing.latency.read_times import ReadSeconds
from polyrec.planner.routing.query import Misses
from polyrec.server.codecs.rows import Rows

log = logging.getLogger("polyrec.serving")

FETCHERS = 4
"""Threads that wait for the remote store: requests under way at a time."""

clock = time.perf_counter


@dataclass(slots=True, eq=False)
class SeenRows:
    """A query's rows as they were encoded and found in the tiers when it arrived.

    view: in which they were, held if remote rows are fetched. fetched: these, for batches in the same order.
    """

    stack: TierStack
    view: View
    encoder: Encoder
    batch: Batch
    missing: MissingRows
    fetched: UpdateLayer | None = None
    held: bool = False

    @property
    def misses(self) -> Misses:
        """What has to be read."""
        return Misses(self.missing.unread, self.missing.remote.size)

    def release(self) -> None:
        """Lets go of the view and of what was fetched in it; may be called again."""
        self.fetched = None
        if self.held:
            self.held = False
            self.stack.views.leave(self.view)


@dataclass(slots=True)
class ColdRowFigures:
    """Counters since the start. hot, cold: queries; pages, remote: reads that cold ones waited for;
    waited_s: from arrival until these were done; rows_read: cold queries of which they are.
    """

    hot: int = 0
    cold: int = 0
    pages: int = 0
    remote: int = 0
    waited_s: float = 0.0
    rows_read: int = 0


OnRead = Callable[[ReadSeconds], None]
"""Called on the event loop when the missing rows of a query have been read, with the seconds of each tier."""


class ColdRows:
    """Looks for the rows of queries, and reads missing ones ahead.

    paths: index in the plan -> its tiers, of which rows are on disk or in a remote store, and its bundle.
    """

    def __init__(self, paths: Mapping[int, tuple[TierStack, Bundle]]) -> None:
        self._paths: dict[int, tuple[TierStack, FusedRows]] = {}
        for i, (stack, bundle) in paths.items():
            rows = fused_rows(bundle.stage())
            if rows is not None:
                self._paths[i] = stack, rows
        self._first = next(iter(self._paths), None)
        self.figures = ColdRowFigures()
        self._readers = Workers("polyrec-cold-disk", 1)
        self._fetchers = Workers("polyrec-cold-remote", FETCHERS)

    def look(self, path: int | None, rows: Rows) -> SeenRows | None:
        """Encodes the rows of a query and looks for them; None where there is nothing to look for.

        path: the one that will probably answer; None: not known yet.
        """
        found = self._paths.get(self._first if path is None else path)  # type: ignore[arg-type]
        if found is None:
            return None
        stack, fused = found
        view = stack.views.newest
        encoder = view.encoder
        assert encoder is not None
        try:
            batch = rows.encode(encoder)
        except FeatureError:
            return None  # it fails when it is dispatched
        missing = stack.ahead.missing(fused.lookups(batch).rows())
        return SeenRows(stack, view, encoder, batch, missing)

    def count_hot(self) -> None:
        self.figures.hot += 1

    def read(self, seen: SeenRows, done: OnRead) -> None:
        """Starts reading what is missing, and calls `done` on the running loop; not if that is closed."""
        figures, missing = self.figures, seen.missing
        figures.cold += 1
        figures.pages += missing.unread
        figures.remote += missing.remote.size
        Reading(seen, figures, done, asyncio.get_running_loop()).begin(self._readers, self._fetchers)

    def close(self) -> None:
        """Ends the threads, after the reads in progress."""
        self._readers.close()
        self._fetchers.close()


@dataclass(slots=True, eq=False)
class Reading:
    """The reads of one cold query: of the disk, which are started at once, and of the remote store."""

    seen: SeenRows
    figures: ColdRowFigures
    done: OnRead
    loop: asyncio.AbstractEventLoop
    began_s: float = field(default_factory=clock)
    took_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    left: int = 0

    def begin(self, readers: Workers, fetchers: Workers) -> None:
        seen = self.seen
        tickets = seen.stack.ahead.read(seen.missing.pages) if seen.missing.unread else ()
        works: list[tuple[Workers, Callable[[], None]]] = []
        if seen.missing.unread:
            works.append((readers, lambda: self._ended(0, lambda: seen.stack.ahead.wait(tickets))))
        if seen.missing.remote.size:
            seen.view, seen.held = seen.stack.views.enter(), True
            works.append((fetchers, lambda: self._ended(1, self._fetch)))
        self.left = len(works)
        for workers, work in works:
            workers.put(work)

    def _fetch(self) -> None:
        seen = self.seen
        if seen.view.encoder is seen.encoder:
            seen.fetched = seen.stack.ahead.fetch(seen.view, seen.missing.remote)

    def _ended(self, tier: int, work: Callable[[], None]) -> None:
        """Does the work of a tier in its thread, and reports the end to the loop."""
        try:
            work()
        except Exception:
            log.exception("reading ahead failed")
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self.loop.call_soon_threadsafe(self._read, tier)

    def _read(self, tier: int) -> None:
        waited_s = self.took_s[tier] = clock() - self.began_s
        self.left -= 1
        if not self.left:
            self.figures.rows_read += 1
            self.figures.waited_s += waited_s
            self.done(ReadSeconds(*self.took_s))


class Workers:
    """Threads that do what is put into their queue, in order."""

    def __init__(self, name: str, threads: int) -> None:
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._waiting.put(work)

    def close(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()
            del work
