"""Supplies the rankings of a load test, from real data or from synthetic rows of a bundle.

A source returns different bodies for a number of requests and their sizes: real requests in shuffled order,
then real contexts with candidates drawn from all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from polyrec.loadtest.traffic.json_bodies import JsonBodies
from polyrec.loadtest.traffic.queries import Queries, Query, read_rows
from polyrec.loadtest.traffic.synthetic import synthetic_rows
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import I64
from polyrec.models.schema.schema import Schema

MAX_ROWS = 500_000
SYNTHETIC_REQUESTS = 4000
SYNTHETIC_CANDIDATES = 25

Bodies = Callable[[int], bytes]


class Source:
    """Rankings over some rows of data.

    sizes, firsts: int64 [requests], number of candidates and first row of each of the data's own requests.
    """

    def __init__(self, data: pa.Table, schema: Schema) -> None:
        self._queries = Queries(data, schema)
        self._json_bodies = JsonBodies(data, schema, self._queries.firsts)
        self._rows = data.num_rows
        self.sizes = self._queries.sizes
        self.firsts = self._queries.firsts

    def shuffled(self, requests: int, seed: int) -> tuple[I64, Bodies]:
        """Returns the data's requests in random order, then requests of their sizes with other candidates.

        The result is the rows of each request, and the bodies by number.
        """
        random = np.random.default_rng(seed)
        order = random.permutation(self.sizes.size)[:requests]
        more = random.integers(0, self.sizes.size, max(0, requests - order.size))
        more_sizes, sampled = self.sampled(self.sizes[more], seed + 1)

        def body(i: int) -> bytes:
            if i < order.size:
                return self._json_bodies.rank(self._queries[int(order[i])])
            return sampled(i - order.size)

        return np.concatenate([self.sizes[order], more_sizes]), body

    def recorded(self, which: I64) -> tuple[I64, Bodies]:
        """Returns the data's requests with these numbers, for a replay."""
        return self.sizes[which], lambda i: self._json_bodies.rank(self._queries[int(which[i])])

    def sampled(self, sizes: I64, seed: int) -> tuple[I64, Bodies]:
        """Returns contexts of the data with `sizes` candidates each, drawn from all rows."""
        random = np.random.default_rng(seed)
        contexts = self._queries.firsts[random.integers(0, self.sizes.size, sizes.size)]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        candidates = random.integers(0, self._rows, int(ends[-1]))

        def body(i: int) -> bytes:
            return self._json_bodies.rank(Query(int(contexts[i]), candidates[ends[i] : ends[i + 1]]))

        return sizes, body


def open_source(data: str | Path | None, bundle: Bundle, seed: int, rows: int = MAX_ROWS) -> Source:
    """Opens the first `rows` rows of `data`, or synthetic rows of the bundle. Raises DataError, LoadError."""
    schema = bundle.manifest.schema_
    if data is not None:
        return Source(read_rows(data, schema, rows), schema)
    random = np.random.default_rng(seed)
    sizes = random.integers(5, SYNTHETIC_CANDIDATES + 1, SYNTHETIC_REQUESTS)
    return Source(synthetic_rows(bundle.encoder, SYNTHETIC_REQUESTS, sizes, random), schema)
