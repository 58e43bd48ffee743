from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.plan import Limits
from polyrec.server.codecs.json_numbers import ALWAYS_FAST_BYTES, convert_column, convert_values, may_be_slow
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.errors import Invalid, Malformed, RequestError, TooLarge
from tests.server.codecs.test_json_rows import SCHEMA

DECODER = JsonDecoder(SCHEMA, Limits(max_request_rows=1024))
PADDING = " " * (2 * ALWAYS_FAST_BYTES)
SLOW = b"5e-320"
"""A number that msgspec converts in 7 us."""

ANY_FLOAT = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
FINITE = (st.floats(allow_nan=False, allow_infinity=False) | ANY_FLOAT).filter(
    lambda x: abs(x) < float("inf")
)


def floats(column: Any) -> list[float | None]:
    return [None if value is None else float(value) for value in column]


@given(st.lists(FINITE | st.none() | st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=30))
def test_numbers_are_the_same_either_way(values: list[Any]) -> None:
    rows = [{"price": v, "age": v} for v in values]
    for document in ({"columns": {"price": values, "age": values}}, {"instances": rows}):
        small, large = json.dumps(document).encode(), (PADDING + json.dumps(document)).encode()
        assert may_be_slow(large)
        assert not may_be_slow(small)
        typed, converted = DECODER.predict(small), DECODER.predict(large)
        assert floats(typed.context[0]) == floats(converted.context[0])
        assert floats(typed.candidate[0]) == floats(converted.candidate[0])


@pytest.mark.parametrize(
    ("value", "got"), [('"1"', "str"), ("true", "bool"), ("[1]", "array"), ("{}", "object"), ("[]", "array")]
)
def test_non_numbers_get_the_same_message_in_every_form(value: str, got: str) -> None:
    for text, place in (
        ('{"columns": {"price": [1, 2.5, %s]}}', "$.columns.price[2]"),
        ('{"instances": [{"price": 1}, {}, {"price": %s}]}', "$.instances[2].price"),
        ('{"candidates": {"price": [1, null, %s]}}', "$.candidates.price[2]"),
        ('{"candidates": [{"price": 1}, {}, {"price": %s}]}', "$.candidates[2].price"),
        ('{"candidates": [{}], "context": {"age": %s}}', "$.context.age"),
    ):
        read = DECODER.rank if "candidates" in text else DECODER.predict
        said = set()
        for body in (text % value, PADDING + text % value):
            with pytest.raises(Invalid) as caught:
                read(body.encode())
            said.add(str(caught.value))
        assert said == {f"Expected float | null, got {got} - at {place}"}


@pytest.mark.parametrize("value", ["3", '"1"', "true", "{}"])
def test_a_column_that_is_no_list_is_rejected(value: str) -> None:
    with pytest.raises(Invalid, match=r"Expected array \| null, got \w+ - at \$\.columns\.price$"):
        DECODER.predict((PADDING + f'{{"columns": {{"price": {value}}}}}').encode())


@pytest.mark.parametrize("value", ["1e999", "-1e400", "1" + "0" * 5000])
def test_a_number_out_of_range_is_rejected_by_its_place(value: str) -> None:
    with pytest.raises(Invalid, match=r"out of range - at \$\.columns\.price\[1\]$"):
        DECODER.predict((PADDING + f'{{"columns": {{"price": [0, {value}]}}}}').encode())


def test_a_column_of_too_many_numbers_is_not_parsed() -> None:
    # Were it parsed, it would be Malformed.
    with pytest.raises(TooLarge, match=r"\$\.columns\.price has 1025 values"):
        convert_column(msgspec.Raw(b"[" + b"1," * 1024 + b"]"), "$.columns.price", 1024)
    with pytest.raises(Malformed):
        convert_column(msgspec.Raw(b"[1,]"), "$.columns.price", 1024)


def test_numbers_that_are_slow_are_left_to_the_fast_converter() -> None:
    rows = b",".join([b'{"price":' + SLOW + b"}"] * 1000)
    assert may_be_slow(b'{"instances":[' + rows + b"]}")
    assert may_be_slow(b'{"columns":{"price":[' + b",".join([SLOW] * 2000) + b"]}}")
    assert may_be_slow(b'{"columns":{"price":[' + b",".join([SLOW] * 800) + b"]}}")
    assert not may_be_slow(b'{"columns":{"price":[' + b",".join([b"84.50"] * 800) + b"]}}")
    ordinary = b",".join([b'{"price":84.5,"item":"i-17","user":"e5"}'] * 500)
    assert not may_be_slow(b'{"instances":[' + ordinary + b"]}")
    few = b",".join([b'{"price":' + SLOW + b"}"] * 100)
    assert not may_be_slow(b'{"instances":[' + few + b"]}" + PADDING.encode())


@given(st.lists(st.binary(max_size=6), max_size=4))
def test_any_json_values_are_read_or_rejected(texts: list[bytes]) -> None:
    raws = []
    for text in texts:
        try:
            raws.append(msgspec.json.decode(text, type=msgspec.Raw))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    with suppress(RequestError):
        assert len(convert_values(raws, "$.instances[{}].price")) == len(raws)
