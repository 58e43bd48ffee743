"""The log: one bounded line a message, without credentials or folders, whoever's words it quotes.

A trace of a defect is more lines, indented, so that none of them can be taken for a message of its own.
"""

from __future__ import annotations

import logging
import sys

from models.text import public

INDENT = "    "


class Lines(logging.Formatter):
    """`LEVEL logger: message`. prefix: stands before the message, such as a lane's name."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """The record as the log has it."""
        line = f"{record.levelname} {record.name}{self._prefix}: {public(record.getMessage())}"
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return "\n".join([line, *(INDENT + part for part in trace.splitlines())])


def log_to_stderr(level: str, prefix: str = "") -> None:
    """Sends messages from `level` on to standard error; no change where the root logger has handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(prefix))
    logging.basicConfig(level=level.upper(), handlers=[handler])
