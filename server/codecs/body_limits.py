"""Limits on a request body: its bytes, and its number of values, counted before it is parsed.

Parsing runs on the event loop, where it delays every other client. The worst case depends less on a body's
bytes than on its number of values: 1 MiB of one string takes 0.5 ms, 1 MiB of empty lists 50 ms. So both are
limited, and both limits follow from what the rows of a request can need.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyrec.models.schema.schema import Categorical, Dense, Schema
from polyrec.planner.plan import Limits
from polyrec.server.errors import TooLarge

NUMBER_BYTES = 25
"""Length of the longest float64 that a JSON library writes, with its sign and exponent."""
STRING_BYTES = 64
"""Assumed length of an id, without its quotes: a UUID has 36 bytes, a SHA-256 in hexadecimal 64."""
FULL_BYTES, FULL_VALUES = 2**20, 40_960
"""Up to these totals, which decode in less than 10 ms, every row may be as large as the schema allows."""
FULL_TENSOR_VALUES = 2 * FULL_VALUES
"""The same for tensors, whose numbers decode in half the time; 2,048 rows of 39 features have 79,872."""
ROW_BYTES, ROW_VALUES = 256, 10
"""Allowed per row beyond that, where an operator allows more than the default 4,096 rows."""
MIN_BYTES, MAX_BYTES = 2**16, 2**24
MIN_STRUCTURE = 2**14
COUNTED_FROM_BYTES = 3 * 2**15
"""Smallest body whose values are counted; no smaller one takes longer than the largest allowed one."""
MAX_MARKS = 2**14
"""Maximum quotes and braces in the JSON of the inference protocol; each input or output has about 14."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits on one body.

    max_bytes: as sent, and after decompression. max_commas: commas; max_tensor_commas: in the JSON of the
    inference protocol. max_containers: opening brackets and braces. Characters inside strings count as well,
    so the limits leave room for some.
    """

    max_bytes: int
    max_commas: int
    max_tensor_commas: int
    max_containers: int

    @staticmethod
    def of(schema: Schema, limits: Limits) -> BodyLimits:
        """Derived from the schema and `max_request_rows`; a given `max_body_bytes` wins."""
        features: tuple[Dense | Categorical, ...] = (*schema.dense, *schema.categorical)
        lists = [f for f in schema.categorical if f.multi]
        values = len(features) + sum(f.max_length for f in lists)
        rows = limits.max_request_rows
        needed = _bounded(rows, 2 + sum(map(_feature_bytes, features)), FULL_BYTES, ROW_BYTES)
        commas = _bounded(rows, values, FULL_VALUES, ROW_VALUES)
        tensor_commas = _bounded(rows, values, FULL_TENSOR_VALUES, ROW_VALUES)
        return BodyLimits(
            limits.max_body_bytes or min(max(needed, MIN_BYTES), MAX_BYTES),
            max(commas, MIN_STRUCTURE),
            max(tensor_commas, MIN_STRUCTURE),
            max(2 * rows * (1 + len(lists)), MIN_STRUCTURE),
        )

    def check_rows(self, body: bytes) -> None:
        """Counts the structure of a large JSON body of rows. Raises TooLarge."""
        if len(body) < COUNTED_FROM_BYTES:
            return
        _check_commas(body, self.max_commas)
        # `[` and `{` differ in one bit.
        if np.count_nonzero((np.frombuffer(body, np.uint8) | 0x20) == ord("{")) > self.max_containers:
            raise TooLarge(
                f"the body has more than {self.max_containers} lists and objects; "
                "a request of that many rows has fewer"
            )

    def check_tensors(self, header: bytes) -> None:
        """The same for the JSON of the inference protocol, whose lists may be one for each value."""
        if len(header) < COUNTED_FROM_BYTES:
            return
        _check_commas(header, self.max_tensor_commas)
        if count(header, b'"') + count(header, b"{") > MAX_MARKS:
            raise TooLarge(f"the request has more than {MAX_MARKS} quotes and braces; its tensors have none")


def _check_commas(body: bytes, most: int) -> None:
    if count(body, b",") > most:
        raise TooLarge(f"the body has more than {most} values; send fewer rows, or binary tensors")


def count(text: bytes, byte: bytes) -> int:
    """Occurrences of one byte; six times as fast as bytes.count, as numpy compares 16 to 64 at a time."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(byte)))


def _bounded(rows: int, full: int, most: int, average: int) -> int:
    """The larger of min(rows * full, most) and rows * average, where average is at most full."""
    return max(min(rows * full, most), rows * min(full, average))


def _feature_bytes(feature: Dense | Categorical) -> int:
    """Maximum bytes of one feature of a row in JSON, with quotes, colon, comma and two spaces."""
    around = len(feature.name) + 6
    if isinstance(feature, Dense):
        return around + NUMBER_BYTES
    value = STRING_BYTES + 2 if feature.type == "string" else NUMBER_BYTES
    return around + (2 + feature.max_length * (value + 2) if feature.multi else value)
