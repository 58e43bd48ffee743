"""Writes predictions and labels as Parquet files by hour, and removes old ones.

    requests/2026-11-23T17/part-<writer>-<n>-<shard>.parquet   written whole under another name, then renamed

A value that does not fit its column, such as an integer of 70 bits, is written as missing. If the disk is
full or read-only, only the records concerned are lost.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from polyrec.models.data.prediction_log.log_format import FEEDBACK, HOUR, LABEL_COLUMNS, REQUESTS
from polyrec.models.files import atomic_path

log = logging.getLogger("polyrec.prediction_log")

WARNING_EVERY_S = 60.0
HOUR_SHARE = 0.25
"""Share of a bounded log's bytes above which an hour loses files before earlier hours do."""
UNFIT = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""Errors of values that do not fit their column."""
Record = Sequence[Mapping[str, Any]]
"""The rows of one request, or of one call's labels; at least one."""


class PartFiles:
    """Buffers and writes the files of one kind.

    columns: columns of each row. time_column: column with the time in microseconds. shard_by: column whose
    value in a record's first row selects one of `shards` files; None: one file.
    """

    def __init__(
        self, folder: Path, columns: pa.Schema, time_column: str, shard_by: str | None = None, shards: int = 1
    ) -> None:
        self._folder = folder
        self._columns = columns
        self._time = time_column
        self._shard_by = shard_by
        self._shards = shards
        self._writer = secrets.token_hex(4)
        self._parts = 0
        self._records: list[Record] = []
        self._warned_s = -WARNING_EVERY_S
        self._failed = 0

    def add(self, record: Record) -> None:
        """Buffers a record, whose rows stay together."""
        self._records.append(record)

    def flush(self) -> tuple[int, int]:
        """Writes buffered records; returns the numbers of records written and lost."""
        records, self._records = self._records, []
        written = failed = 0
        self._parts += 1
        for (hour, shard), part in self._parted(records).items():
            name = f"part-{self._writer}-{self._parts:06}-{shard}.parquet"
            try:
                self._write(self._folder / hour, name, self._table(part))
                written += len(part)
            except (OSError, pa.ArrowException) as e:
                failed += len(part)
                self._warn(e)
        self._failed += failed
        if written and not failed and self._failed:
            log.warning("records for '%s' are written again; %d were lost", self._folder, self._failed)
            self._failed = 0
        return written, len(records) - written

    def _parted(self, records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
        """Groups the records by hour and shard, in their order."""
        parts: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in records:
            first = record[0]
            hour = datetime.fromtimestamp(first[self._time] / 1e6, UTC).strftime(HOUR)
            shard = crc32(str(first.get(self._shard_by)).encode()) % self._shards if self._shard_by else 0
            parts[hour, shard].append(record)
        return parts

    def _table(self, records: Sequence[Record]) -> pa.Table:
        """Returns the records' rows, with None for values that do not fit their column."""
        rows = list(chain.from_iterable(records))
        try:
            return pa.Table.from_pylist(rows, self._columns)
        except UNFIT:
            arrays = [
                pa.array(_fitting([row.get(c.name) for row in rows], pa.list_(c.type)), c.type)
                for c in self._columns
            ]
            return pa.Table.from_arrays(arrays, schema=self._columns)

    def _write(self, folder: Path, name: str, table: pa.Table) -> None:
        if not table.num_rows:
            return
        folder.mkdir(parents=True, exist_ok=True)
        # a part of a file, or an empty one, would end every reading of the log
        with atomic_path(folder / name) as partial:
            pq.write_table(table.combine_chunks(), partial, compression="zstd")

    def _warn(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._warned_s >= WARNING_EVERY_S:
            self._warned_s = now_s
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            log.error("records for '%s' are lost: %s", self._folder, reason)


def _fitting(value: Any, type_: pa.DataType) -> Any:
    """Returns a value if it fits a type, None if not; of a list, None for each element that does not fit."""
    try:
        pa.scalar(value, type_)
        return value
    except UNFIT:
        if pa.types.is_list(type_) and isinstance(value, list | tuple):
            return [_fitting(each, type_.value_type) for each in value]
        return None


def label_files(folder: Path) -> PartFiles:
    """Returns the label files of a log."""
    return PartFiles(folder / FEEDBACK, LABEL_COLUMNS, "time")


def remove_old(folder: Path, keep_h: float, max_bytes: int | None, now_s: float) -> None:
    """Removes the oldest hour if it ended more than keep_h hours ago, then the oldest beyond max_bytes.

    At most one hour per call is removed for its age, so that a clock that is wrong for a few calls costs few
    hours. Clients determine how much is logged in an hour, so hours with more than HOUR_SHARE of max_bytes
    lose their oldest files first. now_s: Unix time in seconds.
    """
    now = datetime.fromtimestamp(now_s, UTC)
    hours = sorted(_hours(folder), key=lambda hour: hour.name)
    files = {hour: sorted(_files(hour)) for hour in hours}
    sizes = {hour: sum(size for _, size, _ in files[hour]) for hour in hours}
    total = sum(sizes.values())

    def trim(hour: Path, min_files: int, limit: float) -> None:
        """Removes an hour's oldest files while it has more than `limit` bytes, but keeps `min_files`."""
        nonlocal total
        while len(files[hour]) > min_files:
            if max_bytes is None or total <= max_bytes or sizes[hour] <= limit:
                break
            _, size, file = files[hour].pop(0)
            file.unlink(missing_ok=True)
            total -= size
            sizes[hour] -= size

    for hour in hours:
        trim(hour, 1, HOUR_SHARE * (max_bytes or 0))
    for hour in hours:
        begun = datetime.strptime(hour.name, HOUR).replace(tzinfo=UTC)
        age = now - begun - timedelta(hours=1)
        old = hour.name == hours[0].name and age.total_seconds() > 3600 * keep_h
        over = max_bytes is not None and total > max_bytes and age.total_seconds() >= 0
        if old or over:
            shutil.rmtree(hour, ignore_errors=True)
            total -= sizes[hour]
    for hour in hours:
        if hour.exists():
            trim(hour, 0, 0)


def listed(folder: Path, pattern: str) -> list[Path]:
    """Returns what a folder contains, sorted; nothing if it is removed meanwhile, as trimming does."""
    try:
        return sorted(folder.glob(pattern))
    except FileNotFoundError:
        return []


def _files(hour: Path) -> Iterator[tuple[int, int, Path]]:
    """Yields modification time in ns, bytes and path of each file; tolerates removal by another server."""
    for file in listed(hour, "*.parquet"):
        with suppress(FileNotFoundError):
            found = file.stat()
            yield found.st_mtime_ns, found.st_size, file


def _hours(folder: Path) -> Iterator[Path]:
    for kind in (REQUESTS, FEEDBACK):
        for hour in (folder / kind).glob("*"):
            try:
                datetime.strptime(hour.name, HOUR)
            except ValueError:
                continue
            yield hour
