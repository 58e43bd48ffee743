from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Limits
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.codecs.oip_inputs import Inputs
from polyrec.server.codecs.rows import RankedTensors
from polyrec.server.errors import Malformed, RequestError, TooLarge
from tests.server.codecs.schemas import SPLIT, small_schema

SCHEMA = small_schema({"name": "labels", "pooling": "sum"})
INPUTS = Inputs(SCHEMA, Limits(max_request_rows=100, max_queued_rows=100))

Arrays = dict[str, np.ndarray[Any, Any]]

TWO_CONTEXTS: Arrays = {
    "context.dense": np.array([[30], [40]], np.float32),
    "context.sparse": np.array([[1], [2]]),
    "candidate.dense": np.array([[1.5], [2], [3]], np.float32),
    "candidate.sparse": np.array([[4], [5], [6]]),
    "context_lengths": np.array([1, 2]),
    "tags.values": np.array([7, 8]),
    "tags.lengths": np.array([2, 0]),
    "labels.values": np.array([9]),
    "labels.lengths": np.array([0, 1, 0]),
}


def without(*names: str) -> Arrays:
    return {name: array for name, array in TWO_CONTEXTS.items() if name not in names}


def ranked(arrays: Arrays) -> RankedTensors:
    rows = INPUTS.rows(arrays)
    assert isinstance(rows, RankedTensors)
    return rows


def test_a_ranking_has_each_context_once() -> None:
    rows = ranked(TWO_CONTEXTS)
    assert (rows.rows, rows.context.rows) == (3, 2)
    assert rows.context_row.tolist() == [0, 1, 1]
    assert rows.context.dense.tolist() == [[30], [40]]
    assert rows.candidate.sparse.tolist() == [[4], [5], [6]]
    assert [a.tolist() for a in rows.context.bags["tags"]] == [[7, 8], [2, 0]]
    assert [a.tolist() for a in rows.candidate.bags["labels"]] == [[9], [0, 1, 0]]


def test_a_multi_valued_feature_may_be_named_group() -> None:
    inputs = Inputs(small_schema({"name": "group", "pooling": "sum"}), Limits())
    arrays = {name.replace("labels", "group"): array for name, array in TWO_CONTEXTS.items()}
    rows = inputs.rows(arrays)
    assert isinstance(rows, RankedTensors)
    assert [a.tolist() for a in rows.candidate.bags["group"]] == [[9], [0, 1, 0]]


def test_one_context_is_that_of_all_candidates() -> None:
    arrays = without("context_lengths", "tags.values", "tags.lengths")
    arrays |= {name: arrays[name][:1] for name in ("context.dense", "context.sparse")}
    assert ranked(arrays).context_row.tolist() == [0, 0, 0]
    said = arrays | {"context_lengths": np.array([3], np.int32)}
    assert ranked(said).context_row.tolist() == [0, 0, 0]


def test_declared_inputs_of_a_ranking_follow_the_roles() -> None:
    assert [(d.name, d.datatype, d.shape) for d in INPUTS.ranking] == [
        ("context.dense", "FP32", (-1, 1)),
        ("context.sparse", "INT64", (-1, 1)),
        ("candidate.dense", "FP32", (-1, 1)),
        ("candidate.sparse", "INT64", (-1, 1)),
        ("context_lengths", "INT64", (-1,)),
    ]


@pytest.mark.parametrize(
    ("role", "given"),
    [
        ("candidate", {"candidate.sparse": np.array([[1], [2]])}),
        ("context", {"context.sparse": np.array([[1]]), "context_lengths": np.array([2])}),
        ("context", {"context.sparse": np.array([[1], [2]]), "context_lengths": np.array([1, 1])}),
    ],
)
def test_a_role_without_features_has_rows_all_the_same(role: str, given: Arrays) -> None:
    schema = Schema.model_validate({"name": "s", "categorical": [{"name": "f", "role": role}], **SPLIT})
    rows = Inputs(schema, Limits()).rows(given)
    assert isinstance(rows, RankedTensors)
    assert rows.rows == 2
    assert rows.context_row.max() < rows.context.rows == len(given.get("context.sparse", [0]))


def test_arrays_of_zero_width_must_have_the_rows_of_the_others() -> None:
    schema = Schema.model_validate({"name": "s", "categorical": [{"name": "item"}], **SPLIT})
    arrays = {"dense": np.empty((3, 0), np.float32), "sparse": np.array([[1], [2]])}
    with pytest.raises(Malformed, match="input 'sparse' has 2 rows, 'dense' has 3"):
        Inputs(schema, Limits()).rows(arrays)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (without("context.sparse"), "input 'context.sparse' is missing"),
        (without("candidate.dense"), "input 'candidate.dense' is missing"),
        (without("context_lengths"), "input 'context_lengths' is missing; there are 2 contexts"),
        ({"context_lengths": np.array([1])}, "input 'context.dense' is missing"),
        (
            TWO_CONTEXTS | {"sparse": np.array([[1, 2]])},
            "input 'sparse' does not go with 'context.dense'; a ranking has 'context.sparse' and 'candidate.",
        ),
        (
            TWO_CONTEXTS | {"context.sparse": np.array([[1]])},
            "input 'context.sparse' has 1 rows, 'context.dense' has 2",
        ),
        (
            TWO_CONTEXTS | {"tags.lengths": np.array([2])},
            "input 'tags.lengths' has 1 rows, 'context.sparse' has 2",
        ),
        (
            TWO_CONTEXTS | {"labels.lengths": np.array([0, 1])},
            "input 'labels.lengths' has 2 rows, 'candidate.sparse' has 3",
        ),
        (
            TWO_CONTEXTS | {"tags.lengths": np.array([2, 1])},
            "input 'tags.lengths' adds up to 3, 'tags.values' has 2",
        ),
        (without("labels.values"), "input 'labels.lengths' is given without 'labels.values'"),
        (
            TWO_CONTEXTS | {"context_lengths": np.array([3])},
            "input 'context_lengths' has 1 lengths; there are 2 contexts",
        ),
        (
            TWO_CONTEXTS | {"context_lengths": np.array([3, 0])},
            "input 'context_lengths': 0 at position 1 is outside [1, 3]",
        ),
        (
            TWO_CONTEXTS | {"context_lengths": np.array([4, -1])},
            "input 'context_lengths': 4 at position 0 is outside [1, 3]",
        ),
        (
            TWO_CONTEXTS | {"context_lengths": np.array([1, 1])},
            "input 'context_lengths' adds up to 2; there are 3 candidates",
        ),
        (
            {n: a[:0] if n.startswith(("candidate", "labels")) else a for n, a in TWO_CONTEXTS.items()},
            "the request has no rows",
        ),
        (
            {n: a[:0] if n.startswith(("context", "tags")) else a for n, a in TWO_CONTEXTS.items()},
            "the request has no contexts",
        ),
    ],
)
def test_a_malformed_ranking_is_rejected_and_named(arrays: Arrays, says: str) -> None:
    with pytest.raises(Malformed) as caught:
        INPUTS.rows(arrays)
    assert says in str(caught.value)


def test_candidates_count_towards_the_limit() -> None:
    arrays = without("context_lengths", "tags.values", "tags.lengths", "labels.values", "labels.lengths")
    arrays |= {name: arrays[name][:1] for name in ("context.dense", "context.sparse")}
    arrays |= {name: arrays[name].repeat(34, axis=0) for name in ("candidate.dense", "candidate.sparse")}
    with pytest.raises(TooLarge, match="102 rows; the limit is 100"):
        INPUTS.rows(arrays)


LENGTHS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 4), max_size=4)
FEW_LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@given(
    st.tuples(LENGTHS, st.integers(0, 4), st.integers(0, 6))
    | st.tuples(FEW_LENGTHS, st.integers(0, 1), st.integers(0, 1)).map(
        lambda drawn: (drawn[0], len(drawn[0]) + drawn[1], sum(drawn[0]) + drawn[2])
    )
)
def test_any_context_lengths_are_rejected_or_cover_all_candidates(drawn: tuple[list[int], int, int]) -> None:
    lengths, contexts, candidates = drawn
    arrays = {
        "context.dense": np.zeros((contexts, 1), np.float32),
        "context.sparse": np.zeros((contexts, 1), np.int64),
        "candidate.dense": np.zeros((candidates, 1), np.float32),
        "candidate.sparse": np.zeros((candidates, 1), np.int64),
        "context_lengths": np.array(lengths, np.int64),
    }
    sound = candidates and len(lengths) == contexts and sum(lengths) == candidates and min(lengths) > 0
    try:
        rows = ranked(arrays)
    except RequestError:
        assert not sound
    else:
        assert sound
        assert np.bincount(rows.context_row).tolist() == lengths


def wire(arrays: Arrays, binary: bool) -> tuple[bytes, int | None]:
    inputs: list[dict[str, Any]] = []
    for name, a in arrays.items():
        inputs.append(
            {"name": name, "shape": a.shape, "datatype": "FP32" if a.dtype.kind == "f" else "INT64"}
        )
        inputs[-1] |= {"parameters": {"binary_data_size": a.nbytes}} if binary else {"data": a.tolist()}
    header = orjson.dumps({"inputs": inputs})
    if not binary:
        return header, None
    return header + b"".join(a.tobytes() for a in arrays.values()), len(header)


def assert_equal(got: Batch, expected: Batch) -> None:
    got, expected = got.exploded(), expected.exploded()
    for role in ("context", "candidate"):
        for part in ("dense", "ranks", "bag_values", "bag_offsets"):
            np.testing.assert_array_equal(
                getattr(getattr(got, role), part), getattr(getattr(expected, role), part)
            )


@given(data=st.data(), segments=st.lists(st.integers(1, 5), min_size=1, max_size=4), binary=st.booleans())
def test_a_ranking_is_the_plain_request_without_the_repetition(
    bundle: Bundle, data: st.DataObject, segments: list[int], binary: bool
) -> None:
    schema, encoder = bundle.manifest.schema_, bundle.encoder
    codec = OipCodec(schema, Limits())
    contexts, rows = len(segments), sum(segments)
    context_row = np.repeat(np.arange(contexts), segments)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    plain: Arrays = {"dense": np.empty((rows, 0), np.float32), "sparse": np.empty((rows, 0), np.int64)}
    once: Arrays = {}
    for role, count, index in (
        ("context", contexts, context_row),
        ("candidate", rows, np.arange(rows)),
    ):
        layout = schema.layout(role)
        once[f"{role}.dense"] = random.normal(10, 3, (count, len(layout.supplied))).astype(np.float32)
        ids = [random.integers(0, encoder.vocabulary(f).rows, count) for f in layout.singles]
        once[f"{role}.sparse"] = np.array(ids, np.int64).reshape(-1, count).T
        for i, d in enumerate(layout.supplied):
            plain[d.name] = once[f"{role}.dense"][index, i]
        for i, f in enumerate(layout.singles):
            plain[f.name] = once[f"{role}.sparse"][index, i]
        for f in layout.bags:
            lengths = random.integers(0, 4, count)
            lists = [random.integers(0, encoder.vocabulary(f).rows, n) for n in lengths]
            once[f"{f.name}.values"], once[f"{f.name}.lengths"] = np.concatenate(lists), lengths
            plain[f"{f.name}.values"] = np.concatenate([lists[i] for i in index])
            plain[f"{f.name}.lengths"] = lengths[index]
    plain["dense"] = np.stack([plain.pop(d.name) for d in schema.dense], 1)
    plain["sparse"] = np.stack([plain.pop(f.name) for f in schema.categorical if not f.multi], 1)
    plain["group.lengths"] = np.array(segments)
    if contexts > 1 or data.draw(st.booleans()):
        once["context_lengths"] = np.array(segments)
    shuffled = {name: once[name] for name in data.draw(st.permutations(list(once)))}
    ranking = codec.decode(*wire(shuffled, binary)).rows
    batch = ranking.encode(encoder)
    assert batch.context.rows == contexts
    assert_equal(batch, codec.decode(*wire(plain, binary)).rows.encode(encoder))
