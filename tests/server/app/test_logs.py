"""Log lines stay well-formed whatever text they quote."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from polyrec.server.app.logs import JsonLines, LineFormatter, StderrHandler

FORGED = "a\nWARNING polyrec.x: forged\x1b[2J\u2028\ud800"


def record(message: str, *arguments: object, trace: bool = False, **fields: Any) -> logging.LogRecord:
    record = logging.LogRecord("polyrec.x", logging.WARNING, "", 0, message, arguments, None)
    record.created = 1_795_455_064.1254
    record.fields = fields
    if trace:
        try:
            raise ValueError("one\nWARNING polyrec.x: two")
        except ValueError:
            record.exc_info = sys.exc_info()
    return record


def line(message: str, *arguments: object, **given: Any) -> str:
    return LineFormatter(" cpu.0").format(record(message, *arguments, **given))


def test_a_line_begins_with_the_time_and_ends_with_the_fields() -> None:
    said = line("slow", request_id="r-1", ms=1.5, path=None)
    assert said == "2026-11-23T17:31:04.125Z WARNING polyrec.x cpu.0: slow request_id=r-1 ms=1.5 path=-"


def test_json_has_the_same_in_one_object() -> None:
    said = JsonLines(" cpu.0").format(record(FORGED, request_id=FORGED, ms=1.5, path=None, trace=True))
    assert said.isascii()
    assert "\n" not in said
    content = json.loads(said)
    trace = content.pop("traceback")
    assert trace.startswith("Traceback")
    assert "ValueError: one" in trace
    escaped = r"a\nWARNING polyrec.x: forged\x1b[2J\u2028\ud800"
    assert content == {
        "time": "2026-11-23T17:31:04.125Z",
        "level": "warning",
        "logger": "polyrec.x",
        "process": "cpu.0",
        "message": escaped,
        "request_id": escaped,
        "ms": 1.5,
        "path": None,
    }


def test_a_message_is_one_bounded_line() -> None:
    said = line("bundle %s", "a\nWARNING polyrec.x: forged\x1b[2J" + "x" * 1000)
    assert re.match(r"\S+Z WARNING polyrec", said)
    assert said.partition(" ")[2].startswith(
        "WARNING polyrec.x cpu.0: bundle a\\nWARNING polyrec.x: forged\\x1b[2J"
    )
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


def written(reading: int) -> str:
    """All that a pipe holds."""
    os.set_blocking(reading, False)
    parts = []
    while True:
        try:
            parts.append(os.read(reading, 2**16))
        except BlockingIOError:
            return b"".join(parts).decode()


def test_a_reader_that_stalls_costs_lines_and_does_not_block() -> None:
    reading, writing = os.pipe()
    handler = StderrHandler(writing)
    handler.setFormatter(LineFormatter())
    count = 3000

    def log_all() -> None:
        for number in range(count):
            handler.emit(record("line %d", number, trace=number % 7 == 0, more="é" * (number % 100)))

    thread = threading.Thread(target=log_all, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    before = written(reading)
    handler.emit(record("read again"))
    after = written(reading).splitlines()
    whole = re.findall(r"line (\d+) more=(é*)\n", before)
    assert [int(number) for number, _ in whole] == list(range(len(whole)))
    assert all(len(more) == int(number) % 100 for number, more in whole)
    lost = re.search(r"WARNING polyrec.x: (\d+) log lines were lost", after[-2])
    assert lost is not None
    assert 0 < int(lost[1]) <= count - len(whole) + 1  # the last one may lack its end only
    assert int(lost[1]) >= count - len(whole)
    assert after[-1].endswith("read again")


def test_lines_of_any_length_are_written_whole() -> None:
    reading, writing = os.pipe()
    handler = StderrHandler(writing)
    handler.setFormatter(LineFormatter())
    counts = range(9)  # of fields of a kilobyte
    for count in counts:
        handler.emit(record("line", **{f"f{i}": "é" * 499 for i in range(count)}))
    ends = [line.partition("line")[2] for line in written(reading).splitlines()]
    assert ends == ["".join(f" f{i}={'é' * 499}" for i in range(count)) for count in counts]


def test_what_follows_a_line_that_was_cut_has_a_line_of_its_own() -> None:
    reading, writing = os.pipe()
    handler = StderrHandler(writing)
    handler.setFormatter(LineFormatter())
    for _ in range(9):
        handler.emit(record("line", **{f"f{i}": "x" * 499 for i in range(18)}))
    *_, cut = written(reading).splitlines()
    assert 0 < len(cut) < 9000
    handler.emit(record("read again"))
    ends, notice, last = written(reading).splitlines()
    assert ends == ""
    assert "log lines were lost" in notice
    assert last.endswith("read again")


def test_what_follows_a_line_that_a_full_disk_cut_has_a_line_of_its_own(tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's; one line of the size is larger than it."""
    file = tmp_path / "server.log"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with file.open("ab") as opened:
        handler = StderrHandler(opened.fileno())
        handler.setFormatter(LineFormatter())
        handler.emit(record("first"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, limit[1]))
        try:
            for _ in range(3):
                handler.emit(record("lost"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        handler.emit(record("there is room"))
    first, cut, notice, last = file.read_text().splitlines()
    assert first.endswith("first")
    assert len(cut) == 20
    assert notice.endswith("3 log lines were lost: standard error cannot be written: File too large")
    assert last.endswith("there is room")
