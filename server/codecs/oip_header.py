"""The JSON of an inference request: what it says of each input and output, and its parameters."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

MAX_DIMENSIONS = 8


class TensorParameters(msgspec.Struct):
    """Parameters of one input or requested output; others are ignored, as the protocol requires."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: str | None = None


class TensorHeader(msgspec.Struct):
    """One input in the JSON."""

    name: str
    shape: Annotated[list[int], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    datatype: str
    parameters: TensorParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class OutputHeader(msgspec.Struct):
    """One requested output as it stands in the JSON."""

    name: str
    parameters: TensorParameters | None = None


class RequestParameters(msgspec.Struct):
    """timeout: microseconds, 0 is the default. priority: 0 is the default, 1 the highest.

    quality: `required` forbids a path of lower quality than the best one.
    """

    timeout: int | None = None
    priority: int = 0
    quality: Literal["any", "required"] = "any"
    binary_data_output: bool = False


class RequestHeader(msgspec.Struct):
    """The JSON of an inference request."""

    inputs: list[TensorHeader]
    id: str | None = None
    outputs: list[OutputHeader] | None = None
    parameters: RequestParameters | None = None
