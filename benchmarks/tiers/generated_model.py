"""Generates the model of benchmarks/tiers/large_model.py: 26 tables, five of them far beyond memory.

Rows are in popularity order and accesses are Zipf's, as in the generator of clicks. A row tells its number in
its first two values, so that whoever gathers can check what was gathered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.schema import Schema, load_schema

WIDTH = 64
ROW_BYTES = 4 * WIDTH
SMALL_ROWS = (1000, 10_000, 20_000)
LARGE = 5
CHUNK = 1 << 16
STEP = 2.0**-16
"""Numbers of rows are stored as multiples of this: exact, and small enough for a dense net."""


@dataclass(frozen=True, slots=True)
class GeneratedModel:
    """large_rows: of each of the five large tables. Tables are the schema's, the large ones first."""

    schema: Schema
    large_rows: int

    @property
    def tables(self) -> dict[str, int]:
        names = list(self.schema.tables)
        small = {t: SMALL_ROWS[i % len(SMALL_ROWS)] for i, t in enumerate(names[LARGE:])}
        return {t: self.large_rows for t in names[:LARGE]} | small

    @property
    def large(self) -> list[str]:
        return list(self.schema.tables)[:LARGE]


def model(large_rows: int) -> GeneratedModel:
    return GeneratedModel(load_schema("criteo"), large_rows)


_NOISE = np.random.default_rng(0).normal(0, 0.05, (CHUNK, WIDTH)).astype(np.float32)


def rows(first: int, count: int) -> NDArray[np.uint8]:
    """Rows of the fused weight as bytes; the RowSource of the model."""
    return rows_at(np.arange(first, first + count))


def rows_at(number: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns rows of the fused weight as bytes."""
    out = _NOISE[number % CHUNK]
    out[:, 0], out[:, 1] = number % CHUNK * STEP, number // CHUNK * STEP
    return out.view(np.uint8)


def right(gathered: NDArray[np.float32], number: NDArray[np.int64]) -> bool:
    """True if gathered rows [n, WIDTH] are those of the numbers."""
    return bool(
        np.array_equal(gathered[:, 0], (number % CHUNK * STEP).astype(np.float32))
        and np.array_equal(gathered[:, 1], (number // CHUNK * STEP).astype(np.float32))
    )


def write(path: Path, parts: Iterator[NDArray[np.uint8]], progress: object) -> None:
    """Writes rows one after the other, and keeps them out of the page cache."""
    done = 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for part in parts:
        done += os.write(file, part.data)
        progress.update(part.nbytes)  # type: ignore[attr-defined]
        if done % (256 << 20) < part.nbytes:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def zipf(random: np.random.Generator, rows: int, exponent: float, size: int) -> NDArray[np.int64]:
    """Ranks drawn with chances ~ rank^-exponent, by the inverse of the continuous law."""
    u = random.random(size)
    if exponent == 0:
        ranks = u * rows
    elif exponent == 1:
        ranks = np.exp(u * np.log(rows + 1.0)) - 1
    else:
        ranks = (u * ((rows + 1.0) ** (1 - exponent) - 1) + 1) ** (1 / (1 - exponent)) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)


def zipf_share(rows: int, exponent: float, hottest: int) -> float:
    """Share of the accesses that the hottest rows take, of the same law."""
    if exponent == 1:
        return float(np.log(hottest + 1.0) / np.log(rows + 1.0))
    top, total = ((n + 1.0) ** (1 - exponent) - 1 for n in (hottest, rows))
    return float(top / total)


class Queries:
    """Batches of `batch_rows` rows, none like another. cold: large tables are drawn evenly from the ranks
    beyond `cold`, instead of by Zipf's law from all."""

    def __init__(
        self,
        model: GeneratedModel,
        exponent: float,
        batches: int,
        batch_rows: int,
        cold: int | None = None,
        seed: int = 1,
    ) -> None:
        random = np.random.default_rng(seed)
        self._dense = random.normal(size=(batch_rows, len(model.schema.dense))).astype(np.float32)
        columns = []
        for table, rows in model.tables.items():
            size = batches * batch_rows
            if cold is not None and table in model.large:
                ranks = cold + zipf(random, rows - cold, 0, size)
            else:
                ranks = zipf(random, rows, exponent, size)
            columns.append(ranks.astype(np.int32).reshape(batches, batch_rows))
        self._ranks = np.stack(columns, axis=2)

    def __len__(self) -> int:
        return len(self._ranks)

    def batch(self, number: int) -> Batch:
        ranks = self._ranks[number].astype(np.int64)
        none = np.zeros(1, np.int64)
        empty = np.empty(0, np.int64)
        rows = ranks.shape[0]
        context = Block(np.empty((rows, 0), np.float32), np.empty((rows, 0), np.int64), empty, none)
        return Batch(context, Block(self._dense, ranks, empty, none))
