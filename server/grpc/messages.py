"""Creates the message classes of the inference protocol from its published definition, without generated
code.

grpc_service.proto and model_config.proto come from Triton (github.com/triton-inference-server/common, BSD
3-Clause) and are a superset of the Open Inference Protocol with the same field numbers. inference.binpb is
compiled from them:

    python -m grpc_tools.protoc -I server/grpc --include_imports \\
        --descriptor_set_out server/grpc/inference.binpb grpc_service.proto

The classes are in a separate descriptor pool, because clients (tritonclient, kserve) register messages of the
same names in the default pool, where a second definition is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

DESCRIPTORS = Path(__file__).parent / "inference.binpb"
SERVICE = "inference.GRPCInferenceService"


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return pool


POOL = _pool()


def message_class(name: str) -> Any:
    """Returns the class of a message in package `inference`. Raises KeyError for an unknown name."""
    return GetMessageClass(POOL.FindMessageTypeByName(f"inference.{name}"))


def message_of(name: str, document: Mapping[str, Any]) -> Any:
    """Converts a JSON document, whose keys are the definition's field names, to a message."""
    return ParseDict(document, message_class(name)())
