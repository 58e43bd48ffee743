"""A real server that speaks gRPC, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from polyrec.server.child import ServerProcess
from polyrec.server.grpc.messages import SERVICE, message_class
from tests.forking import start

Arrays = dict[str, Any]
DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64", np.dtype(np.int32): "INT32"}
FIELDS = {"FP32": "fp32_contents", "INT64": "int64_contents", "INT32": "int_contents"}
STREAMS = ("ModelStreamInfer",)


class Stub:
    """Calls the methods of the inference service with messages of ours."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def method(self, name: str) -> Any:
        """A method's callable: serializes requests, parses responses."""
        kind = "ModelInfer" if name == "ModelStreamInfer" else name
        make = self.channel.stream_stream if name in STREAMS else self.channel.unary_unary
        return make(
            f"/{SERVICE}/{name}",
            request_serializer=message_class(f"{kind}Request").SerializeToString,
            response_deserializer=message_class(f"{name}Response").FromString,
        )

    def ask(self, method: str, /, timeout: float | None = 30, metadata: Any = (), **fields: Any) -> Any:
        """The response of a method to a request of these fields."""
        return self.method(method)(
            message_class(f"{method}Request")(**fields), timeout=timeout, metadata=metadata
        )

    def infer(self, request: Any, timeout: float | None = 30, metadata: Any = ()) -> Any:
        return self.method("ModelInfer")(request, timeout=timeout, metadata=metadata)


def infer_request(arrays: Arrays, raw: bool = True, **fields: Any) -> Any:
    """A request with these inputs."""
    request = message_class("ModelInferRequest")(**{"model_name": "dlrm", **fields})
    for name, array in arrays.items():
        tensor = request.inputs.add(name=name, datatype=DATATYPES[array.dtype], shape=array.shape)
        if raw:
            request.raw_input_contents.append(array.tobytes())
        else:
            getattr(tensor.contents, FIELDS[tensor.datatype]).extend(array.ravel().tolist())
    return request


def probabilities(response: Any) -> Any:
    """The output of a response, float32 [rows]."""
    (output,) = response.outputs
    assert (output.name, output.datatype) == ("probability", "FP32")
    if response.raw_output_contents:
        values = np.frombuffer(response.raw_output_contents[0], "<f4")
    else:
        values = np.array(output.contents.fp32_contents, np.float32)
    assert list(output.shape) == [values.size]
    return values


@pytest.fixture(scope="session")
def grpc_server(bundle_dir: Path) -> Iterator[ServerProcess]:
    """A server with both ports."""
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000, "grpc_port": 0}
    with start(settings | {"open_rights": "priority,quality"}) as child:
        yield child


@pytest.fixture
def stub(grpc_server: ServerProcess) -> Iterator[Stub]:
    assert grpc_server.grpc is not None
    with grpc.insecure_channel(grpc_server.grpc) as channel:
        yield Stub(channel)


@pytest.fixture
def refused() -> Callable[..., grpc.RpcError]:
    """Calls that must fail: the error, with `code()`, `details()` and `trailing_metadata()`."""

    def ask(call: Callable[..., Any], *arguments: Any, **named: Any) -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as caught:
            call(*arguments, **named)
        return caught.value

    return ask
