"""Parses an ordinary inference request in JSON in one pass, with numbers written directly to buffers.

This is a fast path for oip_codec.py. simdjson reads the body once, whereas msgspec skips the data of each
tensor byte by byte and then reads it again, which takes 1.3 to 2 times as long for 270 to 2,048 rows. It
handles only tensors with a name, a shape, a datatype and data that is flat or one list per row, and
parameters that do not move the data elsewhere. All other requests, valid or not, are left to the slower
parser in oip_codec.py, which reports what is wrong and is the reference in tests.

simdjson flattens nested lists in silence and takes the first of two equal keys. So keys are counted, and so
are opening brackets: with one for each list that was looked at, there are no others, and none in a name.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from polyrec.server.codecs.body_limits import count
from polyrec.server.codecs.oip_header import (
    MAX_DIMENSIONS,
    RequestHeader,
    TensorHeader,
    TensorParameters,
)

KINDS = {"FP32": "d", "INT64": "i", "INT32": "i"}
"""simdjson buffer type by datatype: float64 or int64."""
TYPES: dict[str, Any] = {"d": np.float64, "i": np.int64}
TENSOR_KEYS = 4
ONLY_INTEGERS = {int}


class ParsedRequest(NamedTuple):
    """A request, and each input's data as float64 or int64 [values], whose number matches its shape."""

    header: RequestHeader
    data: tuple[NDArray[Any], ...]


class RequestParser:
    """Parses requests. Retains the memory of the largest one. Not thread-safe."""

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def parse(self, body: bytes) -> ParsedRequest | None:
        """Returns the request, None if it is not an ordinary one."""
        try:
            # the document is dropped on return: a parser refuses to parse while its last one is referenced
            return _request(self._parser.parse(body), body)
        except (ValueError, TypeError, LookupError, RuntimeError, AttributeError, msgspec.ValidationError):
            return None


def _request(document: Any, body: bytes) -> ParsedRequest | None:
    """Reads the document of a body."""
    headers, data = [], []
    seen = 1
    for given in document["inputs"]:
        name, datatype = given["name"], given["datatype"]
        shape, values = given["shape"].as_list(), given["data"]
        if len(given) != TENSOR_KEYS and not _has_only_plain_parameters(given):
            return None
        if type(name) is not str or not 0 < len(shape) <= MAX_DIMENSIONS:
            return None
        if set(map(type, shape)) != ONLY_INTEGERS or (size := math.prod(shape)) <= 0:
            return None
        seen += 2
        if isinstance(values[0], simdjson.Array):
            rows, width = shape[0], size // shape[0]
            if len(values) != rows or any(len(row) != width for row in values):
                return None
            seen += rows
        kind = KINDS[datatype]
        numbers = np.frombuffer(values.as_buffer(of_type=kind), TYPES[kind])
        if numbers.size != size:
            return None
        headers.append(TensorHeader(name, shape, datatype))
        data.append(numbers)
    if len(document) == 1:
        header = RequestHeader(headers)
    else:
        others = {key: _value(value) for key, value in document.items() if key != "inputs"}
        if len(others) != len(document) - 1:
            return None
        header = msgspec.convert({"inputs": [], **others}, RequestHeader)
        header.inputs = headers
        seen += _brackets(others, escapes=b"\\" in body)
    return ParsedRequest(header, tuple(data)) if seen == count(body, b"[") else None


def _brackets(others: dict[str, Any], escapes: bool) -> int:
    """Opening brackets beside the inputs. escapes: whether the body has any, which may be of a bracket."""
    return isinstance(others.get("outputs"), list) if escapes else orjson.dumps(others).count(b"[")


def _has_only_plain_parameters(tensor: Any) -> bool:
    """Whether a tensor's only extra key is `parameters`, and these do not move its data elsewhere."""
    if len(tensor) != TENSOR_KEYS + 1:
        return False
    given = tensor["parameters"]
    if given is None:  # clients that write every field
        return True
    parameters = msgspec.convert(given.as_dict(), TensorParameters)
    return parameters.binary_data_size is None and parameters.shared_memory_region is None


def _value(value: Any) -> Any:
    """Converts a simdjson value to Python objects."""
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value
