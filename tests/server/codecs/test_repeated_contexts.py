"""Plain requests that repeat contexts become rankings of the same rows, and no others do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Limits
from polyrec.server.codecs.oip_inputs import Inputs
from polyrec.server.codecs.repeated_contexts import FROM_ROWS, RepeatedContexts
from polyrec.server.codecs.rows import RankedTensors, Tensors, encode
from polyrec.server.errors import Malformed
from tests.server.codecs.schemas import SPLIT
from tests.server.codecs.test_rows import assert_equal

SCHEMA = Schema.model_validate(
    {
        "name": "mixed",
        "dense": [{"name": "price"}, {"name": "age", "role": "context"}, {"name": "stars"}],
        "categorical": [
            {"name": "item", "type": "integer", "cardinality": 50},
            {"name": "user", "type": "integer", "cardinality": 3, "role": "context"},
            {"name": "tags", "type": "integer", "cardinality": 3, "role": "context", "pooling": "mean"},
            {"name": "labels", "type": "integer", "cardinality": 9, "pooling": "sum"},
            {"name": "city", "type": "integer", "cardinality": 2, "role": "context"},
        ],
        **SPLIT,
    }
)
ROWS_OF_TABLE = {"item": 52, "user": 5, "tags": 5, "labels": 11, "city": 4}
ENCODER = Encoder(
    SCHEMA,
    {
        table: Vocabulary(table, "integer", rows - 2, np.arange(rows)[::-1].copy(), np.zeros(rows, np.int64))
        for table, rows in ROWS_OF_TABLE.items()
    },
    {},
)
RECOGNIZE = RepeatedContexts(SCHEMA)


def drawn(seed: int, repeats: list[int], ages: int = 2) -> Tensors:
    """Rows whose contexts, drawn from few values, are repeated; contexts next to one another may be equal."""
    random = np.random.default_rng(seed)
    contexts, rows = len(repeats), sum(repeats)
    row = np.repeat(np.arange(contexts), repeats)
    tags = [random.integers(0, 2, random.integers(0, 3)) for _ in repeats]
    of_rows = [tags[i] for i in row]
    lengths = random.integers(0, 3, rows)
    dense = random.normal(size=(rows, 3)).astype(np.float32)
    dense[:, 1] = random.integers(0, ages, contexts)[row]
    sparse = random.integers(0, 50, (rows, 3))
    sparse[:, 1] = random.integers(0, 2, contexts)[row]
    sparse[:, 2] = random.integers(0, 2, contexts)[row]
    bags = {
        "tags": (np.concatenate(of_rows).astype(np.int64), np.array([tag.size for tag in of_rows])),
        "labels": (random.integers(0, 9, lengths.sum()), lengths),
    }
    return Tensors(dense, sparse, bags, rows)


def runs(rows: Tensors) -> list[int]:
    """First row of each run of equal contexts, compared row by row: the reference."""
    values, lengths = rows.bags["tags"]
    ends = np.cumsum(lengths)
    contexts = [
        (rows.dense[r, 1].tobytes(), *rows.sparse[r, 1:].tolist(), *values[ends[r] - lengths[r] : ends[r]])
        for r in range(rows.rows)
    ]
    return [r for r in range(rows.rows) if not r or contexts[r] != contexts[r - 1]]


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10_000),
    repeats=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    part=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_recognized_request_has_the_same_rows_and_each_context_once(
    seed: int, repeats: list[int], part: tuple[float, float]
) -> None:
    rows = drawn(seed, repeats)
    expected = runs(rows)
    found = RECOGNIZE(rows)
    starts_alike = rows.rows > 1 and (rows.sparse[0, 1:] == rows.sparse[1, 1:]).all()
    assert isinstance(found, RankedTensors) == (bool(starts_alike) and rows.rows >= FROM_ROWS * len(expected))
    if isinstance(found, RankedTensors):
        assert found.context.rows == len(expected)
        assert np.flatnonzero(np.diff(found.context_row)).tolist() == [r - 1 for r in expected[1:]]
    assert_equal(found.encode(ENCODER), rows.encode(ENCODER))
    # as a query is split over lanes
    first = int(part[0] * (rows.rows - 1))
    size = max(1, int(part[1] * (rows.rows - first)))
    assert_equal(found.part(first, size).encode(ENCODER), rows.part(first, size).encode(ENCODER))


def test_merged_with_other_requests_it_keeps_its_rows() -> None:
    plain = [drawn(seed, repeats) for seed, repeats in enumerate(([20], [1] * 9, [8, 30], [40]))]
    found = [RECOGNIZE(rows) for rows in plain]
    assert sum(isinstance(rows, RankedTensors) for rows in found) >= 2
    order = sorted(range(len(found)), key=lambda i: not found[i].plain)
    assert_equal(
        encode([found[i] for i in order], ENCODER), encode([plain[i] for i in order], ENCODER).exploded()
    )


def test_contexts_are_compared_by_their_bits() -> None:
    rows = drawn(0, [FROM_ROWS], ages=1)
    assert isinstance(RECOGNIZE(rows), RankedTensors)
    rows.dense[3:, 1] = -0.0
    assert RECOGNIZE(rows) is rows
    rows.dense[:, 1] = np.nan
    assert isinstance(RECOGNIZE(rows), RankedTensors)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([2**61] * 8, id="that overflow to zero"),
        pytest.param([2**62, 2**62, -(2**63)] + [0] * 5, id="that overflow with a negative one"),
        pytest.param([-5, 5] + [0] * 6, id="that are negative"),
        pytest.param([2**63 - 1] + [0] * 7, id="that are too large"),
    ],
)
def test_lengths_are_refused_before_contexts_are_compared(lengths: list[int]) -> None:
    arrays = {
        "dense": np.zeros((8, 3), np.float32),
        "sparse": np.zeros((8, 3), np.int64),
        "tags.values": np.empty(0, np.int64),
        "tags.lengths": np.array(lengths),
    }
    with pytest.raises(Malformed, match=r"input 'tags\.lengths': -?\d+ at position 0 is outside \[0, 0\]"):
        Inputs(SCHEMA, Limits()).rows(arrays)


@pytest.mark.parametrize("role", ["context", "candidate"])
def test_a_model_of_one_role_is_never_ranked(role: str) -> None:
    schema = Schema.model_validate(
        {"name": "s", "dense": [{"name": "d"}], "categorical": [{"name": "f", "role": role}], **SPLIT}
    )
    given = {"dense": np.zeros((20, 1), np.float32), "sparse": np.zeros((20, 1), np.int64)}
    assert isinstance(Inputs(schema, Limits()).rows(given), Tensors)


def test_its_answers_are_those_of_the_exploded_rows(bundle: Bundle) -> None:
    schema, random = bundle.manifest.schema_, np.random.default_rng(0)
    recognize, runtime = RepeatedContexts(schema), open_runtime("onnx", bundle)
    singles = [f for f in schema.categorical if not f.multi]
    for _ in range(5):
        n = int(random.integers(FROM_ROWS, 60))
        dense = random.normal(size=(n, len(schema.dense))).astype(np.float32)
        sparse = random.integers(0, 3, (n, len(singles)))
        for matrix, features in ((dense, schema.dense), (sparse, singles)):
            shared = [i for i, f in enumerate(features) if f.role == "context"]
            matrix[:, shared] = matrix[0, shared]
        bags = {f.name: (np.tile([1, 2], n), np.full(n, 2)) for f in schema.categorical if f.multi}
        rows = Tensors(dense, sparse, bags, n, random.normal(size=(n, len(schema.request))))
        found = recognize(rows)
        assert isinstance(found, RankedTensors)
        ranking, plain = found.encode(bundle.encoder), rows.encode(bundle.encoder)
        assert_equal(ranking, plain)
        np.testing.assert_allclose(runtime.predict(ranking), runtime.predict(plain), atol=5e-6)
