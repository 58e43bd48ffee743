"""Defines types of command-line arguments that check numbers and durations. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", int, float)

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _number(kind: type[T], text: str, fits: Callable[[T], bool], what: str) -> T:
    """Parses a number. Raises ArgumentTypeError, as argparse's own message would name the function."""
    try:
        number: T | None = kind(text)
    except ValueError:
        number = None
    if number is None or not fits(number):
        raise argparse.ArgumentTypeError(f"{text} is not {what}")
    return number


def positive_float(text: str) -> float:
    """Parses a finite number above 0. Raises ArgumentTypeError."""
    return _number(float, text, lambda number: 0 < number < math.inf, "a positive number")


def duration(text: str) -> float:
    """Parses a time like 90s, 10m or 1.5h; returns seconds. Raises ArgumentTypeError."""
    try:
        return positive_float(text[:-1]) * UNITS[text[-1:]]
    except (KeyError, ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"'{text}' is not a duration like 90s, 10m or 1.5h") from None


def non_negative_int(text: str) -> int:
    """Parses a whole number from 0 to 2^63 - 1, like a seed. Raises ArgumentTypeError."""
    return _number(int, text, lambda number: 0 <= number < 2**63, "a whole number from 0 to 2^63 - 1")


def port(text: str) -> int:
    """Parses a port to listen on, 0 for a free one. Raises ArgumentTypeError."""
    return _number(int, text, lambda number: 0 <= number < 2**16, "a port from 0 to 65535")


def positive_int(text: str) -> int:
    """Parses a whole number above 0. Raises ArgumentTypeError."""
    return _number(int, text, lambda number: number >= 1, "a whole number above 0")
