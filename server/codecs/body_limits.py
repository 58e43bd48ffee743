"""Limits a request body's bytes and number of values; values are counted before the body is parsed.

Parsing runs on the event loop, where it delays every other client. Its worst case depends less on a body's
bytes than on its number of values: 1 MiB of one string takes 0.5 ms, 1 MiB of empty lists 50 ms. So both are
limited. Both limits are derived from the schema and the maximum number of rows per request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyrec.models.schema.schema import Categorical, Dense, Schema
from polyrec.planner.plan import Limits
from polyrec.server.errors import TooLarge

NUMBER_BYTES = 25
"""Length of the longest float64 that a JSON library writes, including sign and exponent."""
STRING_BYTES = 64
"""Assumed length of an id, without its quotes: a UUID has 36 bytes, a SHA-256 in hexadecimal 64."""
FULL_BYTES, FULL_VALUES = 2**20, 40_960
"""Totals per body up to which rows may be as large as the schema allows; they decode in under 10 ms."""
FULL_TENSOR_VALUES = 2 * FULL_VALUES
"""Like FULL_VALUES for tensors, which decode in half the time; 2,048 rows of 39 features have 79,872."""
ROW_BYTES, ROW_VALUES = 256, 10
"""Allowance per row beyond those totals, for operators who allow more than the default 4,096 rows."""
MIN_BYTES, MAX_BYTES = 2**16, 2**24
MIN_STRUCTURE = 2**14
COUNTED_FROM_BYTES = 3 * 2**15
"""Minimum body size for counting values; a smaller body never takes longer than the largest allowed one."""
MAX_MARKS = 2**14
"""Maximum quotes and braces in an Open Inference Protocol request; each input or output has about 14."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits on one body. Counts include characters inside strings, for which the limits leave a margin.

    max_bytes: as sent, and after decompression.
    max_commas: commas in a body of rows.
    max_tensor_commas: commas in the JSON of an Open Inference Protocol request.
    max_containers: opening brackets and braces.
    """

    max_bytes: int
    max_commas: int
    max_tensor_commas: int
    max_containers: int

    @staticmethod
    def from_schema(schema: Schema, limits: Limits) -> BodyLimits:
        """Derives the limits from the schema and `max_request_rows`; `max_body_bytes`, if set, wins."""
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
        # `[` and `{` differ in one bit
        if np.count_nonzero((np.frombuffer(body, np.uint8) | 0x20) == ord("{")) > self.max_containers:
            raise TooLarge(
                f"the body has more than {self.max_containers} lists and objects, "
                "which is more than the maximum number of rows needs"
            )

    def check_tensors(self, header: bytes) -> None:
        """Counts the structure of a large Open Inference Protocol request. Raises TooLarge.

        Unlike in rows, a list per value is valid, so containers are not limited.
        """
        if len(header) < COUNTED_FROM_BYTES:
            return
        _check_commas(header, self.max_tensor_commas)
        if count(header, b'"') + count(header, b"{") > MAX_MARKS:
            raise TooLarge(f"the request has more than {MAX_MARKS} quotes and braces; its tensors have none")


def _check_commas(body: bytes, limit: int) -> None:
    if count(body, b",") > limit:
        raise TooLarge(f"the body has more than {limit} values; send fewer rows, or binary tensors")


def count(text: bytes, byte: bytes) -> int:
    """Counts one byte in a text, six times as fast as bytes.count, since numpy uses SIMD."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(byte)))


def _bounded(rows: int, full: int, limit: int, average: int) -> int:
    """Returns max(min(rows * full, limit), rows * average), where average <= full."""
    return max(min(rows * full, limit), rows * min(full, average))


def _feature_bytes(feature: Dense | Categorical) -> int:
    """Returns the maximum bytes of one feature of a row in JSON, including its key and punctuation."""
    around = len(feature.name) + 6
    if isinstance(feature, Dense):
        return around + NUMBER_BYTES
    value = STRING_BYTES + 2 if feature.type == "string" else NUMBER_BYTES
    return around + (2 + feature.max_length * (value + 2) if feature.multi else value)
