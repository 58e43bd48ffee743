"""Decodes requests and encodes answers of the Open Inference Protocol over HTTP.

A request is JSON, or JSON followed by raw little-endian tensors (binary tensor extension). It is decoded into
named arrays with the types and shapes that the model declares; `server/codecs/oip_inputs.py` then converts
the arrays to rows. oip_parser.py is a fast path for ordinary JSON requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson

from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import MAX_BUDGET_MS, Limits
from polyrec.planner.routing.query import MAX_PRIORITY
from polyrec.server.codecs.body_limits import FULL_VALUES, BodyLimits, count
from polyrec.server.codecs.json_numbers import ALWAYS_FAST_BYTES
from polyrec.server.codecs.json_rows import explain_malformed
from polyrec.server.codecs.oip_header import (
    OutputHeader,
    RequestHeader,
    RequestParameters,
    TensorHeader,
    TensorParameters,
)
from polyrec.server.codecs.oip_inputs import Array, Inputs
from polyrec.server.codecs.oip_parser import RequestParser
from polyrec.server.codecs.rows import RankedTensors, Tensors
from polyrec.server.errors import Malformed, shortened

DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
OUTPUT = "probability"
MAX_TIMEOUT_US = MAX_BUDGET_MS * 1000
COUNTED_BYTES = 2**15
"""Minimum size of an input's data for counting its commas; less is parsed in a millisecond."""

_FLAT: dict[str, msgspec.json.Decoder[Any]] = {
    "f": msgspec.json.Decoder(list[float]),
    "i": msgspec.json.Decoder(list[int]),
}
_NESTED: dict[str, msgspec.json.Decoder[Any]] = {
    "f": msgspec.json.Decoder(list[list[float]]),
    "i": msgspec.json.Decoder(list[list[int]]),
}
_REQUEST = msgspec.json.Decoder(RequestHeader)


class InferRequest(NamedTuple):
    """A decoded request and the requested form of its answer. timeout_us: budget, 0 for the default."""

    rows: Tensors | RankedTensors
    id: str | None
    binary_output: bool
    timeout_us: int = 0
    priority: int = 0
    best_only: bool = False


class OipCodec:
    """Decodes inference requests of one schema. vocabularies: see `Inputs`."""

    def __init__(
        self, schema: Schema, limits: Limits, vocabularies: Mapping[str, Vocabulary] | None = None
    ) -> None:
        self.inputs = Inputs(schema, limits, vocabularies)
        self._body_limits = BodyLimits.from_schema(schema, limits)
        self._requests = RequestParser()

    def decode(self, body: bytes, header_bytes: int | None) -> InferRequest:
        """Decodes a decompressed body. Raises TooLarge, or Malformed with the name of the input.

        header_bytes: length of the JSON part; None if the whole body is JSON, 0 for a raw request without
            JSON.
        """
        if header_bytes == 0:
            return InferRequest(self.inputs.rows(self.inputs.raw(body)), None, True)
        if header_bytes is not None and header_bytes > len(body):
            raise Malformed(
                f"Inference-Header-Content-Length is {header_bytes}, the body has {len(body)} bytes"
            )
        header = body if header_bytes is None else body[:header_bytes]
        self._body_limits.check_tensors(header)
        parsed = self._requests.parse(header) if len(header) == len(body) else None
        request = parse_header(header) if parsed is None else parsed.header
        parameters = request.parameters or RequestParameters()
        if parameters.timeout is not None:
            check_timeout_us(parameters.timeout)
        check_priority(parameters.priority)
        binary_output = self._outputs(request.outputs, parameters.binary_data_output)
        data = () if parsed is None else parsed.data
        tensors = self._tensors(request.inputs, memoryview(body)[len(header) :], data)
        return InferRequest(
            self.inputs.rows(tensors),
            request.id,
            binary_output,
            parameters.timeout or 0,
            parameters.priority,
            parameters.quality == "required",
        )

    def _outputs(self, outputs: Sequence[OutputHeader] | None, by_default: bool) -> bool:
        """Validates the requested outputs; returns whether to send the output as binary data."""
        binary = by_default
        for i, output in enumerate(outputs or ()):
            if i:
                raise Malformed(f"output '{shortened(output.name)}' is requested more than once or unknown")
            if output.name != OUTPUT:
                raise Malformed(
                    f"unknown output '{shortened(output.name)}'; the model has one output, '{OUTPUT}'"
                )
            parameters = output.parameters or TensorParameters()
            if parameters.classification is not None:
                raise Malformed(f"output '{OUTPUT}': the classification extension is not supported")
            if parameters.shared_memory_region is not None:
                raise Malformed(f"output '{OUTPUT}': shared memory is not supported")
            if parameters.binary_data is not None:
                binary = parameters.binary_data
        return binary

    def _tensors(
        self, headers: Sequence[TensorHeader], rest: memoryview, data: Sequence[Array]
    ) -> dict[str, Array]:
        """Returns the arrays of all inputs. data: the data of each input, if already parsed."""
        tensors: dict[str, Array] = {}
        for i, header in enumerate(headers):
            declared = self.inputs.declared(header.name)
            if header.name in tensors:
                raise Malformed(f"input '{header.name}' is given twice")
            shape = self.inputs.check_shape(declared, header.datatype, header.shape)
            if data:
                tensors[header.name] = _converted(header.name, data[i], DTYPES[header.datatype], shape)
                continue
            parameters = header.parameters or TensorParameters()
            if parameters.shared_memory_region is not None:
                raise Malformed(f"input '{header.name}': shared memory is not supported")
            size = parameters.binary_data_size
            # KServe's client sends null with an empty binary tensor
            raw = b"" if bytes(header.data) == b"null" else bytes(header.data)
            if (size is None) == (not raw):
                raise Malformed(f"input '{header.name}' needs either data or parameter binary_data_size")
            if size is None:
                tensors[header.name] = json_tensor(header.name, raw, shape, DTYPES[header.datatype])
            else:
                tensors[header.name], rest = _binary_tensor(header, size, shape, rest)
        if len(rest):
            raise Malformed(f"{len(rest)} bytes follow the last input's data")
        return tensors


def parse_header(body: bytes) -> RequestHeader:
    """Parses the JSON of a request, leaving the data of inputs raw. Raises Malformed."""
    try:
        return _REQUEST.decode(body)
    except msgspec.ValidationError as e:
        raise Malformed(str(e).replace("`", "")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise Malformed(explain_malformed(body, str(e))) from None
    except RecursionError:
        raise Malformed("the body is nested too deeply") from None


def _binary_tensor(
    header: TensorHeader, size: int, shape: tuple[int, ...], rest: memoryview
) -> tuple[Array, memoryview]:
    """Reads the binary data of one input. size: its announced bytes. rest: all binary data not yet read.

    Returns the array, which is a view, and what is left. Raises Malformed.
    """
    dtype = DTYPES[header.datatype]
    expected = math.prod(shape) * dtype.itemsize
    if size != expected:
        raise Malformed(
            f"input '{header.name}': binary_data_size is {size}, "
            f"{header.datatype} {list(shape)} takes {expected} bytes"
        )
    if size > len(rest):
        raise Malformed(f"input '{header.name}': {size} bytes announced, {len(rest)} are left in the body")
    return np.frombuffer(rest[:size], dtype).reshape(shape), rest[size:]


def _converted(name: str, values: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Converts float64 or int64 numbers to an array of another type and shape. Raises Malformed."""
    if dtype.kind == "i":
        if dtype.itemsize < values.itemsize:
            limits = np.iinfo(dtype)
            if values.min() < limits.min or values.max() > limits.max:
                raise _out_of_range(name)
        return values.astype(dtype, copy=False).reshape(shape)
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False).reshape(shape)


def _out_of_range(name: str) -> Malformed:
    return Malformed(f"input '{name}': a value is beyond the range of the datatype")


def check_timeout_us(timeout_us: int) -> None:
    """Validates the parameter `timeout`, in microseconds. Raises Malformed."""
    if not 0 <= timeout_us <= MAX_TIMEOUT_US:
        raise Malformed(
            f"parameter 'timeout' is {timeout_us}; it is microseconds, 0 (the default budget) "
            f"to {MAX_TIMEOUT_US} (an hour)"
        )


def check_priority(priority: int) -> None:
    """Validates the parameter `priority`. Raises Malformed."""
    if not 0 <= priority <= MAX_PRIORITY:
        raise Malformed(
            f"parameter 'priority' is {priority}; 0 is the default, 1 the highest, "
            f"{MAX_PRIORITY} the lowest of those above it"
        )


def json_tensor(name: str, raw: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Parses the `data` of one input; slower than oip_parser.py, but reports what is wrong.

    Raises Malformed.
    """
    size = math.prod(shape)
    if size > FULL_VALUES:  # parsing would take longer than any body may
        raise Malformed(
            f"input '{name}': data are not {size} numbers of its type and shape, or stand beside binary "
            f"data, where {FULL_VALUES} are allowed; send more of them as binary data, too"
        )
    # counted before parsing, which takes ten times as long; exact, as numbers contain no commas
    if len(raw) > COUNTED_BYTES and (found := count(raw, b",") + 1) != size:
        raise Malformed(f"input '{name}': {found} values in data, shape {list(shape)} takes {size}")
    nested = raw[1:].lstrip(b" \t\r\n").startswith(b"[")
    try:
        values = _numbers(raw, nested, dtype.kind)
    except msgspec.DecodeError as e:
        raise Malformed(f"input '{name}': data: {str(e).replace('`', '')}") from None
    if nested:
        rows, width = values, math.prod(shape[1:])
        if len(rows) != shape[0] or any(len(row) != width for row in rows):
            raise Malformed(f"input '{name}': nested data do not have shape {list(shape)}")
        values = list(chain.from_iterable(rows))
    if len(values) != size:
        raise Malformed(f"input '{name}': {len(values)} values in data, shape {list(shape)} takes {size}")
    try:
        array = np.array(values, np.float64 if dtype.kind == "f" else dtype)
    except OverflowError:
        raise _out_of_range(name) from None
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False).reshape(shape)


def _numbers(raw: bytes, nested: bool, kind: str) -> list[Any]:
    """Parses numbers or lists of numbers. kind: "f", or "i" for integers. Raises msgspec.DecodeError."""
    if kind == "i" or len(raw) <= ALWAYS_FAST_BYTES or (b"e" not in raw and b"E" not in raw):
        return (_NESTED if nested else _FLAT)[kind].decode(raw)  # type: ignore[no-any-return]
    # with exponents msgspec takes up to 31 us per number, orjson half a microsecond (json_numbers.py);
    # but orjson does not check types, so other values are detected by their bytes
    try:
        values: list[Any] = orjson.loads(raw)
    except orjson.JSONDecodeError as e:
        raise msgspec.DecodeError(e.msg) from None
    if type(values) is not list:
        raise msgspec.DecodeError("Expected array, got something else")
    if any(sign in raw for sign in (b'"', b"{", b"t", b"f", b"n")):
        raise msgspec.DecodeError("Expected float, got something else")
    if raw.find(b"[", 1) >= 0 and not (nested and all(map(_is_flat, values))):
        raise msgspec.DecodeError("Expected numbers or lists of them")
    return values


def _is_flat(row: Any) -> bool:
    return type(row) is list and list not in set(map(type, row))


def encode(
    request: InferRequest,
    probabilities: F32,
    model: str,
    version: str,
    path: str,
    quality: float | None = None,
    reason: str | None = None,
) -> tuple[bytes, int | None]:
    """Encodes an answer; returns the body and the length of its JSON part, None if it is all JSON.

    probabilities: float32 [B].
    quality: the path's quality, None if unknown.
    reason: why quality was degraded, None if it was not.
    """
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": [probabilities.size]}
    answer: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        answer["id"] = request.id
    answer["parameters"] = {"path": path, "degraded": reason is not None}
    if quality is not None:
        answer["parameters"]["quality"] = quality
    if reason is not None:
        answer["parameters"]["reason"] = reason
    answer["outputs"] = [output]
    if not request.binary_output:
        output["data"] = probabilities
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), None
    raw = probabilities.astype("<f4", copy=False).tobytes()
    output["parameters"] = {"binary_data_size": len(raw)}
    header = orjson.dumps(answer)
    return header + raw, len(header)
