"""The log's lines, whoever's words they quote."""

from __future__ import annotations

import logging
import sys

from polyrec.server.app.logs import Lines


def line(message: str, *arguments: object, trace: bool = False) -> str:
    record = logging.LogRecord("polyrec.x", logging.WARNING, "", 0, message, arguments, None)
    if trace:
        try:
            raise ValueError("one\nWARNING polyrec.x: two")
        except ValueError:
            record.exc_info = sys.exc_info()
    return Lines(" cpu.0").format(record)


def test_a_message_is_one_bounded_line() -> None:
    said = line("bundle %s", "a\nWARNING polyrec.x: forged\x1b[2J" + "x" * 1000)
    assert said.startswith("WARNING polyrec.x cpu.0: bundle a\\nWARNING polyrec.x: forged\\x1b[2J")
    assert "\n" not in said
    assert len(said) < 700


def test_it_has_neither_credentials_nor_folders_but_pages_stay() -> None:
    said = line("%s at %s, as /v1/admin/drain said", "/srv/models/table", "redis://:s3cret@store:1")
    assert said.endswith(": table at redis://store:1, as /v1/admin/drain said")


def test_no_line_of_a_trace_looks_like_a_message() -> None:
    first, *rest = line("it failed", trace=True).splitlines()
    assert first.endswith("it failed")
    assert rest
    assert all(part.startswith("    ") for part in rest)
