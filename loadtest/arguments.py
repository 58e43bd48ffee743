"""What command lines are made of: a parser whose mistakes are one line, and numbers checked as they are read.

Imports nothing heavy: `--help` waits for this module.
"""

from __future__ import annotations

import argparse
import math
from typing import NoReturn

from polyrec.models.text import printable


class Parser(argparse.ArgumentParser):
    """argparse's, but a mistake is one line and not the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {printable(message)}; {self.prog} --help tells more\n")


def positive(text: str) -> float:
    """A finite number above 0. Raises ArgumentTypeError."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def natural(text: str) -> int:
    """A whole number from 0 to 2^63 - 1: a seed. Raises ArgumentTypeError."""
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to 2^63 - 1")
    return number


def counting(text: str) -> int:
    """A whole number of 1 or more. Raises ArgumentTypeError."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number
