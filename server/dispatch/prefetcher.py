"""Prefetches disk pages for waiting queries, so that they are in memory when the batch executes.

The event loop only queues rows. A background thread encodes them, several queries at once, and makes the
tiers read their pages. When the thread falls behind, queries are dropped; their batch then reads the pages
itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import FeatureError
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import prefetch, stage_on_tiers
from polyrec.server.codecs.rows import Rows, encode

log = logging.getLogger("polyrec.serving")

MAX_QUERIES = 256
"""Maximum queued queries; further ones are dropped."""
MAX_ROWS = 4096
"""Maximum rows encoded at once."""


class Prefetcher:
    """Prefetches for paths with rows on disk.

    paths: index in the plan -> tiers and bundle.
    dropped: number of queries that were not prefetched.
    """

    def __init__(self, paths: Mapping[int, tuple[TierStack, Bundle]]) -> None:
        self._stages = {i: (stack, stage_on_tiers(bundle, stack)) for i, (stack, bundle) in paths.items()}
        self._first = next(iter(paths))
        self._waiting: SimpleQueue[tuple[int, Rows] | None] = SimpleQueue()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="polyrec-prefetch", daemon=True)
        self._thread.start()

    def request(self, path: int | None, rows: Rows) -> None:
        """Queues rows for prefetching; never blocks. path: index of the path that will probably answer."""
        if path is not None and path not in self._stages:
            return
        if self._waiting.qsize() >= MAX_QUERIES:
            self.dropped += 1
            return
        self._waiting.put((self._first if path is None else path, rows))

    def close(self) -> None:
        """Stops the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            taken, end = self._take_more(first)
            for wanted in {path for path, _ in taken}:
                self._prefetch(wanted, [rows for path, rows in taken if path == wanted])
            if end:
                return

    def _take_more(self, first: tuple[int, Rows]) -> tuple[list[tuple[int, Rows]], bool]:
        """Takes more queued rows, up to MAX_ROWS; also returns whether the thread must end."""
        taken, size = [first], first[1].rows
        while size < MAX_ROWS:
            try:
                more = self._waiting.get_nowait()
            except Empty:
                break
            if more is None:
                return taken, True
            taken.append(more)
            size += more[1].rows
        return taken, False

    def _prefetch(self, path: int, rows: Sequence[Rows]) -> None:
        stack, stage = self._stages[path]
        view = stack.views.enter()
        try:
            assert view.encoder is not None
            prefetch(stage, encode(rows, view.encoder))
        except FeatureError:
            # retry one by one; the query that cannot be encoded fails later, in its dispatch
            if len(rows) > 1:
                for one in rows:
                    self._prefetch(path, [one])
        except Exception:
            log.exception("prefetching failed")
        finally:
            stack.views.leave(view)
