"""Fields are counted as protobuf counts them, and no message of a hostile client is parsed at length."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from polyrec.planner.plan import single_path_plan
from polyrec.server.app.engine import Engine
from polyrec.server.errors import Malformed, TooLarge
from polyrec.server.grpc.fields import COUNTED_FROM_BYTES, check_fields, nested_fields
from polyrec.server.grpc.infer_codec import FIELDS_OF_INPUT, MIN_FIELDS, parse_request
from polyrec.server.grpc.messages import SERVICE, message_class
from polyrec.server.repository.repository import ModelRepository
from tests.server.grpc.conftest import Stub

NESTED = nested_fields(message_class("ModelInferRequest").DESCRIPTOR)
ENOUGH = 2**20


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def field(number: int, content: bytes) -> bytes:
    """A field that is a message, a string or a list."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def is_within(message: bytes, most: int) -> bool:
    try:
        check_fields(message, NESTED, most)
    except TooLarge:
        return False
    return True


def counted(message: bytes) -> int:
    """The number of fields by the limits that a message keeps."""
    low, high = 0, ENOUGH
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_within(message, middle) else (middle + 1, high)
    return low


def reference(message: bytes, nested: Any = NESTED) -> int:
    """The number of fields by protobuf's own reader of unknown fields."""
    total = 0
    for each in UnknownFieldSet(Empty.FromString(message)):
        total += 1
        if each.wire_type == 2 and each.field_number in nested:
            inner = nested[each.field_number]
            total += len(each.data) if inner is None else reference(each.data, inner)
    return total


def random_message(rng: random.Random, nested: Any, depth: int) -> bytes:
    pieces = []
    for _ in range(rng.randrange(6)):
        number = rng.choice([*nested, 1, 7, 2**20])
        kind = rng.choice((0, 1, 2, 2, 2, 5))
        if kind == 2:
            inner = nested.get(number) if number in nested else None
            known = inner is not None and depth > 0
            content = random_message(rng, inner, depth - 1) if known else b""
            pieces.append(field(number, content or (b"" if inner is not None else rng.randbytes(3))))
        else:
            value = (
                varint(rng.getrandbits(rng.randrange(1, 64))) if kind == 0 else bytes(8 if kind == 1 else 4)
            )
            pieces.append(varint(number << 3 | kind) + value)
    return b"".join(pieces)


def test_fields_are_counted_as_protobuf_counts_them() -> None:
    rng = random.Random(0)
    messages = [random_message(rng, NESTED, 4) for _ in range(300)]
    assert max(map(len, messages)) > 100
    for message in messages:
        assert counted(message) == reference(message), message


def test_whatever_the_bytes_are_nothing_else_than_a_refusal_comes_of_them() -> None:
    rng = random.Random(1)
    valid = random_message(rng, NESTED, 4) + field(5, field(1, b"dense"))
    for _ in range(2000):
        broken = bytearray(valid)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        broken = broken[: rng.randrange(1, len(broken) + 1)]
        try:
            check_fields(bytes(broken), NESTED, ENOUGH)
        except Malformed:
            with pytest.raises(DecodeError):
                message_class("ModelInferRequest").FromString(bytes(broken))


EMPTY = {
    "inputs": field(5, b"") * 2**19,
    "tensors": field(7, b"") * 2**19,
    "outputs": field(6, b"") * 2**19,
    "parameters": field(4, b"") * 2**19,
    "parameters of an input": field(5, field(4, b"") * 2**18),
    "a long shape": field(5, field(3, bytes(2**19))),
    "a shape number by number": field(5, b"\x18\x01" * 2**18),
    "numbers one by one": field(5, field(5, b"\x18\x01" * 2**18)),
    "unknown fields": b"\x98\x06\x01" * 2**18,
}


@pytest.mark.parametrize("kind", EMPTY)
def test_a_message_of_many_small_fields_is_refused(
    stub: Stub, refused: Callable[..., Any], kind: str
) -> None:
    message = EMPTY[kind][: 2**20]
    assert message_class("ModelInferRequest").FromString(message) is not None
    error = refused(stub.channel.unary_unary(f"/{SERVICE}/ModelInfer"), message, timeout=60)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "fields" in error.details()


@pytest.mark.parametrize("method", ["ServerLive", "ModelReady", "ModelConfig"])
def test_a_message_of_a_few_names_is_short(stub: Stub, refused: Callable[..., Any], method: str) -> None:
    error = refused(stub.channel.unary_unary(f"/{SERVICE}/{method}"), field(9, bytes(2**15)), timeout=60)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the limit for this kind is 16384" in error.details()


def test_field_limit_is_that_of_the_model_with_most_inputs(bundle_dir: Path, shop_dir: Path) -> None:
    hotels = Engine("hotels")
    shop = Engine("shop", sibling=hotels)
    both = ModelRepository((hotels, shop))
    for engine, folder in zip(both.engines, (bundle_dir, shop_dir), strict=True):
        engine.load(single_path_plan(folder, "table", "torch"))
    names = hotels.serving.oip_codec.inputs
    most = MIN_FIELDS + FIELDS_OF_INPUT * (len(names.plain) + len(names.ranking))
    long = field(99, bytes(COUNTED_FROM_BYTES))
    message = long + field(5, b"") * (most - 1)
    assert len(parse_request(both, message).inputs) == most - 1
    for models, refused in ((both, message + field(5, b"")), (ModelRepository((shop,)), message)):
        with pytest.raises(TooLarge, match="fields"):
            parse_request(models, refused)
    both.close()
