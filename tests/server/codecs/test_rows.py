from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import Limits
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.codecs.rows import Columns, Rows, Tensors, encode


@pytest.fixture(scope="module")
def kinds(bundle: Bundle) -> dict[str, Callable[[int], Rows]]:
    """Rows of every kind, n at a time, some with features left out."""
    decoder = JsonDecoder(bundle.manifest.schema_, Limits())

    def ranking(n: int) -> Rows:
        items = ",".join(f'"{i}"' for i in range(n))
        body = (
            f'{{"context": {{"user_id": "1", "filters": ["a", "b"]}}, "candidates": {{"item": [{items}]}}}}'
        )
        return decoder.rank(body.encode()).rows

    def plain(n: int) -> Rows:
        rows = ",".join(f'{{"item": "{i}", "price": {i}.5, "recent_items": ["{i}"]}}' for i in range(n))
        return decoder.predict(f'{{"instances": [{rows}]}}'.encode())

    def bare(n: int) -> Rows:
        """The same without most features, which others of a batch have."""
        return decoder.predict(
            f'{{"columns": {{"item": {json.dumps([str(i) for i in range(n)])}}}}}'.encode()
        )

    def tensors(n: int) -> Rows:
        codec = OipCodec(bundle.manifest.schema_, Limits())
        width = 4 * codec.inputs.plain[0].shape[1] + 8 * codec.inputs.plain[1].shape[1]
        return codec.decode(b"\0" * width * n, 0).rows

    def tensors_of_bags(n: int) -> Rows:
        codec = OipCodec(bundle.manifest.schema_, Limits())
        dense, sparse = (np.zeros((n, d.shape[1])) for d in codec.inputs.plain[:2])
        arrays: dict[str, Any] = {"dense": dense.astype(np.float32), "sparse": sparse.astype(np.int64)}
        for name in (f.name for f in bundle.manifest.schema_.categorical if f.multi):
            lengths = 1 + np.arange(n) % 3
            arrays |= {f"{name}.lengths": lengths, f"{name}.values": 1 + np.arange(lengths.sum()) % 4}
        return codec.inputs.rows(arrays)

    def ranked_tensors(n: int) -> Rows:
        codec = OipCodec(bundle.manifest.schema_, Limits())
        rows = {"context": 1 + (n > 2), "candidate": n}
        arrays: dict[str, Any] = {
            d.name: np.ones(
                (rows[d.name.split(".")[0]], d.shape[1]), np.float32 if "dense" in d.name else int
            )
            for d in codec.inputs.ranking[:-1]
        }
        if n > 2:
            arrays["context_lengths"] = np.array([n - 1, 1])
            arrays |= {"filters.values": np.array([1, 2]), "filters.lengths": np.array([0, 2])}
        return codec.inputs.rows(arrays)

    return {
        "rank": ranking,
        "predict": plain,
        "bare": bare,
        "infer": tensors,
        "infer bags": tensors_of_bags,
        "infer ranking": ranked_tensors,
    }


def assert_equal(got: Batch, expected: Batch) -> None:
    got, expected = got.exploded(), expected.exploded()
    for role in ("context", "candidate"):
        a, b = getattr(got, role), getattr(expected, role)
        for part in ("dense", "ranks", "bag_values", "bag_offsets"):
            np.testing.assert_array_equal(getattr(a, part), getattr(b, part))


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(["rank", "predict", "bare", "infer", "infer bags", "infer ranking"]),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_rows_merged_and_encoded_once_equal_rows_encoded_one_by_one(
    kinds: dict[str, Callable[[int], Rows]], bundle: Bundle, parts: Sequence[tuple[str, int]]
) -> None:
    rows = [kinds[kind](n) for kind, n in parts]
    alone = Batch.concat([r.encode(bundle.encoder) for r in rows])
    assert_equal(encode(rows, bundle.encoder), alone)


def test_one_part_is_itself(kinds: dict[str, Callable[[int], Rows]]) -> None:
    columns, tensors = kinds["rank"](2), kinds["infer"](2)
    assert isinstance(columns, Columns)
    assert isinstance(tensors, Tensors)
    assert Columns.merged([columns]) is columns
    assert Tensors.merged([tensors]) is tensors


def test_contexts_stay_shared_when_rankings_are_merged(
    kinds: dict[str, Callable[[int], Rows]], bundle: Bundle
) -> None:
    batch = encode([kinds["rank"](3), kinds["rank"](2), kinds["predict"](1)], bundle.encoder)
    assert batch.context.rows == 3
    assert batch.context_row is not None
    assert batch.context_row.tolist() == [0, 0, 0, 1, 1, 2]
    batch = encode([kinds["infer ranking"](3), kinds["infer ranking"](2), kinds["rank"](1)], bundle.encoder)
    assert batch.context.rows == 4
    assert batch.context_row is not None
    assert batch.context_row.tolist() == [0, 0, 1, 2, 2, 3]


def test_plain_rows_that_come_first_stay_plain(
    kinds: dict[str, Callable[[int], Rows]], bundle: Bundle
) -> None:
    rows = [kinds["predict"](2), kinds["infer"](1), kinds["rank"](3), kinds["infer ranking"](2)]
    assert [r.plain for r in rows] == [True, True, False, False]
    batch = encode(rows, bundle.encoder)
    assert batch.plain_rows == 3
    assert encode(rows[:2], bundle.encoder).context_row is None
    assert encode(rows[2:], bundle.encoder).plain_rows == 0


@given(
    kind=st.sampled_from(["rank", "predict", "infer", "infer bags", "infer ranking"]),
    rows=st.integers(1, 6),
    cuts=st.lists(st.integers(1, 5), max_size=3),
)
def test_parts_of_a_query_encode_to_the_whole(
    kinds: dict[str, Callable[[int], Rows]], bundle: Bundle, kind: str, rows: int, cuts: Sequence[int]
) -> None:
    whole = kinds[kind](rows)
    ends = sorted({min(c, rows) for c in cuts} | {rows})
    parts = [whole.part(a, b - a) for a, b in pairwise([0, *ends]) if a < b]
    assert [p.rows for p in parts] == [b - a for a, b in pairwise([0, *ends]) if a < b]
    together = Batch.concat([p.encode(bundle.encoder) for p in parts])
    assert_equal(together, whole.encode(bundle.encoder))
