from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.codecs.number_arrays import NumberParser
from polyrec.server.codecs.oip_codec import DTYPES, json_tensor
from polyrec.server.errors import Malformed

numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.integers()
)
odd = st.one_of(numbers, st.none(), st.booleans(), st.text("[],1", max_size=3), st.just({"a": [1]}))
nested = st.recursive(odd, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,", ":")])


def slow(raw: bytes, shape: tuple[int, ...], kind: str) -> Any:
    """Parses by the reference; None where it refuses."""
    try:
        return json_tensor("x", raw, shape, DTYPES["FP32" if kind == "f" else "INT64"])
    except Malformed:
        return None


def same(raw: bytes, shape: tuple[int, ...], kind: str) -> bool:
    """Whether the fast parser agrees with the reference, or leaves the array to it; True if it parsed."""
    fast = NumberParser().parse(raw, shape, kind)
    expected = slow(raw, shape, kind)
    if fast is None:
        return False
    assert expected is not None, (raw, shape)
    with np.errstate(over="ignore"):
        assert np.array_equal(fast.astype(expected.dtype).reshape(shape), expected)
    return True


@given(st.data(), st.integers(1, 5), st.integers(1, 4), st.booleans(), separators, st.booleans())
def test_numbers_are_parsed_as_by_the_reference(
    data: st.DataObject, rows: int, width: int, flat: bool, sep: tuple[str, str], indented: bool
) -> None:
    kind = data.draw(st.sampled_from("if"))
    one = st.integers(-(2**63), 2**63 - 1) if kind == "i" else st.floats(-1e30, 1e30)
    rows_of = data.draw(st.lists(st.lists(one, min_size=width, max_size=width), min_size=rows, max_size=rows))
    values = [v for row in rows_of for v in row] if flat else rows_of
    raw = json.dumps(values, separators=sep, indent=2 if indented else None).encode()
    assert same(raw, (rows, width), kind)


@given(nested, st.integers(0, 4), st.integers(0, 3), st.sampled_from("if"), separators)
def test_other_arrays_are_never_accepted(
    value: Any, rows: int, width: int, kind: str, sep: tuple[str, str]
) -> None:
    same(json.dumps(value, separators=sep).encode(), (rows, width), kind)


@given(st.text("[],1 ", max_size=14), st.integers(0, 3), st.integers(0, 3))
def test_any_brackets_and_commas_are_read_as_by_the_reference(text: str, rows: int, width: int) -> None:
    same(text.encode(), (rows, width), "i")


@pytest.mark.parametrize(
    "raw",
    [
        b"[[1,2,3],[4]]",
        b"[[1],[2,3,4]]",
        b"[[1,[2],3,4]]",
        b"[[[1,2],[3,4]]]",
        b"[[1,2],3,4]",
        b"[1,[2],3,4]",
    ],
)
def test_four_numbers_of_another_shape_are_not_two_by_two(raw: bytes) -> None:
    assert NumberParser().parse(raw, (2, 2), "i") is None


def test_a_parser_is_free_again_after_an_error() -> None:
    parser = NumberParser()
    assert parser.parse(b"[[1,2.5],[3,4]]", (2, 2), "i") is None
    again = parser.parse(b"[[1,2],[3,4]]", (2, 2), "i")
    assert again is not None
    assert again.tolist() == [1, 2, 3, 4]
