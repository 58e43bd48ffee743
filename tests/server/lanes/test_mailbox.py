"""The two ends of the shared memory, in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.batch import Batch, Block
from polyrec.models.tiers.shared.resolved import ResolvedRows
from polyrec.server.lanes.lane import Executed, ExecutionFailed
from polyrec.server.lanes.layout import HEAD, Layout
from polyrec.server.lanes.mailbox import FIRST_BYTES, JOINED_ROWS, MAX_LAYOUTS, Mailbox, WorkerState
from tests.models.random_batches import random_batch, random_schema, random_table_rows

Ends = tuple[Mailbox, Mailbox]


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    """The server's end and the worker's."""
    server = Mailbox.create("test")
    worker = Mailbox(os.dup(server.fd))
    yield server, worker
    server.close()
    worker.close()


def arrays(batch: Batch) -> list[np.ndarray]:
    blocks = [getattr(b, name) for b in (batch.context, batch.candidate) for name in Block.__slots__]
    return blocks if batch.context_row is None else [*blocks, batch.context_row]


def exchanged(ends: Ends, path: int, put: Batch, seed: int, found: ResolvedRows | None = None) -> Batch:
    """Returns what the worker took, after checking everything that must hold of a batch and its answer."""
    server, worker = ends
    server.put(path, put, found)
    number, taken, resolved = worker.take()
    assert number == path
    assert (resolved is None) is (found is None)
    if resolved is not None and found is not None:
        for name in ("addresses", "at", "values"):
            np.testing.assert_array_equal(getattr(found, name), getattr(resolved, name), strict=True)
    assert taken.plain_rows == put.plain_rows
    for mine, its in zip(arrays(put), arrays(taken), strict=True):
        np.testing.assert_array_equal(mine, its, strict=True)
        assert not its.flags.owndata
    said = np.random.default_rng(seed).random(put.rows).astype(np.float32)
    worker.answer(said, 0.25, 0.5, 0.125)
    got = server.outcome()
    assert isinstance(got, Executed)
    assert (got.embed_s, got.dense_s, got.waited_s) == (0.25, 0.5, 0.125)
    np.testing.assert_array_equal(got.probabilities, said, strict=True)
    return taken


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(0, 20) | st.integers(JOINED_ROWS - 1, JOINED_ROWS + 2),
    contexts=st.none() | st.integers(1, 25),
    plain=st.integers(0, 3),
    path=st.integers(0, 9),
    row_bytes=st.none() | st.integers(1, 9),
)
def test_a_batch_is_read_as_it_was_written(
    ends: Ends, seed: int, rows: int, contexts: int | None, plain: int, path: int, row_bytes: int | None
) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    table_rows = random_table_rows(random, schema)
    batch = random_batch(random, schema, table_rows, rows, contexts)
    leading = [random_batch(random, schema, table_rows, plain)] if plain else []
    found = None
    if row_bytes is not None:
        addresses, at = random.integers(0, 99, 7), random.integers(0, 7, int(random.integers(0, 7)))
        found = ResolvedRows(addresses, at, random.integers(0, 256, (at.size, row_bytes)).astype(np.uint8))
    exchanged(ends, path, Batch.concat([*leading, batch]), seed, found)


@given(seed=st.integers(0, 10_000), rows=st.lists(st.integers(0, 3), min_size=2, max_size=8))
def test_batches_of_known_sizes_are_distinguished(ends: Ends, seed: int, rows: list[int]) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    table_rows = random_table_rows(random, schema)
    for n in rows:  # of few sizes, so that many come again, with other numbers in them
        exchanged(ends, 0, random_batch(random, schema, table_rows, n, 1), seed)


def test_views_of_sizes_met_before_are_made_once_and_not_kept_for_ever(ends: Ends) -> None:
    server, worker = ends

    def views(rows: int) -> int:
        server.put(0, wide(rows))
        return id(worker.take()[1])

    assert views(1) == views(1)
    before = worker.take()[1]
    for rows in range(2, MAX_LAYOUTS + 3):
        views(rows)
    exchanged(ends, 0, wide(1), 0)
    assert worker.take()[1] is not before


@pytest.mark.parametrize("rows", [7, JOINED_ROWS + 7])
def test_arrays_that_are_not_contiguous_or_narrower_arrive_as_well(ends: Ends, rows: int) -> None:
    whole = np.arange(2 * rows * 6, dtype=np.int64).reshape(2 * rows, 6)
    dense = np.arange(rows * 3, dtype=np.float32).reshape(3, rows).T
    none, first = np.empty(0, np.int64), np.zeros(1, np.int64)
    strange = Batch(
        Block(dense, whole[::2, 1:4], none, first),
        Block(dense[:, ::2], whole[:rows, 5:], none, first),
        whole[:rows, 0],
    )
    exchanged(ends, 3, strange, 1)
    server, worker = ends
    narrow = Block(dense, whole[::2].astype(np.int32), none, first)  # type: ignore[arg-type]
    server.put(4, Batch(narrow, strange.candidate))
    np.testing.assert_array_equal(worker.take()[1].context.ranks, whole[::2], strict=True)


@pytest.mark.parametrize("name", ["ranks", "bag_values", "bag_offsets"])
def test_ranks_that_are_no_whole_numbers_are_rejected(ends: Ends, name: str) -> None:
    given = {name: getattr(wide(3).candidate, name) for name in Block.__slots__}
    given[name] = given[name].astype(np.float64)
    with pytest.raises(TypeError, match="Cannot cast"):
        ends[0].put(0, Batch(wide(3).context, Block(**given)))
    exchanged(ends, 0, wide(3), 0)


def test_a_head_that_does_not_add_up_is_rejected(ends: Ends) -> None:
    server, _ = ends
    server.put(0, wide(3))
    torn = bytearray(os.pread(server.fd, HEAD.size, 0))
    torn[8:16] = (1).to_bytes(8, "little")
    with pytest.raises(ValueError, match="its answer begins at 1"):
        Layout.from_header(bytes(torn), np.empty(9, np.int64), np.empty(18, np.float32))


def wide(rows: int) -> Batch:
    """Dense values only; 64 of them a row."""
    return Batch(
        Block(*_no_features(rows, 0)),
        Block(np.arange(rows * 64, dtype=np.float32).reshape(rows, 64), *_no_features(rows, 0)[1:]),
    )


def _no_features(rows: int, dense: int) -> tuple[np.ndarray, ...]:
    nothing = np.empty((rows, dense), np.float32), np.empty((rows, 0), np.int64)
    return *nothing, np.empty(0, np.int64), np.zeros(1, np.int64)


def test_it_grows_for_a_batch_that_does_not_fit_and_stays_so(ends: Ends) -> None:
    server, worker = ends
    rows = FIRST_BYTES // (64 * 4) + 1
    for size, path in ((rows, 1), (3 * rows, 2), (2, 3)):
        server.put(path, wide(size))
        number, taken, _ = worker.take()
        assert number == path
        np.testing.assert_array_equal(taken.candidate.dense, wide(size).candidate.dense)
        assert worker.capacity == server.capacity >= size * 64 * 4
    assert server.capacity >= 3 * rows * 64 * 4


def test_an_answer_does_not_change_with_the_next_batch(ends: Ends) -> None:
    server, worker = ends
    kept = []
    for value in (0.25, 0.75):
        server.put(0, wide(5))
        worker.take()
        worker.answer(np.full(5, value, np.float32), 0.0, 0.0)
        kept.append(server.outcome())
    assert [k.probabilities.tolist() for k in kept if isinstance(k, Executed)] == [[0.25] * 5, [0.75] * 5]


@given(st.text(max_size=40))
def test_a_message_arrives_as_it_was_said(ends: Ends, text: str) -> None:
    server, worker = ends
    worker.put_message(WorkerState.FAILED, text)
    # a lone surrogate, which UTF-8 has not, comes as its escape
    assert server.message() == (WorkerState.FAILED, text.encode("utf-8", "backslashreplace").decode())
    failed = server.outcome()
    assert isinstance(failed, ExecutionFailed)
    assert str(failed) == server.message()[1]


def test_a_message_too_long_is_cut() -> None:
    server = Mailbox.create("small")
    server.put_message(WorkerState.FAILED, "ä" * FIRST_BYTES)
    assert len(server.message()[1].encode()) <= FIRST_BYTES
    server.close()
