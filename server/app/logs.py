"""Formats log messages as text or JSON: one line each with the time, without credentials or absolute paths.

    2026-11-23T17:31:04.125Z WARNING polyrec.http: HTTP limit body_time: ... request_id=3f9a1c
    {"time": "2026-11-23T17:31:04.125Z", "level": "warning", "logger": "polyrec.http", "message": ..., ...}

Text of clients is escaped, so that no message can look like two. The lines of a traceback are indented in
text, and one string in JSON. A record's `fields` are keys and values of their own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from polyrec.models.text import printable, public

LogFormat = Literal["text", "json"]
VARIABLE = "POLYREC_LOG_FORMAT"
INDENT = "    "


class Lines(logging.Formatter):
    """Formats records as `time LEVEL logger: message key=value`.

    prefix: after the logger's name, such as a lane's name.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """One line for the message, and the indented traceback if there is one."""
        line = (
            f"{_time(record)} {record.levelname} {record.name}{self._prefix}: {public(record.getMessage())}"
        )
        for key, value in _fields(record).items():
            line += f" {key}={'-' if value is None else value}"
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return "\n".join([line, *(INDENT + part for part in trace.splitlines())])


class JsonLines(Lines):
    """Formats records as JSON objects, one a line; the keys of `fields` stand beside the others."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, the traceback included."""
        content: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": public(record.getMessage()),
        }
        if self._prefix:
            content["process"] = self._prefix.strip()
        content |= _fields(record)
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)  # ASCII: whatever is not is escaped


def log_to_stderr(level: str, prefix: str = "", log_format: LogFormat | None = None) -> None:
    """Logs messages of `level` and above to standard error, unless the root logger has handlers.

    log_format: None in a process that a server has started: the same as the server's.
    """
    if log_format is None:
        log_format = "json" if os.environ.get(VARIABLE) == "json" else "text"
    else:
        os.environ[VARIABLE] = log_format  # for lanes and the exporter of traces
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(prefix) if log_format == "json" else Lines(prefix))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _time(record: logging.LogRecord) -> str:
    """The time of a record in ISO 8601, UTC."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The `fields` of a record, their strings without control characters."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return {key: printable(value) if isinstance(value, str) else value for key, value in fields.items()}
