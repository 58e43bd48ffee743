"""Where a load test's rankings come from: rows of real data, or rows invented from a bundle.

A number of requests and the sizes wanted go in, bodies come out, none of them twice: real requests in a
shuffled order while there are any, then real contexts with candidates drawn from all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from polyrec.loadtest.traffic.json_bodies import Written
from polyrec.loadtest.traffic.queries import Queries, Query, read_rows
from polyrec.loadtest.traffic.synthetic import invented
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import Schema

MOST_ROWS = 500_000
INVENTED_REQUESTS = 4000
INVENTED_CANDIDATES = 25

Bodies = Callable[[int], bytes]


class Source:
    """Rankings over some rows of data.

    sizes, firsts: int64 [requests], candidates and first row of each of the data's own requests.
    """

    def __init__(self, data: pa.Table, schema: Schema) -> None:
        self._queries = Queries(data, schema)
        self._written = Written(data, schema, self._queries.firsts)
        self._rows = data.num_rows
        self.sizes = self._queries.sizes
        self.firsts = self._queries.firsts

    def own(self, requests: int, seed: int) -> tuple[I64, Bodies]:
        """The data's requests as they were, shuffled; once all have been, their sizes with other candidates.

        Gives rows of each, and bodies by number.
        """
        random = np.random.default_rng(seed)
        order = random.permutation(self.sizes.size)[:requests]
        more = random.integers(0, self.sizes.size, max(0, requests - order.size))
        more_sizes, drawn = self.drawn(self.sizes[more], seed + 1)

        def body(i: int) -> bytes:
            if i < order.size:
                return self._written.rank(self._queries[int(order[i])])
            return drawn(i - order.size)

        return np.concatenate([self.sizes[order], more_sizes]), body

    def recorded(self, which: I64) -> tuple[I64, Bodies]:
        """The data's requests as they were, by number: what a replay sends."""
        return self.sizes[which], lambda i: self._written.rank(self._queries[int(which[i])])

    def drawn(self, sizes: I64, seed: int) -> tuple[I64, Bodies]:
        """Contexts of the data with that many candidates each, from anywhere in it."""
        random = np.random.default_rng(seed)
        contexts = self._queries.firsts[random.integers(0, self.sizes.size, sizes.size)]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        candidates = random.integers(0, self._rows, int(ends[-1]))

        def body(i: int) -> bytes:
            return self._written.rank(Query(int(contexts[i]), candidates[ends[i] : ends[i + 1]]))

        return sizes, body


def open_source(data: str | Path | None, bundle: Bundle, seed: int, rows: int = MOST_ROWS) -> Source:
    """The first `rows` rows of `data`, or rows invented from the bundle. Raises DataError, LoadError."""
    schema = bundle.manifest.schema_
    if data is not None:
        return Source(read_rows(data, schema, rows), schema)
    random = np.random.default_rng(seed)
    sizes = random.integers(5, INVENTED_CANDIDATES + 1, INVENTED_REQUESTS)
    return Source(invented(bundle.encoder, INVENTED_REQUESTS, sizes, random), schema)
