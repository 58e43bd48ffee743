"""Converts JSON numbers of dense features to floats in bounded time, for large or suspicious bodies.

msgspec converts most numbers in 30 ns, but numbers near the ends of float64's range or half-way between two
floats in 7 to 31 us, so 64 KiB of `5e-320` block the event loop for 65 ms. orjson takes at most 0.5 us for
any number, but does not check types. So json_rows.py parses a body that may have many slow numbers with its
numbers left as `msgspec.Raw`, and converts them with this module.
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
"""Body size up to which msgspec takes at most 4 ms, even for the slowest numbers."""
MAX_EXPONENTS = 128

_JSON_NAMES = {str: "str", bool: "bool", list: "array", dict: "object", int: "int", float: "float"}
_NUMBERS = (float, int, type(None))
_NO_NUMBERS = (b'"', b"[", b"{", b"t", b"f")
"""First bytes of JSON values that are not numbers: strings, lists, objects, true and false."""


def may_be_slow(body: bytes) -> bool:
    """Whether msgspec may take more than about 5 ms to convert the numbers in a body."""
    size = len(body)
    if size <= ALWAYS_FAST_BYTES:
        return False
    if size >= COUNTED_FROM_BYTES:
        return True
    # only negative exponents make short numbers slow, and searching for a minus sign is cheap
    if size <= 2 * ALWAYS_FAST_BYTES and b"-" not in body:
        return False
    # bounded conversion costs columns nothing extra, but rows 50 ns per number, so count for rows
    if b'"instances"' not in body[:32]:
        return True
    # slow numbers without exponents have hundreds of digits, so a body of this size has few of them
    text = np.frombuffer(body, np.uint8)
    exponents = (text[1:] | 0x20) == ord("e")
    exponents &= (text[:-1] ^ ord("0")) < 10
    return int(np.count_nonzero(exponents)) > MAX_EXPONENTS


def convert_values(raws: Sequence[msgspec.Raw], where: str) -> list[float | None]:
    """Converts one value per row; returns None for a missing value. Raises Invalid or Malformed.

    where: location of a value for messages, with `{}` for the row.
    """
    return _checked(b"[%b]" % b",".join(raws), where)


def convert_column(raw: msgspec.Raw, where: str, max_rows: int) -> list[float | None] | None:
    """Converts a JSON list of numbers, or null. Raises Invalid, Malformed or TooLarge.

    where: location of the list for messages.
    """
    text = bytes(raw)
    if text.startswith(b"["):
        # counted before parsing; exact, as numbers contain no commas
        if (rows := text.count(b",") + 1) > max_rows:
            raise TooLarge(f"{where} has {rows} values; the limit is {max_rows} rows")
        return _checked(text, f"{where}[{{}}]")
    if text == b"null":
        return None
    got = _JSON_NAMES[type(_loaded(text, where))]
    raise Invalid(f"Expected array | null, got {got} - at {where}")


def _checked(text: bytes, where: str) -> list[float | None]:
    values: list[float | None] = _loaded(text, where)
    # searching the text takes a hundredth of the time of checking each value
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
