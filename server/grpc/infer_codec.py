"""Decodes ModelInfer requests and encodes their responses.

Tensors are raw little-endian bytes (`raw_input_contents` for all inputs in order) or typed numbers
(`contents` of each input). `server/codecs/oip_inputs.py` converts them to rows, as for HTTP. The output of a
response has the same form as the request's inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from starlette.types import Scope

from polyrec.server.app.engine import Engine
from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.codecs.oip_codec import (
    DTYPES,
    OUTPUT,
    check_priority,
    check_timeout_us,
)
from polyrec.server.codecs.oip_header import MAX_DIMENSIONS
from polyrec.server.codecs.oip_inputs import Array, TensorSpec
from polyrec.server.dispatch.answer import Answer
from polyrec.server.errors import Malformed, TooLarge, shortened
from polyrec.server.grpc.fields import COUNTED_FROM_BYTES, check_fields, nested_fields
from polyrec.server.grpc.messages import message_class
from polyrec.server.http.call import Parsed
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.options import RequestOptions, parse_quality
from polyrec.server.repository.repository import ModelRepository

REQUEST = message_class("ModelInferRequest")
RESPONSE = message_class("ModelInferResponse")
PROTOBUF = b"application/grpc"
CONTENTS = {"FP32": "fp32_contents", "INT64": "int64_contents", "INT32": "int_contents"}
"""Datatype -> name of the field with its typed numbers."""
SHARED_MEMORY = "shared_memory_region"
NESTED = nested_fields(REQUEST.DESCRIPTOR)
MIN_FIELDS, FIELDS_OF_INPUT = 1024, 32
"""Maximum fields of a request outside of its inputs, and per input."""
MAX_BYTES = 2**14
"""Maximum size of messages of other types, which contain just a few names."""
FINAL_WANTED, FINAL = "triton_enable_empty_final_response", "triton_final_response"
"""Parameters by which Triton's clients ask a stream to mark the last response of a request."""


@dataclass(frozen=True, slots=True)
class InferForm:
    """The parts of a request that determine the form of its response. raw: whether its inputs were raw."""

    id: str
    raw: bool
    marks_final: bool = False


class GrpcInferCodec:
    """Codec between serialized ModelInferRequest and ModelInferResponse.

    Per request: `read`, then `parse`.
    """

    endpoint = "infer"
    has_options = True

    def __init__(self) -> None:
        self._request: Any = None

    def read(self, body: bytes, models: ModelRepository) -> Engine:
        """Parses the message and returns the engine of its model. Raises RequestError."""
        request = self._request = parse_request(models, body)
        engine = models.find(request.model_name)  # `parse` checks the version
        # the port's limit is that of the model with the largest requests
        limit = engine.serving.max_body_bytes
        if len(body) > limit:
            raise TooLarge(f"the message has more than {limit} bytes")
        return engine

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        request, self._request = self._request, None
        # another plan may have been loaded since the message was read
        serving.model.check(request.model_name, request.model_version or None)
        options = _options(request.parameters)
        _check_outputs(request.outputs)
        raw = len(request.raw_input_contents) > 0
        tensors = _raw_tensors(serving, request) if raw else _typed_tensors(serving, request)
        wanted = request.parameters
        marks_final = FINAL_WANTED in wanted and wanted[FINAL_WANTED].bool_param
        form = InferForm(request.id, raw, marks_final)
        rows = serving.oip_codec.inputs.rows(tensors)
        return Parsed(rows, form, options, bool(request.model_version), request.id)

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        form: InferForm = parsed.reply_form
        response = RESPONSE(model_name=serving.model.name, model_version=serving.model.number, id=form.id)
        parameters = response.parameters
        parameters["path"].string_param = path.name
        parameters["degraded"].bool_param = answer.degraded
        trailing = [path.header, (b"x-polyrec-degraded", b"true" if answer.degraded else b"false")]
        if path.quality is not None:
            parameters["quality"].double_param = path.quality
            trailing.append((b"x-polyrec-path-quality", repr(path.quality).encode()))
        if answer.reason is not None:
            parameters["reason"].string_param = answer.reason
            trailing.append((b"x-polyrec-reason", answer.reason.encode()))
        if form.marks_final:
            parameters[FINAL].bool_param = True
        probabilities = answer.probabilities
        output = response.outputs.add(name=OUTPUT, datatype="FP32")
        output.shape.append(probabilities.size)
        if form.raw:
            response.raw_output_contents.append(probabilities.astype("<f4", copy=False).tobytes())
        else:
            output.contents.fp32_contents.extend(probabilities.tolist())
        return Reply(response.SerializeToString(), content_type=PROTOBUF, headers=tuple(trailing))


def parse_request(models: ModelRepository, body: bytes) -> Any:
    """Parses a ModelInferRequest. Raises Malformed, or TooLarge if it has more fields than any valid one."""
    if len(body) >= COUNTED_FROM_BYTES:
        # the model is known only after parsing, so use the maximum over all models
        inputs = max(_inputs_of(engine.serving) for engine in models.engines)
        check_fields(body, NESTED, MIN_FIELDS + FIELDS_OF_INPUT * inputs)
    return _parsed(REQUEST, body)


def parse_message(kind: Any, body: bytes) -> Any:
    """Parses a message of any other type. kind: its class. Raises Malformed or TooLarge."""
    if len(body) > MAX_BYTES:
        raise TooLarge(f"the message has {len(body)} bytes; the limit for this kind is {MAX_BYTES}")
    return _parsed(kind, body)


def _inputs_of(serving: Serving) -> int:
    """Returns the maximum number of inputs in a request to this model."""
    inputs = serving.oip_codec.inputs
    return len(inputs.plain) + len(inputs.ranking)


def _parsed(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError:
        raise Malformed(f"the message is not a {kind.DESCRIPTOR.name}") from None


def _options(parameters: Mapping[str, Any]) -> RequestOptions:
    """Returns the options among the parameters; unknown ones are ignored, as the protocol requires."""
    budget_s = priority = best_only = None
    if "timeout" in parameters:
        timeout_us = _integer(parameters, "timeout")
        check_timeout_us(timeout_us)
        budget_s = timeout_us / 1e6 if timeout_us else None
    if "priority" in parameters:
        priority = _integer(parameters, "priority")
        check_priority(priority)
    if "quality" in parameters:
        quality = parameters["quality"]
        if quality.WhichOneof("parameter_choice") != "string_param":
            raise Malformed("parameter 'quality' is not a string")
        best_only = parse_quality(quality.string_param.encode(), "parameter 'quality'")
    return RequestOptions(budget_s, priority, best_only)


def _integer(parameters: Mapping[str, Any], name: str) -> int:
    """Returns an integer parameter, for which clients use different types. Raises Malformed."""
    parameter = parameters[name]
    choice = parameter.WhichOneof("parameter_choice")
    if choice not in ("int64_param", "uint64_param"):
        raise Malformed(f"parameter '{name}' is not an integer")
    return int(getattr(parameter, choice))


def _check_outputs(outputs: Any) -> None:
    if len(outputs) > 1:
        raise Malformed(f"{len(outputs)} outputs are requested; the model has one, '{OUTPUT}'")
    for output in outputs:
        if output.name != OUTPUT:
            raise Malformed(
                f"unknown output '{shortened(output.name)}'; the model has one output, '{OUTPUT}'"
            )
        if "classification" in output.parameters:
            raise Malformed(f"output '{OUTPUT}': the classification extension is not supported")
        if SHARED_MEMORY in output.parameters:
            raise Malformed(f"output '{OUTPUT}': shared memory is not supported")


def _declared(
    serving: Serving, tensor: Any, found: Mapping[str, Array]
) -> tuple[TensorSpec, tuple[int, ...]]:
    """Returns the declaration of an input and the shape to use. Raises Malformed or TooLarge."""
    inputs = serving.oip_codec.inputs
    declared = inputs.declared(tensor.name)
    if declared.name in found:
        raise Malformed(f"input '{declared.name}' is given twice")
    if SHARED_MEMORY in tensor.parameters:
        raise Malformed(f"input '{declared.name}': shared memory is not supported")
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise Malformed(f"input '{declared.name}' has {len(tensor.shape)} dimensions")
    return declared, inputs.check_shape(declared, tensor.datatype, tensor.shape)


def _raw_tensors(serving: Serving, request: Any) -> dict[str, Array]:
    raw = request.raw_input_contents
    if len(raw) != len(request.inputs):
        raise Malformed(
            f"{len(request.inputs)} inputs have {len(raw)} raw_input_contents; all inputs are raw, or none"
        )
    tensors: dict[str, Array] = {}
    for tensor, data in zip(request.inputs, raw, strict=True):
        declared, shape = _declared(serving, tensor, tensors)
        name, datatype = declared.name, tensor.datatype
        if tensor.HasField("contents") and tensor.contents.ByteSize():
            raise Malformed(f"input '{name}' has contents and raw_input_contents")
        dtype = DTYPES[datatype]
        expected = math.prod(shape) * dtype.itemsize
        if len(data) != expected:
            raise Malformed(
                f"input '{name}': {len(data)} bytes of raw_input_contents, "
                f"{datatype} {list(shape)} takes {expected}"
            )
        tensors[name] = np.frombuffer(data, dtype).reshape(shape)
    return tensors


def _typed_tensors(serving: Serving, request: Any) -> dict[str, Array]:
    max_values = left = serving.json_decoder.body_limits.max_tensor_commas
    tensors: dict[str, Array] = {}
    for tensor in request.inputs:
        declared, shape = _declared(serving, tensor, tensors)
        name, datatype = declared.name, tensor.datatype
        field = CONTENTS[datatype]
        values = getattr(tensor.contents, field)
        if len(values) != math.prod(shape):
            raise Malformed(
                f"input '{name}': {len(values)} values in {field}, "
                f"shape {list(shape)} takes {math.prod(shape)}"
            )
        # each value becomes a Python object on the event loop
        left -= len(values)
        if left < 0:
            raise TooLarge(
                f"the request has more than {max_values} typed values; send fewer rows, or raw_input_contents"
            )
        tensors[name] = np.fromiter(values, DTYPES[datatype], len(values)).reshape(shape)
    return tensors
