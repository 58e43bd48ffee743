"""Finds queries with rows that are not in memory, and reads those rows while hot queries execute.

On each pass, the dispatcher encodes newly arrived queries together and looks up their rows in the tiers of
the path that will probably answer. A query whose rows are all in memory is hot. Any other query is cold: the
router holds it (planner/routing/holding.py) while threads read its disk pages into memory and fetch its
remote rows.

This is only a prefetch and cannot change an answer: a batch gathers every row in its own view of the tiers
and reads whatever is still missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.ahead import NONE, RowsAhead
from polyrec.models.tiers.near.near_rows import NearRows
from polyrec.models.tiers.remote.fetched import FetchedRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import fused_rows
from polyrec.models.tiers.view import View
from polyrec.planner.routing.latency.read_times import ReadSeconds
from polyrec.planner.routing.query import NO_MISSES, Misses, Part, Query
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import encode
from polyrec.server.dispatch.fetcher import Fetcher
from polyrec.server.lanes.tiered_runtime import BatchView

log = logging.getLogger("polyrec.serving")

DISK_READ, REMOTE_READ = 0, 1
"""Indices of `ColdReads.took_s`."""


@dataclass(frozen=True, slots=True, eq=False)
class TieredPath:
    """The rows of a path: their tiers, their positions, and the hottest of them in memory."""

    stack: TierStack
    fused: FusedRows
    near: NearRows


@dataclass(slots=True, eq=False)
class LookedUpQueries:
    """Queries whose rows were encoded and looked up together.

    queries: in the order of the batch.
    others: the lookups whose rows are not among the hottest ones in memory, None if unknown (NearRows); if
        there are any, `ColdRows.find_cold` finds what is missing.
    view: the view of the tiers in which rows were looked up.
    cold: cold queries, with the number of rows each is missing by tier.
    pages, remote: distinct disk pages and remote rows that the cold queries need.
    fetched: the remote rows once fetched, valid only for batches encoded in the same row order.
    view_users: queries without an outcome, which keep the view open.
    """

    path: TieredPath
    view: View
    encoder: Encoder
    queries: list[Query]
    batch: Batch
    others: I64 | None
    cold: dict[Query, Misses] = field(default_factory=dict)
    pages: I64 = field(default_factory=lambda: NONE)
    remote: I64 = field(default_factory=lambda: NONE)
    fetched: FetchedRows | None = None
    view_users: set[Query] = field(default_factory=set)

    def matches(self, parts: Sequence[Part]) -> bool:
        """Whether `parts` are exactly these queries, unsplit and in this order."""
        queries = self.queries
        return len(parts) == len(queries) and all(
            part.query is query and part.rows == query.rows
            for part, query in zip(parts, queries, strict=True)
        )

    @property
    def stack(self) -> TierStack:
        """The tiers in which rows were looked up."""
        return self.path.stack

    @property
    def hot(self) -> bool:
        """Whether all rows are among the hottest ones in memory."""
        return self.others is not None and not self.others.size

    def needs_no_store(self, query: Query, batch_view: BatchView) -> bool:
        """Whether a query has no rows in the remote store, in a batch that was encoded as here.

        False if the batch was encoded otherwise, as the query's rows may then be elsewhere.
        """
        same = self.stack is batch_view.stack and self.encoder is batch_view.encoder
        return same and not self.cold.get(query, NO_MISSES).remote

    def keep_view(self, queries: Sequence[Query]) -> None:
        """Keeps the newest view open for each query until its `release_view`."""
        self.view = self.stack.views.enter()
        self.view_users.update(queries)

    def release_view(self, query: Query) -> None:
        """Ends one query's use of the view; the last one closes it and drops the fetched rows."""
        if query in self.view_users:
            self.view_users.discard(query)
            if not self.view_users:
                self.fetched = None
                self.stack.views.leave(self.view)


@dataclass(slots=True)
class ColdRowFigures:
    """Counters since the start.

    hot, cold: number of queries.
    pages, remote: disk pages and remote rows missed by cold queries.
    waited_s: total time that cold queries waited for their reads.
    rows_read: number of cold queries whose reads are done.
    """

    hot: int = 0
    cold: int = 0
    pages: int = 0
    remote: int = 0
    waited_s: float = 0.0
    rows_read: int = 0


OnRead = Callable[[Query, ReadSeconds], None]
"""Called on the event loop once the missing rows of a query are read, with the seconds each tier took."""


class ColdRows:
    """Looks up the rows of queries and prefetches missing ones.

    paths: the paths with rows on disk or in a remote store: index in the plan -> tiers and bundle.
    """

    def __init__(self, paths: Mapping[int, tuple[TierStack, Bundle]]) -> None:
        self._paths: dict[int, TieredPath] = {}
        for i, (stack, bundle) in paths.items():
            rows = fused_rows(bundle.stage())
            if rows is not None:
                near = NearRows(stack.tiers.layout, stack.tiers.prefix, rows)
                self._paths[i] = TieredPath(stack, rows, near)
        self._first = next(iter(self._paths), -1)
        self.figures = ColdRowFigures()
        self._readers = ThreadPoolExecutor(1, "polyrec-cold-disk")
        self._fetcher = Fetcher()

    def look_up(self, path: int | None, queries: Sequence[Query]) -> list[LookedUpQueries]:
        """Encodes queries and finds those with the hottest rows only; `find_cold` looks up the others' rows.

        path: index of the path that will probably answer, None if not known yet.
        Leaves out queries that cannot be encoded. Returns an empty list if all rows of that path are in
        memory anyway.
        """
        rows = self._paths.get(self._first if path is None else path)
        if rows is None or not queries:
            return []
        view = rows.stack.views.newest
        encoder = view.encoder
        assert encoder is not None
        ordered = list(queries)
        if len(ordered) > 1:
            ordered.sort(key=lambda query: not query.payload.rows.plain)
        try:
            batch = encode([query.payload.rows for query in ordered], encoder)
        except FeatureError:
            # retry one by one; the query that cannot be encoded fails later, in its dispatch
            return [one for q in queries for one in self.look_up(path, [q])] if len(queries) > 1 else []
        found = divided(LookedUpQueries(rows, view, encoder, ordered, batch, rows.near.others(batch)))
        self.figures.hot += sum(len(looked_up.queries) for looked_up in found if looked_up.hot)
        return found

    def find_cold(self, looked_up: LookedUpQueries) -> None:
        """Finds the cold queries and what they miss, in all tiers."""
        batch, queries, others, figures = looked_up.batch, looked_up.queries, looked_up.others, self.figures
        fused, near = looked_up.path.fused, looked_up.path.near
        rows = fused.lookups(batch).rows() if others is None else near.rows(batch).take(others)
        missing = looked_up.stack.ahead.missing(rows)
        if missing.nothing:
            figures.hot += len(queries)
            return
        if len(queries) == 1:
            looked_up.pages, looked_up.remote = missing.distinct(None)
            found = {queries[0]: Misses(missing.pages_to_wait_for, looked_up.remote.size)}
        else:
            owner = owners(batch, queries) if others is None else owners_of(batch, queries, others)
            pages, remote = missing.counts(owner, len(queries))
            is_cold = pages + remote > 0
            counts = zip(queries, pages.tolist(), remote.tolist(), strict=True)
            found = {query: Misses(pages, remote) for query, pages, remote in counts if pages or remote}
            looked_up.pages, looked_up.remote = missing.distinct(is_cold[owner])
        looked_up.cold = found
        figures.hot += len(queries) - len(found)
        figures.cold += len(found)
        figures.pages += sum(misses.disk for misses in found.values())
        figures.remote += sum(misses.remote for misses in found.values())

    def read(self, looked_up: LookedUpQueries, queries: Sequence[Query], done: OnRead) -> None:
        """Starts reading the missing rows of cold queries; calls `done` for each on the running loop."""
        ColdReads(looked_up, queries, self.figures, done, asyncio.get_running_loop()).begin(
            self._readers, self._fetcher
        )

    def give_up(self) -> None:
        """Gives up all fetches; call it on their event loop, or after it has ended."""
        self._fetcher.close()

    def close(self) -> None:
        """Ends the thread after the reads in progress."""
        self._readers.shutdown()


def divided(looked_up: LookedUpQueries) -> list[LookedUpQueries]:
    """Divides queries into hot ones and those with `others`, for which the hot ones need not wait."""
    batch, queries, others = looked_up.batch, looked_up.queries, looked_up.others
    if others is None or not others.size or len(queries) == 1:
        return [looked_up]
    is_hot = np.ones(len(queries), bool)
    is_hot[owners_of(batch, queries, others)] = False
    if not is_hot.any():
        return [looked_up]
    found: list[LookedUpQueries] = []
    for part in (is_hot, ~is_hot):
        own = [query for query, chosen in zip(queries, part.tolist(), strict=True) if chosen]
        cut = batch.take(np.flatnonzero(np.repeat(part, [query.rows for query in queries])))
        # hot queries, which come first, have none
        rest = looked_up.path.near.others(cut) if found else others[:0]
        found.append(LookedUpQueries(looked_up.path, looked_up.view, looked_up.encoder, own, cut, rest))
    return found


def owners(batch: Batch, queries: Sequence[Query]) -> I64:
    """Returns the index of the query of each lookup: int64 [lookups], in the order of `Lookups.rows`.

    queries: the queries of the batch, in order.
    """
    of_context, of_row = _owners_of_rows(batch, queries)
    both = (of_context, batch.context), (of_row, batch.candidate)
    parts = [np.repeat(of, block.ranks.shape[1]) for of, block in both]
    parts += [np.repeat(np.repeat(of, block.bags), np.diff(block.bag_offsets)) for of, block in both]
    return np.concatenate(parts)


def owners_of(batch: Batch, queries: Sequence[Query], lookups: I64) -> I64:
    """Returns `owners` of some lookups of a batch without bags. lookups: int64 [n], ascending."""
    of_context, of_row = _owners_of_rows(batch, queries)
    context, candidate = batch.context.ranks, batch.candidate.ranks
    split = int(lookups.searchsorted(context.size))
    owner = np.empty(lookups.size, np.int64)
    # at least 1: a block without features has no lookups
    owner[:split] = of_context.take(lookups[:split] // max(context.shape[1], 1))
    owner[split:] = of_row.take((lookups[split:] - context.size) // max(candidate.shape[1], 1))
    return owner


def _owners_of_rows(batch: Batch, queries: Sequence[Query]) -> tuple[I64, I64]:
    """Returns the index of the query of each context, and of each row."""
    of_row = np.repeat(np.arange(len(queries)), [query.rows for query in queries])
    if batch.context_row is None:
        return of_row, of_row
    of_context = np.zeros(batch.context.rows, np.int64)
    of_context[batch.context_row] = of_row
    return of_context, of_row


@dataclass(slots=True, eq=False)
class ColdReads:
    """The disk and remote reads of the cold queries of one `LookedUpQueries`; they run in parallel.

    took_s: seconds until each tier's rows were read, [disk, remote]. left: tiers still being read.
    """

    looked_up: LookedUpQueries
    queries: Sequence[Query]
    figures: ColdRowFigures
    done: OnRead
    loop: asyncio.AbstractEventLoop
    began_s: float = field(default_factory=clock)
    took_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    left: int = 0

    def begin(self, readers: ThreadPoolExecutor, fetcher: Fetcher) -> None:
        """Starts the reads of both tiers, as far as rows are missing from them."""
        looked_up = self.looked_up
        self.left = bool(looked_up.pages.size) + bool(looked_up.remote.size)
        if looked_up.pages.size:
            ahead = looked_up.stack.ahead
            readers.submit(self._wait, ahead, ahead.read(looked_up.pages).tickets)
        if looked_up.remote.size:
            looked_up.keep_view(self.queries)
            if looked_up.view.encoder is looked_up.encoder:
                fetcher.fetch(looked_up.stack.ahead, looked_up.view, looked_up.remote, self._fetched)
            else:
                self.loop.call_soon(self._tier_read, REMOTE_READ)

    def _wait(self, ahead: RowsAhead, tickets: tuple[int, ...]) -> None:
        """Waits for the disk reads; runs in the reader thread."""
        try:
            ahead.wait(tickets)
        except Exception:
            log.exception("reading ahead failed")
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self.loop.call_soon_threadsafe(self._tier_read, DISK_READ)

    def _fetched(self, rows: FetchedRows | None) -> None:
        """Stores the remote rows."""
        self.looked_up.fetched = rows
        self._tier_read(REMOTE_READ)

    def _tier_read(self, tier: int) -> None:
        """Records that a tier's rows were read; after the last tier, calls `done` for each query."""
        waited_s = self.took_s[tier] = clock() - self.began_s
        self.left -= 1
        if not self.left:
            took_s = ReadSeconds(*self.took_s)
            self.figures.rows_read += len(self.queries)
            self.figures.waited_s += waited_s * len(self.queries)
            for query in self.queries:
                self.done(query, took_s)
