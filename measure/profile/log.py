"""Logs measurements, one JSON line each, so that an interrupted profile can be resumed.

The first line has the settings of the run; different settings start a new log. Each line has the identity of
a path (its bundle's version, runtime, software), so that measurements of a changed bundle are ignored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from polyrec.planner.profile import ProfileError


class SampleLog:
    """Measurements of each path, in a file. Use it in a `with` block.

    resumed: whether lines of an earlier run were read.
    """

    def __init__(self, file: Path, settings: Mapping[str, Any]) -> None:
        self._file = file
        self._settings = dict(settings)
        self._known: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._stream: TextIO | None = None
        self.resumed = False

    def __enter__(self) -> SampleLog:
        lines = self._read()
        self.resumed = bool(lines) and lines[0].get("asked") == self._settings
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._file.open("w", encoding="utf-8")
        except OSError as e:
            raise ProfileError(f"cannot write '{self._file}': {e.strerror}") from None
        self._write({"asked": self._settings})
        for line in lines[1:] if self.resumed else []:
            with contextlib.suppress(KeyError):
                self.add(line["path"], line["identity"], line["what"], line["found"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, path: str, identity: str, what: str, found: dict[str, Any]) -> None:
        """Stores a measurement of a path, replacing an earlier one."""
        self._known[path, identity, what] = found
        self._write({"path": path, "identity": identity, "what": what, "found": found})

    def get(self, path: str, identity: str, what: str) -> dict[str, Any] | None:
        return self._known.get((path, identity, what))

    def remove(self) -> None:
        """Deletes the log after the profile is written."""
        if self._stream is not None:
            self._stream.close()
        self._file.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._stream is not None
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def _read(self) -> list[dict[str, Any]]:
        """Reads the lines of an earlier run, skipping a truncated one."""
        lines: list[dict[str, Any]] = []
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for text in self._file.read_text(encoding="utf-8").splitlines():
                try:
                    line = json.loads(text)
                except ValueError:
                    break
                if not isinstance(line, dict):
                    break
                lines.append(line)
        return lines
