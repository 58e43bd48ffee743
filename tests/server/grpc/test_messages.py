from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from polyrec.server.grpc.messages import DESCRIPTORS, message_class, message_of


def test_the_descriptors_are_those_of_the_published_definition(tmp_path: Path) -> None:
    made = tmp_path / "made.binpb"
    options = ("--include_imports", f"--descriptor_set_out={made}", f"-I{DESCRIPTORS.parent}")
    command = [sys.executable, "-m", "grpc_tools.protoc", *options, "grpc_service.proto"]
    subprocess.run(command, check=True)
    assert FileDescriptorSet.FromString(made.read_bytes()) == (
        FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    )


def test_the_definition_keeps_its_license() -> None:
    for file in DESCRIPTORS.parent.glob("*.proto"):
        assert "Redistribution and use in source and binary forms" in file.read_text()


def test_a_message_is_made_of_a_document_of_its_fields() -> None:
    message = message_of("ServerMetadataResponse", {"name": "polyrec", "extensions": ["statistics"]})
    assert message_class("ServerMetadataResponse").FromString(message.SerializeToString()) == message
    with pytest.raises(Exception, match="no field named"):
        message_of("ServerMetadataResponse", {"color": "red"})
