from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Limits
from polyrec.server.codecs.oip_codec import InferRequest, OipCodec, encode
from polyrec.server.codecs.rows import Tensors
from polyrec.server.errors import Malformed, RequestError, TooLarge
from tests.server.codecs.schemas import SPLIT, small_schema

SCHEMA = small_schema({"name": "place"})
CODEC = OipCodec(SCHEMA, Limits(max_request_rows=100, max_queued_rows=100))

DENSE = np.array([[1.5, 30], [2, 40]], np.float32)
SPARSE = np.array([[1, 2, 3], [4, 5, 6]], np.int64)
VALUES = np.array([7, 8, 9], np.int64)
LENGTHS = np.array([1, 2], np.int64)
ARRAYS = {"dense": DENSE, "sparse": SPARSE, "tags.values": VALUES, "tags.lengths": LENGTHS}

Header = dict[str, Any]


def as_json(name: str, array: np.ndarray[Any, Any], flat: bool = False) -> Header:
    kind = "FP32" if array.dtype.kind == "f" else f"INT{array.dtype.itemsize * 8}"
    data = (array.ravel() if flat else array).tolist()
    return {"name": name, "datatype": kind, "shape": list(array.shape), "data": data}


def as_binary(name: str, array: np.ndarray[Any, Any]) -> Header:
    header = as_json(name, array)
    del header["data"]
    return {**header, "parameters": {"binary_data_size": array.nbytes}}


def decoded(inputs: list[Header], tail: bytes = b"", **more: Any) -> InferRequest:
    header = json.dumps({"inputs": inputs, **more}).encode()
    return CODEC.decode(header + tail, len(header) if tail else None)


def assert_is_the_example(request: InferRequest) -> None:
    rows = request.rows
    assert rows.rows == 2
    np.testing.assert_array_equal(rows.dense, DENSE)
    np.testing.assert_array_equal(rows.sparse, SPARSE)
    np.testing.assert_array_equal(rows.bags["tags"][0], VALUES)
    np.testing.assert_array_equal(rows.bags["tags"][1], LENGTHS)


@pytest.mark.parametrize("flat", [True, False])
def test_json_tensors_are_read_flat_or_nested(flat: bool) -> None:
    assert_is_the_example(decoded([as_json(n, a, flat) for n, a in ARRAYS.items()]))


def test_binary_tensors_are_read_in_the_order_of_the_inputs() -> None:
    names = list(ARRAYS)[::-1]
    tail = b"".join(ARRAYS[n].tobytes() for n in names)
    assert_is_the_example(decoded([as_binary(n, ARRAYS[n]) for n in names], tail))


def test_json_and_binary_tensors_mix() -> None:
    inputs = [
        as_binary("dense", DENSE),
        as_json("sparse", SPARSE),
        as_json("tags.lengths", LENGTHS),
        as_binary("tags.values", VALUES),
    ]
    assert_is_the_example(decoded(inputs, DENSE.tobytes() + VALUES.tobytes()))


def test_lengths_may_be_32_bits_wide_or_a_column() -> None:
    short = LENGTHS.astype(np.int32)
    arrays = ARRAYS | {"tags.lengths": short[:, None], "tags.values": VALUES[:, None]}
    assert_is_the_example(decoded([as_json(n, a) for n, a in arrays.items()]))
    tail = short.tobytes()
    rest = [as_json(n, a) for n, a in ARRAYS.items() if n != "tags.lengths"]
    assert_is_the_example(decoded([as_binary("tags.lengths", short), *rest], tail))


def test_a_raw_body_is_all_dense_rows_then_all_sparse_rows() -> None:
    request = CODEC.decode(DENSE.tobytes() + SPARSE.tobytes(), 0)
    assert (request.timeout_us, request.priority, request.best_only) == (0, 0, False)
    np.testing.assert_array_equal(request.rows.dense, DENSE)
    np.testing.assert_array_equal(request.rows.sparse, SPARSE)
    assert request.rows.bags["tags"][1].tolist() == [0, 0]
    assert request.binary_output


def test_both_inputs_of_a_list_feature_may_be_left_out() -> None:
    rows = decoded([as_json("dense", DENSE), as_json("sparse", SPARSE)]).rows
    assert rows.bags["tags"][0].size == 0
    assert rows.bags["tags"][1].tolist() == [0, 0]


def test_null_data_beside_a_binary_size_of_zero_are_an_empty_tensor() -> None:
    values = {**as_binary("tags.values", VALUES[:0]), "data": None}
    lengths = as_json("tags.lengths", np.zeros(2, np.int64))
    rows = decoded([as_json("dense", DENSE), as_json("sparse", SPARSE), values, lengths]).rows
    reference = decoded([as_json("dense", DENSE), as_json("sparse", SPARSE)]).rows
    np.testing.assert_array_equal(rows.sparse, reference.sparse)
    with pytest.raises(Malformed, match="needs either data or parameter"):
        decoded([{**as_json("dense", DENSE), "data": None}, as_json("sparse", SPARSE)])


def test_inputs_of_zero_width_are_not_declared_and_may_be_left_out_or_given() -> None:
    schema = Schema.model_validate({"name": "s", "categorical": [{"name": "item"}], **SPLIT})
    codec = OipCodec(schema, Limits())
    assert [d.name for d in codec.inputs.plain] == ["sparse"]
    sparse = as_json("sparse", np.array([[1], [2]]))
    for inputs in ([sparse], [{"name": "dense", "datatype": "FP32", "shape": [2, 0], "data": []}, sparse]):
        assert codec.decode(orjson.dumps({"inputs": inputs}), None).rows.dense.shape == (2, 0)


def test_declared_inputs_are_those_of_the_schema() -> None:
    assert [(d.name, d.datatype, d.shape) for d in CODEC.inputs.plain] == [
        ("dense", "FP32", (-1, 2)),
        ("sparse", "INT64", (-1, 3)),
        ("tags.values", "INT64", (-1,)),
        ("tags.lengths", "INT64", (-1,)),
    ]


def test_parameters_say_budget_priority_and_form_of_the_answer() -> None:
    inputs = [as_json("dense", DENSE), as_json("sparse", SPARSE)]
    plain = decoded(inputs)
    assert (plain.timeout_us, plain.priority, plain.binary_output, plain.id) == (0, 0, False, None)
    request = decoded(
        inputs,
        id="q7",
        parameters={"timeout": 2500, "priority": 1, "binary_data_output": True, "own": {"a": 1}},
    )
    assert (request.timeout_us, request.priority, request.binary_output, request.id) == (2500, 1, True, "q7")
    named = [{"name": "probability", "parameters": {"binary_data": False}}]
    assert not decoded(inputs, outputs=named, parameters={"binary_data_output": True}).binary_output


D, S = as_json("dense", DENSE), as_json("sparse", SPARSE)
SHORT = as_json("tags.lengths", LENGTHS.astype(np.int32))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([], "input 'dense' is missing"),
        ([D], "input 'sparse' is missing"),
        ([D, D, S], "input 'dense' is given twice"),
        ([D, S, {**S, "name": "color"}], "unknown input 'color'; the model has dense, sparse, tags.values"),
        ([{**D, "datatype": "FP64"}, S], "input 'dense' has datatype FP64; expected FP32"),
        ([D, {**S, "datatype": "BYTES"}], "input 'sparse' has datatype BYTES; expected INT64"),
        ([{**D, "shape": [2, 3]}, S], "input 'dense' has shape [2, 3]; expected [-1, 2]"),
        ([{**D, "shape": [4]}, S], "input 'dense' has shape [4]; expected [-1, 2]"),
        ([{**D, "shape": [-2, 2]}, S], "input 'dense' has shape [-2, 2]"),
        ([{**D, "shape": [2**62, 2]}, S], "input 'dense' has shape"),
        ([{**D, "shape": [2.0, 2]}, S], "Expected int, got float - at $.inputs[0].shape[0]"),
        ([{**D, "shape": [3, 2]}, S], "input 'dense': nested data do not have shape [3, 2]"),
        ([{**D, "data": [1, 2, 3]}, S], "input 'dense': 3 values in data, shape [2, 2] takes 4"),
        ([{**D, "data": [[1, 2], [3]]}, S], "input 'dense': nested data do not have shape [2, 2]"),
        ([{**D, "data": [[1, 2], 3]}, S], "input 'dense': data: Expected array, got int"),
        ([{**D, "data": [1, 2, 3, "4"]}, S], "input 'dense': data: Expected float, got str - at $[3]"),
        ([{**D, "data": "1234"}, S], "input 'dense': data: Expected array, got str"),
        ([D, {**S, "data": [1, 2, 3, 4, 5, 6.5]}], "input 'sparse': data: Expected int, got float - at $[5]"),
        ([D, {**S, "data": [1, 2, 3, 4, 5, 2**63]}], "input 'sparse': a value is beyond the range"),
        (
            [D, S, as_json("tags.values", VALUES), {**SHORT, "data": [1 - 2**32, 2]}],
            "input 'tags.lengths': a value is beyond the range",
        ),
        (
            [D, S, as_json("tags.values", VALUES), {**SHORT, "data": [1, 2 + 2**32]}],
            "input 'tags.lengths': a value is beyond the range",
        ),
        ([D, as_json("sparse", SPARSE[:1])], "input 'sparse' has 1 rows, 'dense' has 2"),
        ([as_json("dense", DENSE[:0], True), as_json("sparse", SPARSE[:0], True)], "no rows"),
        ([{k: v for k, v in D.items() if k != "data"}, S], "input 'dense' needs either data or parameter"),
        ([{**D, "parameters": {"binary_data_size": 16}}, S], "input 'dense' needs either data or parameter"),
        ([{**D, "parameters": {"shared_memory_region": "r"}}, S], "input 'dense': shared memory is not"),
        ([D, S, as_json("tags.values", VALUES)], "input 'tags.values' is given without 'tags.lengths'"),
        ([D, S, as_json("tags.lengths", LENGTHS)], "input 'tags.lengths' is given without 'tags.values'"),
        (
            [D, S, as_json("tags.values", VALUES), as_json("tags.lengths", LENGTHS[:1])],
            "input 'tags.lengths' has 1 rows, 'sparse' has 2",
        ),
        (
            [D, S, as_json("tags.values", VALUES[:2]), as_json("tags.lengths", LENGTHS)],
            "input 'tags.lengths' adds up to 3, 'tags.values' has 2",
        ),
        ([{"name": "dense"}], "missing required field shape"),
        ([3], "Expected object, got int - at $.inputs[0]"),
    ],
)
def test_bad_inputs_are_rejected_and_named(inputs: list[Any], says: str) -> None:
    with pytest.raises(Malformed) as caught:
        decoded(inputs)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"outputs": [{"name": "score"}]}, "unknown output 'score'; the model has one output, 'probability'"),
        ({"outputs": [{"name": "probability"}] * 2}, "requested more than once"),
        ({"outputs": [{"name": "probability", "parameters": {"classification": 3}}]}, "classification"),
        (
            {"outputs": [{"name": "probability", "parameters": {"shared_memory_region": "r"}}]},
            "shared memory",
        ),
        ({"parameters": {"timeout": -1}}, "parameter 'timeout' is -1"),
        ({"parameters": {"timeout": 3_600_000_001}}, "0 (the default budget) to 3600000000 (an hour)"),
        ({"parameters": {"timeout": 2**70}}, "parameter 'timeout' is 1180591620717411303424"),
        ({"parameters": {"timeout": "soon"}}, "at $.parameters.timeout"),
        ({"parameters": {"priority": -1}}, "parameter 'priority' is -1"),
        ({"parameters": {"priority": 1 << 40}}, "parameter 'priority' is 1099511627776"),
        ({"id": 7}, "at $.id"),
    ],
)
def test_bad_outputs_and_parameters_are_rejected_and_named(more: Header, says: str) -> None:
    with pytest.raises(Malformed) as caught:
        decoded([D, S], **more)
    assert says in str(caught.value)


def test_sizes_that_do_not_fit_the_body_are_rejected() -> None:
    inputs = [as_binary("dense", DENSE), S]
    with pytest.raises(Malformed, match="16 bytes announced, 15 are left"):
        decoded(inputs, DENSE.tobytes()[:-1])
    with pytest.raises(Malformed, match="1 bytes follow the last input's data"):
        decoded(inputs, DENSE.tobytes() + b"x")
    wrong = {**inputs[0], "parameters": {"binary_data_size": 12}}
    with pytest.raises(Malformed, match=r"input 'dense': binary_data_size is 12, FP32 \[2, 2\] takes 16"):
        decoded([wrong, S], DENSE.tobytes())
    with pytest.raises(Malformed, match="is 99, the body has 2 bytes"):
        CODEC.decode(b"{}", 99)
    with pytest.raises(Malformed, match="a raw request is whole rows of 32 bytes"):
        CODEC.decode(b"x" * 33, 0)
    with pytest.raises(Malformed, match="a raw request is whole rows of 32 bytes"):
        CODEC.decode(b"", 0)


def test_more_rows_than_the_limit_are_too_large() -> None:
    with pytest.raises(TooLarge, match="101 rows; the limit is 100"):
        CODEC.decode(b"\0" * 32 * 101, 0)


def test_a_large_header_of_more_values_than_any_request_has_is_not_even_parsed() -> None:
    body = (
        b'{"inputs": [{"name": "dense", "datatype": "FP32", "shape": [1, 2], "data": ['
        + b"1," * 2**19
        + b"1]}]}"
    )
    with pytest.raises(TooLarge, match="more than 26200 values"):
        CODEC.decode(body, None)


@pytest.mark.parametrize("nested", [False, True])
def test_large_data_are_read_as_small_ones(nested: bool) -> None:
    codec = OipCodec(SCHEMA, Limits())
    dense = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    dense[::7] *= 1e-30
    sparse = np.random.default_rng(1).integers(0, 2**62, (1000, 3))
    inputs = [as_json("dense", dense, not nested), as_json("sparse", sparse, not nested)]
    for indent in (None, 2):
        rows = codec.decode(json.dumps({"inputs": inputs}, indent=indent).encode(), None).rows
        assert isinstance(rows, Tensors)
        np.testing.assert_array_equal(rows.dense, dense)
        np.testing.assert_array_equal(rows.sparse, sparse)


@pytest.mark.parametrize(
    "odd", ['"1"', "true", "false", "null", "{}", "[]", "[[1]]", "[1]", "1e999", "1" * 500, "1e", "-"]
)
@pytest.mark.parametrize("nested", [False, True])
def test_non_numbers_are_rejected_in_large_data(nested: bool, odd: str) -> None:
    row = "[1e-5,%s]" if nested else "1e-5,%s"
    data = ",".join([row % "1.5"] * 99 + [row % odd])
    header = '{"inputs":[{"name":"dense","datatype":"FP32","shape":[100,2],"data":[%s]}]}'
    for padding in ("", " " * 5000):
        with pytest.raises(Malformed):
            CODEC.decode((header % (padding + data)).encode(), None)


CRITEO = Schema.model_validate(
    {
        "name": "criteo",
        "dense": [{"name": f"i{i}"} for i in range(13)],
        "categorical": [{"name": f"c{i}", "type": "integer"} for i in range(26)],
        **SPLIT,
    }
)


def test_2048_rows_of_39_features_are_read_by_default() -> None:
    random = np.random.default_rng(0)
    dense, sparse = random.random((2048, 13)).astype(np.float32), random.integers(0, 2**31, (2048, 26))
    inputs = [as_json("dense", dense), as_json("sparse", sparse)]
    codec = OipCodec(CRITEO, Limits())
    body = orjson.dumps({"inputs": inputs})
    for header_bytes in (None, len(body)):
        rows = codec.decode(body, header_bytes).rows
        np.testing.assert_array_equal(rows.dense, dense)
        np.testing.assert_array_equal(rows.sparse, sparse)
    inputs[1]["data"][2000][5] = 0.5
    with pytest.raises(Malformed, match="data are not 53248 numbers of its type and shape"):
        codec.decode(orjson.dumps({"inputs": inputs}), None)


def test_one_long_number_is_no_list_of_them() -> None:
    """It was a 500: server/codecs/json_numbers.py's faster way, which checks no types, gave a float."""
    for number in (b"1.%be1" % (b"0" * 5000), b"-1.%be1" % (b"0" * 5000)):
        header = b'{"inputs":[{"name":"dense","datatype":"FP32","shape":[1,2],"data":%b}]}' % number
        with pytest.raises(Malformed, match="input 'dense': data: Expected array"):
            CODEC.decode(header, None)


@pytest.mark.parametrize(
    ("shape", "data"), [("[101,2]", b"5e-320,"), ("[100,2]", b"5e-320,"), ("[1,2]", b"[],"), ("[1,2]", b"1,")]
)
def test_data_that_do_not_fit_their_shape_are_not_parsed(shape: str, data: bytes) -> None:
    head = b'{"inputs":[{"name":"dense","datatype":"FP32","shape":%b,"data":[' % shape.encode()
    # Within what a body may have altogether; whoever parsed it would see first that lists and numbers mix.
    body = head + data * 20_000 + b"7]}]}"
    with pytest.raises((Malformed, TooLarge), match=r"20001 values in data|101 rows; the limit is 100"):
        CODEC.decode(body, None)


def test_messages_repeat_a_few_characters_of_names() -> None:
    for header in ({**D, "name": "a" * 10**5}, {**D, "datatype": "a" * 10**5}, {**D, "shape": [1] * 10**4}):
        with pytest.raises(Malformed) as caught:
            decoded([header, S])
        assert len(str(caught.value)) < 500
    with pytest.raises(Malformed) as caught:
        decoded([D, S], outputs=[{"name": "a" * 10**5}])
    assert len(str(caught.value)) < 500


def test_answers_are_json_or_json_and_raw_floats() -> None:
    probabilities = np.array([0.25, 0.1], np.float32)
    request = decoded([D, S], id="q")
    body, header_bytes = encode(request, probabilities, "dlrm", "v1", "table@cpu")
    assert header_bytes is None
    answer = json.loads(body)
    assert answer["id"] == "q"
    assert (answer["model_name"], answer["model_version"]) == ("dlrm", "v1")
    assert answer["parameters"] == {"path": "table@cpu", "degraded": False}
    (output,) = answer["outputs"]
    assert output["shape"] == [2]
    assert np.float32(output["data"]).tolist() == probabilities.tolist()

    request = decoded([D, S], parameters={"binary_data_output": True})
    body, header_bytes = encode(request, probabilities, "dlrm", "v1", "table@cpu")
    assert header_bytes is not None
    answer = json.loads(body[:header_bytes])
    assert "id" not in answer
    assert answer["outputs"][0]["parameters"]["binary_data_size"] == 8
    assert body[header_bytes:] == probabilities.tobytes()


@given(st.data())
def test_any_mutation_is_either_read_or_rejected(data: st.DataObject) -> None:
    binary = data.draw(st.booleans())
    tail = b"".join(a.tobytes() for a in ARRAYS.values()) if binary else b""
    make = as_binary if binary else as_json
    header = json.dumps({"inputs": [make(n, a) for n, a in ARRAYS.items()]}).encode()
    body = bytearray(header + tail)
    digits = [at for at, byte in enumerate(header) if byte in b"123456789"]
    for _ in range(data.draw(st.integers(1, 4))):
        # a digit for a digit may be read
        if data.draw(st.booleans()):
            body[data.draw(st.sampled_from(digits))] = data.draw(st.sampled_from(b"123456789"))
        else:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    lengths = st.sampled_from([len(header) - 1, len(header) + 8, 0, 10**9])
    length = data.draw(st.just(len(header)) | lengths)
    try:
        request = CODEC.decode(bytes(body), length if binary else None)
    except RequestError:
        return
    assert request.rows.rows == 2


@given(st.binary(max_size=80), st.none() | st.integers(0, 90))
def test_any_bytes_are_either_read_or_rejected(body: bytes, length: int | None) -> None:
    with suppress(RequestError):
        CODEC.decode(body, length)
