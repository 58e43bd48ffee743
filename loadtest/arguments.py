"""Defines types of command-line arguments that check numbers and durations. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
from typing import TypeVar

T = TypeVar("T", int, float)

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _parsed(kind: type[T], text: str, what: str) -> T:
    """Parses a number. Raises ArgumentTypeError, as argparse's own message would name the function."""
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not {what}") from None


def positive_float(text: str) -> float:
    """Parses a finite number above 0. Raises ArgumentTypeError."""
    number = _parsed(float, text, "a positive number")
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def duration(text: str) -> float:
    """Parses a time like 90s, 10m or 1.5h; returns seconds. Raises ArgumentTypeError."""
    try:
        return positive_float(text[:-1]) * UNITS[text[-1:]]
    except (KeyError, ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"'{text}' is not a duration like 90s, 10m or 1.5h") from None


def non_negative_int(text: str) -> int:
    """Parses a whole number from 0 to 2^63 - 1, like a seed. Raises ArgumentTypeError."""
    number = _parsed(int, text, "a whole number from 0 to 2^63 - 1")
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to 2^63 - 1")
    return number


def port(text: str) -> int:
    """Parses a port to listen on, 0 for a free one. Raises ArgumentTypeError."""
    number = _parsed(int, text, "a port from 0 to 65535")
    if not 0 <= number < 2**16:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to 65535")
    return number


def positive_int(text: str) -> int:
    """Parses a whole number above 0. Raises ArgumentTypeError."""
    number = _parsed(int, text, "a whole number above 0")
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number
