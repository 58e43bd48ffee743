"""Rows are counted without parsing as parsing counts them, or not at all."""

from __future__ import annotations

import math

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.codecs.row_count import rows_of_predict, rows_of_rank, rows_of_tensors

texts = st.text(max_size=4) | st.sampled_from(['"', "{", "},{", "[", ",", "\\", '"shape": [9, 9]'])
values = st.none() | st.integers(-9, 9) | st.floats(-1, 1) | texts | st.lists(texts, max_size=3)
rows_ = st.lists(st.dictionaries(texts, values, max_size=3), min_size=1, max_size=5)
indents = st.sampled_from([None, orjson.OPT_INDENT_2])


@st.composite
def columns(draw: st.DrawFn) -> tuple[int, dict[str, object]]:
    rows = draw(st.integers(1, 5))
    lists = st.lists(values, min_size=rows, max_size=rows)
    found = draw(st.dictionaries(texts, lists | st.none(), max_size=3))
    return rows, {**found, "last": draw(lists)}


@given(rows_, indents)
def test_objects_are_counted(rows: list[object], indent: int | None) -> None:
    assert rows_of_predict(orjson.dumps({"instances": rows}, option=indent)) == len(rows)
    ranking = {"context": {"a": "["}, "candidates": rows, "top_k": 1}
    assert rows_of_rank(orjson.dumps(ranking, option=indent)) == len(rows)


@given(columns(), indents)
def test_values_of_a_column_are_counted(given_: tuple[int, dict[str, object]], indent: int | None) -> None:
    rows, found = given_
    assert rows_of_predict(orjson.dumps({"columns": found}, option=indent)) == rows
    assert rows_of_rank(orjson.dumps({"candidates": found}, option=indent)) == rows


@given(
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(2, 9),
    st.permutations(["name", "shape", "datatype", "data"]),
    indents,
)
def test_rows_of_tensors_are_those_of_the_largest_matrix(
    rows: int, contexts: int, width: int, keys: list[str], indent: int | None
) -> None:
    shapes = {"context.dense": [contexts, width], "candidate.dense": [rows + contexts, width]}
    vectors = {"bag.values": [99], "bag.lengths": [99, 1]}  # more values than rows
    inputs = [
        {
            key: {"name": name, "shape": shape, "datatype": "FP32", "data": [5] * math.prod(shape)}[key]
            for key in keys
        }
        for name, shape in {**shapes, **vectors}.items()
    ]
    assert rows_of_tensors(orjson.dumps({"inputs": inputs}, option=indent)) == rows + contexts


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"instances": null}',
        b'{"instances": 3}',
        b'{"columns": {}}',
        b'{"columns": {"a": null}}',
        b'{"columns": {"a": 3}}',
        b'{"candidates": 3}',
        b'{"candidates": {"a": "b"}}',
        b'{"inputs": [{"shape": [3]}]}',
        b'{"inputs": [{"shape": [3, 1]}]}',
        b'{"inputs": [{"shape": [-3, 2]}]}',
        b'{"inputs": [{"shape": [3, 2, 2]}]}',
        b'"shape": [' + b"1" * 5000 + b", 2]",
        b"p" * 1_000_000,
        b'{"inputs": [{"shape": [3, 2]}], "parameters": {"timeout": 9}}',
        b'{"inputs": [{"shape": [3, 2]}], "param\\u0065ters": {"timeout": 9}}',
        b'"shape": [1, 2]' * 1_000,
    ],
)
def test_of_any_other_body_nothing_is_said(body: bytes) -> None:
    assert rows_of_predict(body) is None
    assert rows_of_rank(body) is None
    assert rows_of_tensors(body) is None


@pytest.mark.parametrize("rows", [1_000, 4_096, 999_999_999])
def test_rows_that_a_small_body_only_claims_are_not_counted(rows: int) -> None:
    tensor = {"name": "dense", "shape": [rows, 13], "datatype": "FP32", "data": [0] * 13}
    assert rows_of_tensors(orjson.dumps({"inputs": [tensor]})) is None
