"""Converts the JSON numbers of dense features of large or suspicious bodies to floats, in bounded time.

msgspec converts most numbers in 30 ns, but those near the ends of float64's range, or half way between two
floats, in 7 to 31 us: 64 KiB of `5e-320` block the event loop for 65 ms. orjson takes at most 0.5 us for any
number, but checks no types. So a body that may hold many slow numbers is parsed with its numbers left as
`msgspec.Raw`, and they are converted here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import orjson

from polyrec.server.codecs.body_limits import COUNTED_FROM_BYTES
from polyrec.server.errors import Invalid, Malformed, TooLarge

MISSING = msgspec.Raw(b"null")
"""The value of a dense feature that was left out."""
ALWAYS_FAST_BYTES = 4096
"""A body of this size takes msgspec at most 4 ms, even if it is full of the slowest numbers."""
MAX_EXPONENTS = 128

_JSON_NAMES = {str: "str", bool: "bool", list: "array", dict: "object", int: "int", float: "float"}
_NUMBERS = (float, int, type(None))
_NO_NUMBERS = (b'"', b"[", b"{", b"t", b"f")
"""First bytes of JSON values that are no numbers: strings, lists, objects, true and false."""


def may_be_slow(body: bytes) -> bool:
    """Whether msgspec may take more than some 5 ms to convert the numbers of a body."""
    size = len(body)
    if size <= ALWAYS_FAST_BYTES:
        return False
    if size >= COUNTED_FROM_BYTES:
        return True
    # Only negative exponents make a short number slow, and searching for a minus sign is cheap.
    if size <= 2 * ALWAYS_FAST_BYTES and b"-" not in body:
        return False
    # For columns the bounded conversion costs nothing extra; for rows 50 ns a number, so count first.
    if b'"instances"' not in body[:32]:
        return True
    # Slow numbers without an exponent have hundreds of digits, so a body of this size contains few.
    text = np.frombuffer(body, np.uint8)
    exponents = (text[1:] | 0x20) == ord("e")
    exponents &= (text[:-1] ^ ord("0")) < 10
    return int(np.count_nonzero(exponents)) > MAX_EXPONENTS


def numbers(raws: Sequence[msgspec.Raw], where: str) -> list[float | None]:
    """Converts one value per row; returns numbers, None where missing.

    where: the place of a value, with `{}` for the row, for messages. Raises Invalid or Malformed.
    """
    return _checked(b"[%b]" % b",".join(raws), where)


def column(raw: msgspec.Raw, where: str, max_rows: int) -> list[float | None] | None:
    """Converts a JSON list of numbers, or null. where: its place. Raises Invalid, Malformed or TooLarge."""
    text = bytes(raw)
    if text.startswith(b"["):
        # Counted before parsing; exact, as numbers contain no commas.
        if (rows := text.count(b",") + 1) > max_rows:
            raise TooLarge(f"{where} has {rows} values; the limit is {max_rows} rows")
        return _checked(text, f"{where}[{{}}]")
    if text == b"null":
        return None
    got = _JSON_NAMES[type(_loaded(text, where))]
    raise Invalid(f"Expected array | null, got {got} - at {where}")


def _checked(text: bytes, where: str) -> list[float | None]:
    values: list[float | None] = _loaded(text, where)
    # Searching the text takes a hundredth of the time of checking each value.
    if any(text.find(sign, 1) >= 0 for sign in _NO_NUMBERS):
        odd = next(i for i, value in enumerate(values) if type(value) not in _NUMBERS)
        got = _JSON_NAMES[type(values[odd])]
        raise Invalid(f"Expected float | null, got {got} - at {where.format(odd)}")
    return values


def _loaded(text: bytes, where: str) -> list[float | None]:
    try:
        return orjson.loads(text)  # type: ignore[no-any-return]
    except orjson.JSONDecodeError as e:
        row = text.count(b",", 0, e.pos)
        if "infinity" in e.msg:
            raise Invalid(f"Number out of range - at {where.format(row)}") from None
        raise Malformed(f"{e.msg} - at {where.format(row)}") from None
