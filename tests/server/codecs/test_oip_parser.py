from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.codecs.oip_codec import DTYPES, json_tensor, parse_header
from polyrec.server.codecs.oip_header import TensorParameters
from polyrec.server.codecs.oip_parser import RequestParser
from polyrec.server.errors import Malformed

PARSER = RequestParser()

integers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-5, 5))
floats = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**53), 2**53))
odd = st.one_of(
    integers, floats, st.none(), st.booleans(), st.text('[]{}",1', max_size=3), st.just({"a": [1]})
)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")])
others = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text('[a1\u00e9"', max_size=4),
        "outputs": st.lists(
            st.fixed_dictionaries(
                {"name": st.just("probability")},
                optional={"parameters": st.just({"binary_data": False})},
            ),
            max_size=2,
        ),
        "parameters": st.dictionaries(st.sampled_from(["timeout", "priority", "x"]), st.integers(0, 9)),
        "unknown": odd,
    },
)


@st.composite
def tensors(draw: st.DrawFn, sound: bool) -> dict[str, Any]:
    """An input; unless `sound`, often a wrong one."""
    datatype = draw(st.sampled_from(["FP32", "INT64", "INT32"]))
    values = floats if datatype == "FP32" else integers
    if not sound:
        values = st.one_of(values, odd)
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    lists = draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=rows, max_size=rows))
    if not sound and draw(st.booleans()):
        lists[0] = lists[0][1:] + draw(st.sampled_from([[], [1, 1], [[1]]]))
    data = lists if draw(st.booleans()) else [v for row in lists for v in row]
    shape: list[Any] = [rows, width]
    if not sound:
        shape = draw(
            st.sampled_from([shape, [rows * width], [width, rows], [1.0, rows], [], [True, 1], ["2"]])
        )
    made = {"name": draw(st.sampled_from(["a", "b", "[", "\u00e9"])), "shape": shape, "datatype": datatype}
    made["data"] = data
    keys = draw(st.permutations(list(made)))
    made = {key: made[key] for key in keys}
    if not sound:
        made |= draw(st.dictionaries(st.sampled_from(["parameters", "more", "data"]), odd, max_size=1))
    return made


def text_of(inputs: list[dict[str, Any]], more: dict[str, Any], sep: tuple[str, str], first: bool) -> bytes:
    request = {**more, "inputs": inputs} if first else {"inputs": inputs, **more}
    return json.dumps(request, separators=sep).encode()


def agrees(body: bytes) -> bool:
    """Whether the parser took a request; it must then have read what the reference reads."""
    parsed = PARSER.parse(body)
    if parsed is None:
        return False
    expected = parse_header(body)
    assert parsed.header.id == expected.id
    assert parsed.header.outputs == expected.outputs
    assert parsed.header.parameters == expected.parameters
    assert len(parsed.data) == len(parsed.header.inputs) == len(expected.inputs)
    for found, values, want in zip(parsed.header.inputs, parsed.data, expected.inputs, strict=True):
        assert (found.name, found.shape, found.datatype) == (want.name, want.shape, want.datatype)
        assert (want.parameters or TensorParameters()).binary_data_size is None
        assert (want.parameters or TensorParameters()).shared_memory_region is None
        dtype = np.dtype(np.float32 if found.datatype == "FP32" else np.int64)
        array = json_tensor(want.name, bytes(want.data), tuple(want.shape), dtype)
        with np.errstate(over="ignore"):
            assert np.array_equal(values.astype(dtype).reshape(array.shape), array)
    return True


plain_parameters = st.none() | st.fixed_dictionaries(
    {}, optional={"binary_data": st.booleans(), "own": st.just(1)}
)


@given(st.lists(tensors(sound=True), min_size=1, max_size=4), separators, st.data())
def test_ordinary_requests_are_read_as_by_the_reference(
    inputs: list[dict[str, Any]], sep: tuple[str, str], data: st.DataObject
) -> None:
    for tensor in inputs:
        if data.draw(st.booleans()):
            tensor["parameters"] = data.draw(plain_parameters)
    body = text_of(inputs, {}, sep, False)
    assert agrees(body) == all("[" not in tensor["name"] for tensor in inputs)


@given(st.lists(tensors(sound=False), max_size=3), others, separators, st.booleans())
def test_any_request_is_read_like_the_reference_or_not_at_all(
    inputs: list[dict[str, Any]], more: dict[str, Any], sep: tuple[str, str], first: bool
) -> None:
    agrees(text_of(inputs, more, sep, first))


@given(st.lists(tensors(sound=True), min_size=1, max_size=2), st.data())
def test_damaged_requests_are_not_read_differently(inputs: list[dict[str, Any]], data: st.DataObject) -> None:
    body = bytearray(text_of(inputs, {}, (",", ":"), False))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"[", b"]", b",", b'"', b"{", b"}", b"1", b"\\", b"\xff", b" "])
        )
    agrees(bytes(body))


A = '"name":"a","shape":[2,2],"datatype":"INT64"'


@pytest.mark.parametrize(
    "more", ['"id":"a[1]"', '"parameters":{"own":[[1],2]}', '"own":["["]', '"id":"[","outputs":[]']
)
def test_brackets_beside_the_inputs_leave_a_request_ordinary(more: str) -> None:
    """Otherwise many numbers would be refused, which only this parser reads in time."""
    assert agrees(f'{{"inputs":[{{{A},"data":[[1,2],[3,4]]}}],{more}}}'.encode())
    assert PARSER.parse(f'{{"inputs":[{{{A},"data":[1,[2],3,4]}}],{more}}}'.encode()) is None


@pytest.mark.parametrize(
    "body",
    [
        f'{{"inputs":[{{{A},"data":[[1,2,3],[4]]}}]}}',
        f'{{"inputs":[{{{A},"data":[[1],[2],[3],[4]]}}]}}',
        f'{{"inputs":[{{{A},"data":[1,[2],3,4]}}]}}',
        f'{{"inputs":[{{{A},"data":[[[1,2],[3,4]]]}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4.0]}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,true]}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,9223372036854775808]}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4],"data":[5,6,7,8]}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4],"parameters":{{"binary_data_size":32}}}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4],"parameters":{{"shared_memory_region":"r"}}}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4],"data":[5,6,7,8],"parameters":{{}}}}]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4]}}],"inputs":[]}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4]}}],"id":"a","id":"b"}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4]}}],"id":7}}',
        f'{{"inputs":[{{{A},"data":[1,[2],3,4]}}],"id":"\\u005b"}}',
        f'{{"inputs":[{{{A},"data":[1,2,3,4]}}]}} 1',
        f'{{"inputs":[{{{A}}}]}}',
        '{"inputs":[{"name":"a","shape":[0,2],"datatype":"INT64","data":[]}]}',
        '{"inputs":{}}',
        "[]",
        "",
    ],
)
def test_unusual_bodies_are_left_to_the_reference_parser(body: str) -> None:
    assert PARSER.parse(body.encode()) is None


def test_a_parser_is_free_again_after_a_refusal() -> None:
    parser = RequestParser()
    ragged = f'{{"inputs":[{{{A},"data":[[1,2,3],[4]]}}]}}'.encode()
    sound = f'{{"inputs":[{{{A},"data":[[1,2],[3,4]]}}]}}'.encode()
    for body in (ragged, sound, ragged, sound):
        parsed = parser.parse(body)
        assert (parsed is None) == (body is ragged)
        if parsed is not None:
            assert parsed.data[0].tolist() == [1, 2, 3, 4]


def test_a_request_s_numbers_outlive_the_next_request() -> None:
    bodies = [f'{{"inputs":[{{{A},"data":[{i},2,3,4]}}]}}'.encode() for i in range(2)]
    first, second = (PARSER.parse(body) for body in bodies)
    assert first is not None
    assert second is not None
    assert first.data[0].tolist() == [0, 2, 3, 4]
    assert second.data[0].tolist() == [1, 2, 3, 4]


def test_both_parsers_refuse_integers_beyond_a_datatype() -> None:
    with pytest.raises(Malformed, match="'a': a value is beyond the range"):
        json_tensor("a", b"[1,4294967296]", (2,), DTYPES["INT32"])
