"""Writes the prediction log: reads records from standard input, parses their rows, and writes Parquet files.

Started only by `server/prediction_log/log.py`, which sends the settings as the first record. When the server
closes the pipe or dies, it writes its buffers and exits.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from polyrec.models.data.prediction_log.log_format import (
    KEY,
    KEY_BITS,
    LOG_COLUMNS,
    PATH,
    REASON,
    REQUEST_ID,
    REQUESTS,
    ROW,
    RULES,
    SCORES,
    TIME,
    VERSION,
    stored_types,
)
from polyrec.models.errors import DataError, PolyrecError
from polyrec.models.files import Strict, create_whole
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Limits
from polyrec.server.app.logs import log_to_stderr
from polyrec.server.app.signals import ignore_signals_of_service
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.rows import Columns
from polyrec.server.errors import RequestError
from polyrec.server.prediction_log.counts import SharedCounts
from polyrec.server.prediction_log.files import PartFiles, label_files, remove_old
from polyrec.server.prediction_log.id_values import IdValues, ValuesByTable, load_values
from polyrec.server.prediction_log.privacy import KEY_FILE, hide_functions, load_key
from polyrec.server.prediction_log.records import (
    Feedback,
    JsonRows,
    Prediction,
    Record,
    VocabularyFile,
    decode,
)
from polyrec.server.prediction_log.settings import PredictionLogSettings
from polyrec.server.record_pipe import unframe

log = logging.getLogger("polyrec.prediction_log")

READ_BYTES = 2**20
GATHER_S = 0.02
"""Pause after each read; waking for every request would take processor time from the server."""
NICE = 10
MAX_BYTES = 2**26
"""Estimated bytes of buffered rows above which files are written early."""
REMOVE_EVERY_S = 60.0
"""Interval at which old files are removed."""
CHECKED_SHARE = 0.1
"""Growth since the last removal, as a share of the maximum size, after which old files are removed early.

Clients determine how fast the log grows.
"""
MAX_VERSIONS = 8
"""Maximum number of versions whose id values are kept in memory."""
VALUE_BYTES = 64
"""Estimated bytes of a buffered value besides its text."""
LIMITS = Limits(max_request_rows=2**20, max_queued_rows=2**20, max_body_bytes=2**30)
"""Limits when parsing a request again; effectively none, as the server has enforced its own."""


class WriterSettings(Strict):
    """The first record, as JSON.

    counts_fd: descriptor of the shared counts. shards: number of files among which sessions are divided.
    """

    log: PredictionLogSettings
    schema_: Schema
    counts_fd: int
    shards: int = 8


class Writer:
    """Converts records to rows and writes them to files."""

    def __init__(self, settings: WriterSettings, counts: SharedCounts) -> None:
        schema = settings.schema_
        self._settings = settings.log
        folder = self._settings.folder
        self._counts = counts
        self._decoder = JsonDecoder(schema, LIMITS, computes=False)
        key = load_key(folder) if self._settings.hash else b""
        self._hide = hide_functions(schema, self._settings.leave_out, self._settings.hash, key)
        own = (folder / RULES, folder / KEY_FILE)
        self._own_files = {file: file.read_bytes() for file in own if file.is_file()}
        self._id_values = IdValues(schema)
        self._versions: dict[str, VocabularyFile] = {}
        self._values_of = lru_cache(MAX_VERSIONS)(_loaded)
        columns = pa.schema([*LOG_COLUMNS, *stored_types(schema).items()])
        self._features = len(schema.context.names) + len(schema.candidate.names)
        self._requests = PartFiles(folder / REQUESTS, columns, TIME, self._settings.session, settings.shards)
        self._labels = label_files(folder)
        # of several servers' requests of one microsecond, few have the same lowest bits
        self._key = secrets.randbelow(1 << KEY_BITS)
        self._bytes = 0
        self._unchecked_bytes = 0
        """Estimated bytes of rows written since old files were last removed."""
        self._flushed_s = time.monotonic()
        self._removed_s = -3600.0

    def add(self, record: Record) -> None:
        """Buffers the rows of a record."""
        if isinstance(record, VocabularyFile):
            self._versions[record.version] = record
            return
        if isinstance(record, Feedback):
            self._bytes += VALUE_BYTES * 4 * len(record.rows)
            self._labels.add(
                [
                    {
                        "request_id": record.request_id,
                        "row": row,
                        "label": label,
                        "time": record.at_us,
                        "client": record.client,
                    }
                    for row, label in zip(record.rows, record.labels, strict=True)
                ]
            )
            return
        try:
            stored = list(self._stored(record))
        except (RequestError, PolyrecError, ValueError, LookupError) as e:
            # a request that was answered under another schema, before or after a reload
            self._counts.add(("requests", "invalid"), 1)
            log.debug("a request cannot be read again: %s", e)
            return
        asked = record.rows
        bytes_given = len(asked.body) if isinstance(asked, JsonRows) else VALUE_BYTES * asked.bag_ids
        self._bytes += bytes_given + VALUE_BYTES * self._features * (len(record.scores) // 4)
        self._requests.add(stored)

    def flush(self, always: bool = False) -> None:
        """Writes files and removes old ones if it is time. Never raises disk errors."""
        now_s = time.monotonic()
        due = self._bytes >= MAX_BYTES or now_s - self._flushed_s >= self._settings.flush_s
        if not (always or due):
            return
        self._unchecked_bytes += self._bytes
        self._flushed_s, self._bytes = now_s, 0
        self._restore()
        written, lost = self._requests.flush()
        self._counts.add(("requests", "written"), written)
        self._counts.add(("requests", "lost"), lost)
        written, lost = self._labels.flush()
        self._counts.add(("labels", "written"), written)
        self._counts.add(("labels", "lost"), lost)
        settings = self._settings
        much = settings.max_bytes is not None and self._unchecked_bytes >= settings.max_bytes * CHECKED_SHARE
        if much or now_s - self._removed_s >= REMOVE_EVERY_S:
            self._removed_s, self._unchecked_bytes = now_s, 0
            try:
                remove_old(settings.folder, settings.keep_h, settings.max_bytes, time.time())
            except OSError as e:
                log.error("old hours of the prediction log stay: %s", e)

    def _restore(self) -> None:
        """Writes rules and key again if they were removed, as the log could be neither read nor continued."""
        for file, content in self._own_files.items():
            with suppress(OSError):  # tried again with the next files, whose errors are logged
                if not file.exists():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    create_whole(file, content)
                    log.warning("'%s' was removed: it is written again", file)

    def _stored(self, record: Prediction) -> Iterator[dict[str, Any]]:
        """Yields the rows in stored form: one for each run of rows with the same context."""
        scores = np.frombuffer(record.scores, np.float32)
        about = {
            TIME: record.at_us,
            REQUEST_ID: record.request_id,
            PATH: record.path,
            VERSION: record.version,
            REASON: record.reason,
        }
        rows = self._read(record)
        groups = rows.group if rows.group is not None else [None] * rows.rows
        keys = {group: self._next_key(record) for group in dict.fromkeys(groups)}
        context_row = np.arange(rows.rows) if rows.context_row is None else rows.context_row
        starts = [0, *(np.flatnonzero(np.diff(context_row)) + 1).tolist()]
        for first, end in zip(starts, [*starts[1:], rows.rows], strict=True):
            place = {KEY: keys[groups[first]], ROW: first, SCORES: scores[first:end]}
            context = self._context(rows, int(context_row[first]))
            yield about | place | context | self._candidates(rows, first, end)

    def _read(self, record: Prediction) -> Columns:
        """Returns the raw values of a request's rows. Raises RequestError or PolyrecError."""
        asked = record.rows
        if isinstance(asked, JsonRows):
            return self._decoder.rank(asked.body).rows if asked.ranking else self._decoder.predict(asked.body)
        values = self._values_of(self._versions[record.version])
        if values is None:
            raise DataError(f"the vocabulary of version {record.version} cannot be read")
        return self._id_values.columns(asked.read(), values)

    def _next_key(self, record: Prediction) -> int:
        self._key = (self._key + 1) % (1 << KEY_BITS)
        return (record.at_us << KEY_BITS) | self._key

    def _context(self, rows: Columns, at: int) -> dict[str, Any]:
        return {
            name: self._values(name, column, at, at + 1)[0]
            for name, column in zip(rows.names[0], rows.context, strict=True)
        }

    def _candidates(self, rows: Columns, first: int, end: int) -> dict[str, Any]:
        return {
            name: self._values(name, column, first, end)
            for name, column in zip(rows.names[1], rows.candidate, strict=True)
        }

    def _values(self, name: str, column: Sequence[Any] | None, first: int, end: int) -> Sequence[Any]:
        """Returns the values of a feature as they are written; all None if the feature is not given."""
        if column is None:
            return [None] * (end - first)
        values, hide = column[first:end], self._hide.get(name)
        return values if hide is None else [hide(value) for value in values]


def _loaded(about: VocabularyFile) -> ValuesByTable | None:
    """Reads the values of a version's ids; returns None if that fails, so that it is not tried again."""
    try:
        return load_values(about)
    except (DataError, ValueError) as e:
        log.error("requests with ids are not logged: %s", e)
        return None


def run(fd: int) -> None:
    """Writes the records of a pipe until the other end is closed."""
    buffer = bytearray()
    os.set_blocking(fd, False)
    writer: Writer | None = None
    wait_s = 1.0
    while True:
        if select.select([fd], [], [], wait_s)[0]:
            more = os.read(fd, READ_BYTES)
            if not more:
                break
            buffer += more
            for record in unframe(buffer):
                if writer is None:
                    settings = WriterSettings.model_validate_json(record)
                    writer = Writer(settings, SharedCounts(settings.counts_fd))
                    wait_s = min(wait_s, settings.log.flush_s)
                    continue
                writer.add(decode(record))
                writer.flush()
        if writer is not None:
            writer.flush()
        time.sleep(GATHER_S)
    if writer is not None:
        writer.flush(always=True)


def main() -> None:
    log_to_stderr("warning")
    # this process ends after the server, with its last requests
    ignore_signals_of_service()
    os.nice(NICE)
    run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
