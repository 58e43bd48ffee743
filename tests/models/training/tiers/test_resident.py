"""Rows that are partly in a file are those of a plain table in memory, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.schema import load_schema
from polyrec.models.tiers.tier_settings import ReaderKind
from polyrec.models.training.optimizer import ColumnBlock, RowWiseAdagrad
from polyrec.models.training.stream import ahead
from polyrec.models.training.tiers.resident import PreparedRows, ResidentRows
from polyrec.models.training.tiers.row_file import RowFile
from polyrec.models.training.tiers.undo_log import UndoLog

SCHEMA = load_schema("trivago")
WIDTH = 6
BLOCKS = [ColumnBlock(0, 2), ColumnBlock(2, WIDTH, 0.5)]


class Plain:
    """The reference: one table in memory."""

    def __init__(self, values: F32) -> None:
        self.weight = torch.nn.Parameter(torch.from_numpy(values.copy()))
        self.optimizer = RowWiseAdagrad([self.weight], 0.1, decay=0.01, blocks=BLOCKS)

    def step(self, rows: I64, pull: F32) -> None:
        _step(self.weight, self.optimizer, rows, pull)

    def records(self) -> F32:
        squares = [a.numpy()[:, None] for a in self.optimizer.accumulators()]
        return np.concatenate([self.weight.detach().numpy(), *squares], axis=1)


def _step(weight: torch.nn.Parameter, optimizer: RowWiseAdagrad, index: I64, pull: F32) -> None:
    vectors = F.embedding(torch.from_numpy(index), weight, sparse=True)
    (vectors * torch.from_numpy(pull)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


class Tiered:
    """The same with a prefix and a cache in memory."""

    def __init__(
        self, folder: Path, values: F32, sizes: list[int], cut: float, slots: int, kind: ReaderKind | None
    ) -> None:
        names = list(SCHEMA.tables)
        tables = FusedRows(SCHEMA, dict(zip(names, sizes, strict=True)))
        cuts = {name: int(size * cut) for name, size in zip(names, sizes, strict=True)}
        file = RowFile(folder / "rows", len(values), WIDTH, len(BLOCKS), 1, kind)
        self.rows = ResidentRows(tables, cuts, slots, UndoLog(file), lambda: np.array_split(values, 3))
        self.optimizer = RowWiseAdagrad([self.rows.store.weight], 0.1, decay=0.01, blocks=BLOCKS)
        self.rows.begin(self.optimizer.accumulators())

    def steps(self, batches: list[tuple[I64, F32]]) -> None:
        """Takes steps, for which a thread prepares rows."""
        self.rows.begin(self.optimizer.accumulators())

        def prepared() -> Iterator[tuple[PreparedRows, F32]]:
            for rows, pull in batches:
                yield self.rows.prepare(rows), pull

        for found, pull in ahead(prepared(), 3):
            _step(self.rows.store.weight, self.optimizer, found.slots, pull)
            self.rows.done(found)

    def records(self) -> F32:
        self.rows.flush()
        return self.rows.log.read(np.arange(self.rows.total))


def _batches(random: np.random.Generator, rows: int, count: int, most: int) -> list[tuple[I64, F32]]:
    found = []
    for _ in range(count):
        size = int(random.integers(1, most + 1))
        drawn = (random.random(size) ** 2 * rows).astype(np.int64)
        found.append((drawn, random.normal(size=(size, WIDTH)).astype(np.float32)))
    return found


@given(
    seed=st.integers(0, 2**32 - 1),
    cut=st.sampled_from([0.0, 0.1, 0.5]),
    slots=st.integers(60, 200),
    kind=st.sampled_from(["threads", None]),
)
@settings(max_examples=40)
def test_rows_and_accumulators_are_those_of_a_table_in_memory(
    seed: int, cut: float, slots: int, kind: ReaderKind | None
) -> None:
    random = np.random.default_rng(seed)
    sizes = [int(n) for n in random.integers(1, 700, len(SCHEMA.tables))]
    values = random.normal(size=(sum(sizes), WIDTH)).astype(np.float32)
    with TemporaryDirectory() as folder:
        plain, tiered = Plain(values), Tiered(Path(folder), values, sizes, cut, slots, kind)
        for _ in range(3):
            batches = _batches(random, len(values), 12, 20)
            tiered.steps(batches)
            for rows, pull in batches:
                plain.step(rows, pull)
            some = np.unique(random.integers(0, len(values), 300))
            np.testing.assert_array_equal(tiered.rows.read(some), plain.records()[some, :WIDTH])
        np.testing.assert_array_equal(tiered.records(), plain.records())
        tiered.rows.log.remove()
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize("seed", range(5))
def test_goes_back_to_any_snapshot_in_the_same_or_another_process(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    sizes = [int(n) for n in random.integers(1, 700, len(SCHEMA.tables))]
    values = random.normal(size=(sum(sizes), WIDTH)).astype(np.float32)
    tiered, then = Tiered(tmp_path, values, sizes, 0.2, 100, None), {}
    for _ in range(5):
        tiered.steps(_batches(random, len(values), 10, 20))
        then[tiered.rows.snapshot()] = tiered.records()
    tiered.steps(_batches(random, len(values), 10, 20))
    # a process that died, which had written what it had
    other = Tiered(tmp_path, values, sizes, 0.4, 60, None)
    other.rows.restore(4)
    np.testing.assert_array_equal(other.records(), then[4])
    other.steps(_batches(random, len(values), 10, 20))
    other.rows.roll_back(2)
    np.testing.assert_array_equal(other.records(), then[2])
    plain = Plain(then[2][:, :WIDTH])
    for own, squares in zip(plain.optimizer.accumulators(), then[2].T[WIDTH:], strict=True):
        own.copy_(torch.from_numpy(squares))
    batches = _batches(random, len(values), 10, 20)
    other.steps(batches)
    for rows, pull in batches:
        plain.step(rows, pull)
    np.testing.assert_array_equal(other.records(), plain.records())
    other.rows.roll_back(1)
    np.testing.assert_array_equal(other.records(), then[1])


def test_a_step_that_does_not_fit_the_cache_is_refused(tmp_path: Path) -> None:
    sizes = [500] * len(SCHEMA.tables)
    tiered = Tiered(tmp_path, np.zeros((sum(sizes), WIDTH), np.float32), sizes, 0.0, 50, None)
    tiered.steps([(np.arange(k, k + 50), np.ones((50, WIDTH), np.float32)) for k in (0, 40, 400)])
    with pytest.raises(DataError, match="do not fit the cache of 50 rows; take more --memory"):
        tiered.steps([(np.arange(51), np.ones((51, WIDTH), np.float32))])
