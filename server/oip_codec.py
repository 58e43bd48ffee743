"""Open Inference Protocol tensors <-> rows and their probabilities (HTTP form).

A request is JSON, or JSON followed by raw little-endian tensors (the binary tensor extension). It
becomes a dictionary of named arrays, checked against what the model declares, and then rows of
stable ids. The declared inputs come from the schema:

    dense             FP32  [B, dense features]          in the order of the schema file
    sparse            INT64 [B, single-valued features]  stable ids, in the order of the schema file
    <feature>.values  INT64 [n]                          ids of a multi-valued feature, row by row
    <feature>.lengths INT64 or INT32 [B]                 how many of them each row has

An input of zero width may be left out. The two inputs of a multi-valued feature may be left out
together: its lists are then empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from models.batch import F32, I64
from models.schema import Schema
from planner.plan import Limits
from server.decode import explain_malformed
from server.errors import Malformed, TooLarge
from server.rows import Tensors

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
OUTPUT = "probability"

_FLAT: dict[str, msgspec.json.Decoder[Any]] = {
    "f": msgspec.json.Decoder(list[float]),
    "i": msgspec.json.Decoder(list[int]),
}
_NESTED: dict[str, msgspec.json.Decoder[Any]] = {
    "f": msgspec.json.Decoder(list[list[float]]),
    "i": msgspec.json.Decoder(list[list[int]]),
}


class TensorParameters(msgspec.Struct):
    """Parameters of one input or requested output; others are ignored, as the protocol asks."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: str | None = None


class TensorHeader(msgspec.Struct):
    """One input as it stands in the JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: TensorParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class OutputHeader(msgspec.Struct):
    """One requested output as it stands in the JSON."""

    name: str
    parameters: TensorParameters | None = None


class RequestParameters(msgspec.Struct):
    """timeout: microseconds, 0 is the default. priority: 0 is the default, 1 the highest."""

    timeout: int | None = None
    priority: int = 0
    binary_data_output: bool = False


class RequestHeader(msgspec.Struct):
    """The JSON of an inference request."""

    inputs: list[TensorHeader]
    id: str | None = None
    outputs: list[OutputHeader] | None = None
    parameters: RequestParameters | None = None


_REQUEST = msgspec.json.Decoder(RequestHeader)


@dataclass(frozen=True, slots=True)
class Declared:
    """One input of the model: its type (`INT32` is also read for lengths) and shape, -1 for any."""

    name: str
    datatype: Literal["FP32", "INT64"]
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def accepted(self) -> tuple[str, ...]:
        return ("INT64", "INT32") if self.name.endswith(".lengths") else (self.datatype,)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What a client asked: rows, and the form of the answer. timeout_us 0: the default budget."""

    rows: Tensors
    id: str | None
    binary_output: bool
    timeout_us: int
    priority: int


class OipCodec:
    """Reads the inference requests of one schema."""

    def __init__(self, schema: Schema, limits: Limits) -> None:
        self._limits = limits
        self._dense = len(schema.dense)
        singles = [f for f in schema.categorical if not f.multi]
        self._singles = len(singles)
        self._bags = tuple(f.name for f in schema.categorical if f.multi)
        inputs = [
            Declared("dense", "FP32", (-1, self._dense), optional=not self._dense),
            Declared("sparse", "INT64", (-1, self._singles), optional=not self._singles),
        ]
        for name in self._bags:
            inputs.append(Declared(f"{name}.values", "INT64", (-1,), optional=True))
            inputs.append(Declared(f"{name}.lengths", "INT64", (-1,), optional=True))
        self.inputs: tuple[Declared, ...] = tuple(d for d in inputs if d.shape[-1] != 0)
        self._known = {d.name: d for d in inputs}

    def decode(self, body: bytes, header_bytes: int | None) -> InferRequest:
        """body: decompressed; header_bytes: length of its JSON, None if the JSON is all of it, 0 raw.

        Raises Malformed (400) naming the input, or TooLarge.
        """
        if header_bytes == 0:
            return InferRequest(self._rows(self._raw(body)), None, True, 0, 0)
        if header_bytes is not None and header_bytes > len(body):
            raise Malformed(
                f"Inference-Header-Content-Length is {header_bytes}, the body has {len(body)} bytes"
            )
        header = body if header_bytes is None else body[:header_bytes]
        try:
            request = _REQUEST.decode(header)
        except msgspec.ValidationError as e:
            raise Malformed(str(e).replace("`", "")) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Malformed(explain_malformed(header, str(e))) from None
        except RecursionError:
            raise Malformed("the body is nested too deeply") from None
        parameters = request.parameters or RequestParameters()
        if parameters.timeout is not None and not 0 <= parameters.timeout < 2**63:
            raise Malformed(f"parameter 'timeout' is {parameters.timeout}; it is microseconds, 0 or more")
        if parameters.priority < 0:
            raise Malformed(f"parameter 'priority' is {parameters.priority}; 0 is the default, 1 the highest")
        binary_output = self._outputs(request.outputs, parameters.binary_data_output)
        tensors = self._tensors(request.inputs, memoryview(body)[len(header) :])
        return InferRequest(
            self._rows(tensors), request.id, binary_output, parameters.timeout or 0, parameters.priority
        )

    def _outputs(self, outputs: Sequence[OutputHeader] | None, by_default: bool) -> bool:
        """Whether the one output goes back as binary data."""
        binary = by_default
        for i, output in enumerate(outputs or ()):
            if output.name != OUTPUT or i:
                raise Malformed(
                    f"unknown output '{output.name}'; the model has one output, '{OUTPUT}'"
                    if not i
                    else f"output '{output.name}' is asked for more than once or unknown"
                )
            asked = output.parameters or TensorParameters()
            if asked.classification is not None:
                raise Malformed(f"output '{OUTPUT}': the classification extension is not supported")
            if asked.shared_memory_region is not None:
                raise Malformed(f"output '{OUTPUT}': shared memory is not supported")
            if asked.binary_data is not None:
                binary = asked.binary_data
        return binary

    def _tensors(self, headers: Sequence[TensorHeader], rest: memoryview) -> dict[str, Array]:
        tensors: dict[str, Array] = {}
        for header in headers:
            declared = self._known.get(header.name)
            if declared is None:
                names = ", ".join(d.name for d in self.inputs)
                raise Malformed(f"unknown input '{header.name}'; the model has {names}")
            if header.name in tensors:
                raise Malformed(f"input '{header.name}' is given twice")
            shape = self._shape(declared, header)
            asked = header.parameters or TensorParameters()
            if asked.shared_memory_region is not None:
                raise Malformed(f"input '{header.name}': shared memory is not supported")
            size = asked.binary_data_size
            raw = bytes(header.data)
            if (size is None) == (not raw):
                raise Malformed(f"input '{header.name}' needs either data or parameter binary_data_size")
            dtype = DTYPES[header.datatype]
            if size is None:
                tensors[header.name] = _json_tensor(header.name, raw, shape, dtype)
                continue
            if size != math.prod(shape) * dtype.itemsize:
                raise Malformed(
                    f"input '{header.name}': binary_data_size is {size}, "
                    f"{header.datatype} {list(shape)} takes {math.prod(shape) * dtype.itemsize} bytes"
                )
            if size > len(rest):
                raise Malformed(
                    f"input '{header.name}': {size} bytes announced, {len(rest)} are left in the body"
                )
            tensors[header.name] = np.frombuffer(rest[:size], dtype).reshape(shape)
            rest = rest[size:]
        if len(rest):
            raise Malformed(f"{len(rest)} bytes follow the last input's data")
        return tensors

    def _shape(self, declared: Declared, header: TensorHeader) -> tuple[int, ...]:
        if header.datatype not in declared.accepted:
            raise Malformed(
                f"input '{header.name}' has datatype {header.datatype}; "
                f"expected {' or '.join(declared.accepted)}"
            )
        shape = tuple(header.shape)
        # A batch of scalars is [B]; clients that give every input a batch dimension send [B, 1].
        if len(declared.shape) == 1 and len(shape) == 2 and shape[1] == 1:
            shape = shape[:1]
        wrong = len(shape) != len(declared.shape) or any(
            n < 0 or n >= 2**40 or want not in (-1, n) for n, want in zip(shape, declared.shape, strict=False)
        )
        if wrong:
            raise Malformed(
                f"input '{header.name}' has shape {header.shape}; expected {list(declared.shape)}"
            )
        return shape

    def _raw(self, body: bytes) -> dict[str, Array]:
        """A body of nothing but tensors: all rows of `dense`, then all rows of `sparse`."""
        row_bytes = 4 * self._dense + 8 * self._singles
        if not row_bytes or not body or len(body) % row_bytes:
            raise Malformed(
                f"a raw request is whole rows of {row_bytes} bytes "
                f"(dense FP32 [{self._dense}], then sparse INT64 [{self._singles}]), not {len(body)} bytes"
            )
        rows = len(body) // row_bytes
        dense = np.frombuffer(body, "<f4", rows * self._dense).reshape(rows, self._dense)
        sparse = np.frombuffer(body, "<i8", rows * self._singles, offset=dense.nbytes)
        return {"dense": dense, "sparse": sparse.reshape(rows, self._singles)}

    def _rows(self, tensors: Mapping[str, Array]) -> Tensors:
        rows = self._count(tensors)
        dense = tensors.get("dense")
        sparse = tensors.get("sparse")
        if dense is None:
            dense = np.empty((rows, 0), np.float32)
        if sparse is None:
            sparse = np.empty((rows, 0), np.int64)
        bags: dict[str, tuple[I64, I64]] = {}
        for name in self._bags:
            values, lengths = tensors.get(f"{name}.values"), tensors.get(f"{name}.lengths")
            if (values is None) != (lengths is None):
                given, absent = ("lengths", "values") if values is None else ("values", "lengths")
                raise Malformed(f"input '{name}.{given}' is given without '{name}.{absent}'")
            if values is None or lengths is None:
                values, lengths = np.empty(0, np.int64), np.zeros(rows, np.int64)
            # Here, not after merging: there one query's surplus could hide another's lack.
            if int(lengths.sum()) != values.size:
                raise Malformed(
                    f"input '{name}.lengths' adds up to {int(lengths.sum())}, "
                    f"'{name}.values' has {values.size}"
                )
            bags[name] = values, lengths.astype(np.int64, copy=False)
        return Tensors(dense, sparse, bags, rows)

    def _count(self, tensors: Mapping[str, Array]) -> int:
        """The number of rows on which all inputs agree."""
        rows: int | None = None
        first = ""
        for declared in self.inputs:
            tensor = tensors.get(declared.name)
            if tensor is None:
                if not declared.optional:
                    raise Malformed(f"input '{declared.name}' is missing")
                continue
            if declared.name.endswith(".values"):
                continue
            if rows is not None and len(tensor) != rows:
                raise Malformed(f"input '{declared.name}' has {len(tensor)} rows, '{first}' has {rows}")
            rows, first = len(tensor), declared.name
        if not rows:
            raise Malformed("the request has no rows")
        if rows > self._limits.max_request_rows:
            raise TooLarge(f"the request has {rows} rows; the limit is {self._limits.max_request_rows}")
        return rows


def _json_tensor(name: str, raw: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """`data` of one input, flat or nested in row-major order -> an array of `shape`."""
    nested = raw[1:].lstrip(b" \t\r\n").startswith(b"[")
    values: list[Any]
    try:
        if nested:
            rows = _NESTED[dtype.kind].decode(raw)
            values = list(chain.from_iterable(rows))
            width = math.prod(shape[1:])
            if len(rows) != shape[0] or any(len(row) != width for row in rows):
                raise Malformed(f"input '{name}': nested data do not have shape {list(shape)}")
        else:
            values = _FLAT[dtype.kind].decode(raw)
    except msgspec.DecodeError as e:
        raise Malformed(f"input '{name}': data: {str(e).replace('`', '')}") from None
    if len(values) != math.prod(shape):
        raise Malformed(
            f"input '{name}': {len(values)} values in data, shape {list(shape)} takes {math.prod(shape)}"
        )
    try:
        array = np.array(values, np.float64 if dtype.kind == "f" else dtype)
    except OverflowError:
        raise Malformed(f"input '{name}': a value is beyond the range of the datatype") from None
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False).reshape(shape)


def encode(
    request: InferRequest, probabilities: F32, model: str, version: str, path: str
) -> tuple[bytes, int | None]:
    """probabilities: float32 [B] -> (body, length of its JSON if binary data follow)."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": [probabilities.size]}
    answer: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        answer["id"] = request.id
    answer["parameters"] = {"path": path, "reduced": False}
    answer["outputs"] = [output]
    if not request.binary_output:
        output["data"] = probabilities
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), None
    raw = probabilities.astype("<f4", copy=False).tobytes()
    output["parameters"] = {"binary_data_size": len(raw)}
    header = orjson.dumps(answer)
    return header + raw, len(header)
