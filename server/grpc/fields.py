"""Limits the number of fields in a protobuf message before it is parsed.

Parsing blocks the event loop, and its cost depends on fields rather than bytes: 1 MiB of empty inputs takes
as long as a hundred requests. So the fields of a large message are first counted by its wire format
(protobuf.dev/programming-guides/encoding), up to the limit.
"""

from __future__ import annotations

from typing import Any

from polyrec.server.errors import Malformed, TooLarge

COUNTED_FROM_BYTES = 2**14
"""Minimum message size for counting; a smaller one has few fields and is parsed faster than counted."""
LIST_BYTES_COUNTED = frozenset({"inference.ModelInferRequest.InferInputTensor.shape"})
"""Packed lists of numbers in which each byte counts as a field; they are short in valid requests."""
VARINT, FIXED64, LENGTH, START_GROUP, END_GROUP, FIXED32 = range(6)

Nested = dict[int, "Nested | None"]
"""Field number -> fields of the nested message; None for a list whose bytes count."""


def nested_fields(descriptor: Any) -> Nested:
    """Returns the fields of a message type that have fields themselves. The type must not be recursive."""
    nested: Nested = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            nested[field.number] = nested_fields(field.message_type)
        elif field.full_name in LIST_BYTES_COUNTED:
            nested[field.number] = None
    return nested


def check_fields(message: bytes, nested: Nested, max_fields: int) -> None:
    """Counts the fields of a message and its nested ones. Raises TooLarge if there are more, or Malformed."""
    try:
        left = _count(message, 0, len(message), nested, max_fields)
    except IndexError:
        raise Malformed("the message ends within a field") from None
    if left < 0:
        raise TooLarge(f"the message has more than {max_fields} fields")


def _count(message: bytes, at: int, end: int, nested: Nested, left: int) -> int:
    """Returns `left` minus the number of fields between two offsets; stops below 0. Raises IndexError."""
    while at < end and left >= 0:
        left -= 1
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == LENGTH:
            size, at = _varint(message, at)
            if size > end - at:
                raise IndexError
            number = tag >> 3
            if number in nested:
                inner = nested[number]
                left = left - size if inner is None else _count(message, at, at + size, inner, left)
            at += size
        elif kind == VARINT:
            _, at = _varint(message, at)
        elif kind == FIXED32:
            at += 4
        elif kind == FIXED64:
            at += 8
        elif kind > FIXED32:
            raise Malformed("the message has a field of an unknown wire type")
    return left


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at an offset, and the offset after it. Raises IndexError or Malformed."""
    value = message[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed("the message has a number of more than 10 bytes")
