"""Parses arrays of numbers in JSON straight into buffers, without a Python object for each number.

simdjson validates and converts, but flattens nested arrays without looking at their lengths, so the brackets
and commas of nested data are checked here. What it refuses is parsed again by the caller, whose parser says
what is wrong (`json_tensor` in server/codecs/oip_codec.py, which is also the reference in tests).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import simdjson
from numpy.typing import NDArray

IN_NUMBERS = b"0123456789+-.eE \t\n\r"
"""Characters of numbers and between them; all others are the structure."""


class NumberParser:
    """Parses arrays of numbers. Keeps the memory of its largest input; not thread-safe."""

    def __init__(self) -> None:
        self._parser = simdjson.Parser()

    def parse(self, raw: bytes, shape: tuple[int, ...], kind: str) -> NDArray[Any] | None:
        """Returns the numbers of a flat array, or of one nested as `shape` says, as float64 or int64 [n].

        kind: "f", or "i" for integers. None: not such an array, or one with a number out of range.
        """
        if not _has_shape(raw, shape):
            return None
        try:
            # dropped on return: a parser refuses to parse while its last document is referenced
            document: Any = self._parser.parse(raw)
            buffer = document.as_buffer(of_type="d" if kind == "f" else "i")
        except (ValueError, TypeError, RuntimeError, AttributeError):
            return None
        values = np.frombuffer(buffer, np.float64 if kind == "f" else np.int64)
        return values if values.size == math.prod(shape) else None


def _has_shape(raw: bytes, shape: tuple[int, ...]) -> bool:
    """Whether the brackets and commas of an array of numbers, if it is valid JSON, give it a shape.

    shape: [rows, ...]. Two forms have it: all numbers in one array, and one array a row.
    """
    rows, width = shape[0], math.prod(shape[1:])
    if not rows * width:
        return False
    structure = raw.translate(None, IN_NUMBERS)
    if not structure.startswith(b"[["):
        return structure == b"[" + b"," * (rows * width - 1) + b"]"
    return structure == b"[[" + b"],[".join([b"," * (width - 1)] * rows) + b"]]"
