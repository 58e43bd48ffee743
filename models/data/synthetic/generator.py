"""Generates synthetic click data in trivago's format, for `polyrec demo` and tests.

A click model (polyrec.models.data.synthetic.world) draws requests of one context and up to 25 candidates.
They are written as Parquet, some thousand requests at a time, with clicks and, in the column `planted`, the
true probability of each. AUC and log-loss of that column are the upper bound for any training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from polyrec.models.data.synthetic.world import CANDIDATES, CITY_ITEMS, World
from polyrec.models.errors import DataError
from polyrec.models.files import atomic_path
from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.schema.batch import I64

REQUESTS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class GeneratedData:
    """Size of the generated data and of its click model."""

    path: Path
    rows: int
    requests: int
    clicks: int
    items: int
    users: int


def generate(
    path: str | Path,
    rows: int,
    seed: int = 0,
    *,
    items: int = 5000,
    users: int = 2000,
    drift: float = 0.0,
    tastes: float = 0.0,
    candidates: int = CANDIDATES,
    progress: RowsDone = ignore_rows,
) -> GeneratedData:
    """Writes `rows` rows as a Parquet file for the schema `trivago`, in bounded memory.

    The same arguments yield the same rows.
    items: hotels, in cities of 50.
    drift: number of times that the popularity within a city rotates through all its hotels between the first
    and the last row; 0: constant.
    tastes: how far users' tastes and hotels' qualities shift over the rows; at 1, the last are unrelated to
    the first.
    candidates: of a full request; two of three requests are full. Above 25, positions are unknown to the
    schema.
    progress: called with the number of rows of each part written.
    Raises DataError: no rows, no users, fewer items than a city has, more candidates than a city has items, a
    path that cannot be written.
    """
    if not 1 <= candidates <= CITY_ITEMS:
        raise DataError(f"cannot show {candidates} candidates: between 1 and {CITY_ITEMS} are possible")
    if rows < 1 or users < 1 or items < CITY_ITEMS:
        raise DataError(
            f"cannot generate {rows} rows of {users} users and {items} items: "
            f"at least 1, 1 and {CITY_ITEMS} are needed"
        )
    path = Path(path)
    requests = clicks = 0
    parts = _parts(rows, seed, items, users, drift, tastes, candidates)
    first = next(parts)
    try:
        with atomic_path(path) as partial, pq.ParquetWriter(partial, first.schema) as file:
            for part in chain((first,), parts):
                file.write_table(part)
                requests = part.column("request_id")[-1].as_py() + 1
                clicks += int(part.column("clicked").to_numpy().sum())
                progress(part.num_rows)
    except OSError as e:
        raise DataError(f"cannot write '{path}': {e.strerror or e}") from None
    return GeneratedData(path, rows, requests, clicks, items // CITY_ITEMS * CITY_ITEMS, users)


def _parts(
    rows: int, seed: int, items: int, users: int, drift: float, tastes: float, candidates: int
) -> Iterator[pa.Table]:
    random, later = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    world = World(random, items // CITY_ITEMS, users, candidates)
    request = row = 0
    while row < rows:
        lengths = _lengths(random, rows - row, candidates)
        if tastes:
            world.shift_tastes(later, tastes * row / rows)
        part = world.requests(random, request, lengths, drift * row / rows)
        yield part
        request += lengths.size
        row += part.num_rows


def _lengths(random: np.random.Generator, rows: int, candidates: int) -> I64:
    """Draws the number of candidates of the next requests, in total at most `rows`; two of three are full."""
    some = random.integers(min(5, candidates), candidates + 1, REQUESTS_AT_ONCE)
    lengths = np.where(random.random(REQUESTS_AT_ONCE) < 2 / 3, candidates, some)
    ends = np.cumsum(lengths)
    if ends[-1] <= rows:
        return lengths
    last = int(np.searchsorted(ends, rows))
    lengths = lengths[: last + 1]
    lengths[-1] -= ends[last] - rows
    return lengths
