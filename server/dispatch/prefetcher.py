"""Reading ahead: rows of queries that wait go in, pages of the disk are on their way before their batch is.

A thread of its own encodes what waits, some queries at once, and asks the tiers to start reading; the event
loop only hands over. What it cannot keep up with it leaves: a page that is not read ahead is read later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import FeatureError
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import prefetch, stage_over
from polyrec.server.codecs.rows import Rows, encode

log = logging.getLogger("polyrec.serving")

MOST_QUERIES = 256
"""That wait to be read ahead for; further ones are left."""
MOST_ROWS = 4096
"""Encoded at once."""


class Ahead:
    """Reads ahead for paths, by their place in the plan: their tiers, and the bundle that is in them."""

    def __init__(self, paths: Mapping[int, tuple[TierStack, Bundle]]) -> None:
        self._stages = {i: (stack, stage_over(bundle, stack)) for i, (stack, bundle) in paths.items()}
        self._first = next(iter(paths))
        self._waiting: SimpleQueue[tuple[int, Rows] | None] = SimpleQueue()
        self.left = 0
        self._thread = threading.Thread(target=self._run, name="polyrec-ahead", daemon=True)
        self._thread.start()

    def wanted(self, path: int | None, rows: Rows) -> None:
        """These rows wait; path: by which they will probably be answered. Never blocks."""
        if path is not None and path not in self._stages:
            return
        if self._waiting.qsize() >= MOST_QUERIES:
            self.left += 1
            return
        self._waiting.put((self._first if path is None else path, rows))

    def close(self) -> None:
        """Ends reading ahead; nothing is begun afterwards."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            taken, end = self._more(first)
            for path in {path for path, _ in taken}:
                self._read(path, [rows for own, rows in taken if own == path])
            if end:
                return

    def _more(self, first: tuple[int, Rows]) -> tuple[list[tuple[int, Rows]], bool]:
        """What else waits, up to MOST_ROWS; and whether this was the end."""
        taken, size = [first], first[1].rows
        while size < MOST_ROWS:
            try:
                more = self._waiting.get_nowait()
            except Empty:
                break
            if more is None:
                return taken, True
            taken.append(more)
            size += more[1].rows
        return taken, False

    def _read(self, path: int, rows: Sequence[Rows]) -> None:
        stack, stage = self._stages[path]
        view = stack.views.enter()
        try:
            assert view.encoder is not None
            prefetch(stage, encode(rows, view.encoder))
        except FeatureError:
            # a query that cannot be encoded is told so when its turn comes, and keeps nobody else
            if len(rows) > 1:
                for one in rows:
                    self._read(path, [one])
        except Exception:
            log.exception("reading ahead failed")
        finally:
            stack.views.leave(view)
