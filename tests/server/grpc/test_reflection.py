"""Reflection, by the messages of gRPC's own package, as grpcurl asks."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as messages

from polyrec.server.grpc.messages import SERVICE
from polyrec.server.grpc.reflection import NAMES
from tests.server.grpc.conftest import Stub


@pytest.mark.parametrize("service", NAMES)
def test_services_and_their_definitions_are_found(stub: Stub, service: str) -> None:
    ask = stub.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        messages.ServerReflectionRequest.SerializeToString,
        messages.ServerReflectionResponse.FromString,
    )
    symbols = (SERVICE, "grpc.health.v1.Health", "nothing.Here")
    requests = [
        messages.ServerReflectionRequest(list_services=""),
        *(messages.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols),
    ]
    listed, inference, health, nothing = ask(iter(requests), timeout=30)
    assert {s.name for s in listed.list_services_response.service} >= set(symbols[:2])
    files = [
        FileDescriptorProto.FromString(file)
        for file in inference.file_descriptor_response.file_descriptor_proto
    ]
    assert {file.name for file in files} == {"grpc_service.proto", "model_config.proto"}
    assert health.file_descriptor_response.file_descriptor_proto
    assert nothing.error_response.error_code == 5
