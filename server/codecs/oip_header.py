"""Typed structs for the JSON of an Open Inference Protocol request, apart from the tensors' data."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MAX_DIMENSIONS = 8


class TensorParameters(msgspec.Struct):
    """Parameters of one input or requested output. Unknown ones are ignored, as the protocol requires."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: str | None = None


class TensorHeader(msgspec.Struct):
    """One input of the request."""

    name: str
    shape: Annotated[list[int], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    datatype: str
    parameters: TensorParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class OutputHeader(msgspec.Struct):
    """One requested output."""

    name: str
    parameters: TensorParameters | None = None


class RequestParameters(msgspec.Struct):
    """Parameters of the request.

    timeout: latency budget in microseconds, 0 for the default.
    priority: 1 is the highest, 0 the default.
    quality: `required` forbids paths of lower quality than the best one.
    """

    timeout: int | None = None
    priority: int = 0
    quality: Literal["any", "required"] = "any"
    binary_data_output: bool = False


class RequestHeader(msgspec.Struct):
    """The JSON of an inference request without the tensors' data."""

    inputs: list[TensorHeader]
    id: str | None = None
    outputs: list[OutputHeader] | None = None
    parameters: RequestParameters | None = None
