"""Formats log records as lines of text or JSON, without credentials or absolute paths.

    2026-11-23T17:31:04.125Z WARNING polyrec.http: HTTP limit body_time: ... request_id=3f9a1c
    {"time": "2026-11-23T17:31:04.125Z", "level": "warning", "logger": "polyrec.http", "message": ..., ...}

Text from clients is escaped, so that it cannot forge a second log line. A traceback is indented lines in text
and one string in JSON. A record's `fields` attribute adds keys and values, as does MODEL.
"""

from __future__ import annotations

import json
import logging
import os
import select
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from polyrec.models.text import printable, public

LogFormat = Literal["text", "json"]
VARIABLE = "POLYREC_LOG_FORMAT"
MODEL: ContextVar[str | None] = ContextVar("model", default=None)
"""The model for which the current task or call works, if the server has several: a field of its log lines."""
INDENT = "    "
STDERR = 2
MAX_WRITE_WAIT_MS = 50
"""Time for which a log line waits for the reader of standard error before lines are dropped."""


class LineFormatter(logging.Formatter):
    """Formats records as `time LEVEL logger: message key=value`.

    prefix: text after the logger's name, such as a lane's name.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Returns a line with the message, and below it the indented traceback if there is one."""
        line = (
            f"{_time(record)} {record.levelname} {record.name}{self._prefix}: {public(record.getMessage())}"
        )
        for key, value in _fields(record).items():
            line += f" {key}={'-' if value is None else value}"
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return "\n".join([line, *(INDENT + part for part in trace.splitlines())])


class JsonLines(LineFormatter):
    """Formats each record as a JSON object on one line, with `fields` merged into its keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line, including the traceback."""
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
        return json.dumps(content)  # escapes everything that is not ASCII


class StderrHandler(logging.Handler):
    """Writes lines to standard error, and drops them while its reader does not read, or its disk is full.

    A full pipe, as of a container's log driver that hangs, would otherwise block the event loop in the next
    log line, and so the whole server. The first line waits MAX_WRITE_WAIT_MS, later ones do not. Once there
    is room, a line says how many were lost and why.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lost = 0
        self._why_lost = ""
        self._is_cut = False  # whether the last line was written in part
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the record's line if that is possible at once."""
        try:
            if self._lost:
                lost = f"{self._lost} log lines were lost: {self._why_lost}"
                notice = logging.LogRecord(record.name, logging.WARNING, "", 0, lost, None, None)
                if not self._write(self.format(notice)):
                    self._lost += 1
                    return
                self._lost = 0
            if not self._write(self.format(record)):
                self._lost += 1
        except Exception:
            self.handleError(record)

    def _write(self, text: str) -> bool:
        """Writes a line; returns False if there was no room for all of it."""
        line = ("\n" * self._is_cut + text + "\n").encode(errors="backslashreplace")
        length = len(line)
        while line:
            ready = self._poll.poll(0 if self._lost else MAX_WRITE_WAIT_MS)
            # a pipe that is ready takes PIPE_BUF bytes without blocking, and as one piece
            if not ready or not ready[0][1] & select.POLLOUT:
                return self._lose("nothing read standard error", len(line) < length)
            try:
                line = line[os.write(self._descriptor, line[: select.PIPE_BUF]) :]
            except OSError as e:
                return self._lose(f"standard error cannot be written: {e.strerror}", len(line) < length)
        self._is_cut = False
        return True

    def _lose(self, why: str, is_cut: bool) -> bool:
        self._why_lost = why
        self._is_cut |= is_cut
        return False


def log_to_stderr(level: str, prefix: str = "", log_format: LogFormat | None = None) -> None:
    """Logs messages of `level` and above to standard error, unless the root logger has handlers.

    log_format: None in a child process of the server, which then uses the server's format.
    """
    if log_format is None:
        log_format = "json" if os.environ.get(VARIABLE) == "json" else "text"
    else:
        os.environ[VARIABLE] = log_format  # inherited by lanes and the trace exporter
    handler = StderrHandler(STDERR)
    handler.setFormatter(JsonLines(prefix) if log_format == "json" else LineFormatter(prefix))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _time(record: logging.LogRecord) -> str:
    """Returns the record's time in ISO 8601, UTC."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the model and the record's `fields`, with control characters in strings escaped."""
    model = MODEL.get()
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    fields = fields if model is None else {"model": model, **fields}
    return {key: printable(value) if isinstance(value, str) else value for key, value in fields.items()}
