"""Formats log messages: one line of bounded length each, without credentials or absolute paths.

The lines of a traceback are indented, so that none of them can be mistaken for a message.
"""

from __future__ import annotations

import logging
import sys

from polyrec.models.text import public

INDENT = "    "


class Lines(logging.Formatter):
    """Formats records as `LEVEL logger: message`. prefix: after the logger's name, such as a lane's name."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """One line for the message, and the indented traceback if there is one."""
        line = f"{record.levelname} {record.name}{self._prefix}: {public(record.getMessage())}"
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return "\n".join([line, *(INDENT + part for part in trace.splitlines())])


def log_to_stderr(level: str, prefix: str = "") -> None:
    """Logs messages of `level` and above to standard error, unless the root logger has handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(prefix))
    logging.basicConfig(level=level.upper(), handlers=[handler])
