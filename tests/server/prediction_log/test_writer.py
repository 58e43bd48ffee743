"""The writer bounds its memory and counts what it cannot read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.manifest import VOCABULARY
from polyrec.models.data.parquet import parquet_files
from polyrec.models.data.prediction_log.log_format import FEEDBACK, REQUESTS
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.server.codecs.rows import Tensors
from polyrec.server.prediction_log.counts import SharedCounts
from polyrec.server.prediction_log.log import PredictionLog, vocabulary_file
from polyrec.server.prediction_log.records import Feedback, IdRows, JsonRows, Prediction
from polyrec.server.prediction_log.settings import PredictionLogSettings
from polyrec.server.prediction_log.writer import MAX_BYTES, VALUE_BYTES, Writer, WriterSettings
from tests.models.tiers.waiting import wait_until
from tests.server.conftest import Request
from tests.server.prediction_log.test_id_values import RandomRows


@pytest.fixture
def counts() -> Iterator[SharedCounts]:
    counts = SharedCounts()
    yield counts
    counts.close()


@pytest.fixture
def settings(tmp_path: Path, bundle: Bundle, counts: SharedCounts) -> WriterSettings:
    schema = bundle.manifest.schema_
    log = PredictionLogSettings(folder=tmp_path, flush_s=3600)
    return WriterSettings(log=log, schema_=schema, counts_fd=counts.fd)


@pytest.fixture
def by_user(settings: WriterSettings) -> WriterSettings:
    """The settings of a log whose files have all requests of a user."""
    return settings.model_copy(update={"log": settings.log.model_copy(update={"session": "user_id"})})


def prediction(body: bytes, rows: int, ranking: bool = True) -> Prediction:
    scores = np.full(rows, 0.5, np.float32).tobytes()
    at_us = time.time_ns() // 1000
    return Prediction("r", at_us, "table@cpu", "v", None, scores, JsonRows(ranking, body))


def ranking(request: Request) -> bytes:
    return orjson.dumps({"context": request.context, "candidates": request.candidates})


def test_files_are_written_before_their_time_when_much_waits(
    settings: WriterSettings, counts: SharedCounts
) -> None:
    writer = Writer(settings, counts)
    writer.flush(always=True)
    # few bytes, many values
    body = orjson.dumps({"instances": [{}] * 4096})
    values = 4096 * (len(settings.schema_.context.names) + len(settings.schema_.candidate.names))
    fewest = MAX_BYTES // (VALUE_BYTES * values)
    for i in range(fewest + 1):
        assert counts.read()["requests", "written"] == 0, i
        writer.add(prediction(body, 4096, ranking=False))
        writer.flush()
    assert counts.read()["requests", "written"] == fewest + 1


def ids_in_bags(bundle: Bundle, ids: int) -> Tensors:
    """One row with that many ids in one of its bags."""
    plain = RandomRows(bundle, 0).plain([1])
    name = next(iter(plain.bags))
    return replace(plain, bags={**plain.bags, name: (np.zeros(ids, np.int64), np.array([ids]))})


def answered(bundle: Bundle, rows: Tensors) -> Prediction:
    scores = np.full(rows.rows, 0.5, np.float32).tobytes()
    version, at_us = bundle.manifest.version, time.time_ns() // 1000
    return Prediction("r", at_us, "table@cpu", version, None, scores, IdRows.from_rows(rows))


def test_files_are_written_before_their_time_when_many_ids_of_few_rows_wait(
    settings: WriterSettings, counts: SharedCounts, bundle: Bundle
) -> None:
    writer = Writer(settings, counts)
    writer.flush(always=True)
    writer.add(vocabulary_file(bundle))
    for part in (2, 1):
        assert counts.read()["requests", "written"] == 0
        writer.add(answered(bundle, ids_in_bags(bundle, MAX_BYTES // VALUE_BYTES // part)))
        writer.flush()
    assert counts.read()["requests", "written"] == 2


def test_a_vocabulary_that_cannot_be_read_is_not_read_again_for_every_request(
    settings: WriterSettings,
    counts: SharedCounts,
    bundle: Bundle,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = Writer(settings, counts)
    moved = structs.replace(vocabulary_file(bundle), file=str(tmp_path / "moved"))
    writer.add(moved)
    writer.add(answered(bundle, ids_in_bags(bundle, 1)))
    (tmp_path / "moved").write_bytes((bundle.path / VOCABULARY).read_bytes())
    writer.add(answered(bundle, ids_in_bags(bundle, 1)))
    assert counts.read()["requests", "invalid"] == 2
    (record,) = caplog.records
    assert "requests with ids are not logged: cannot read" in record.getMessage()


def test_a_request_of_another_schema_is_counted_and_left_out(
    settings: WriterSettings, counts: SharedCounts, request_: Request, tmp_path: Path
) -> None:
    writer = Writer(settings, counts)
    writer.add(prediction(b'{"candidates": {"other": [1]}}', 1))
    writer.add(prediction(ranking(request_), len(request_.rows)))
    writer.flush(always=True)
    found = counts.read()
    assert [found["requests", outcome] for outcome in ("written", "invalid", "lost")] == [1, 1, 0]
    (file,) = parquet_files(tmp_path / REQUESTS)
    assert pq.read_table(file).num_rows == 1


def test_labels_that_cannot_be_written_are_counted(
    settings: WriterSettings, counts: SharedCounts, tmp_path: Path
) -> None:
    writer = Writer(settings, counts)
    label = Feedback("r", "shop", time.time_ns() // 1000, [0, 1], [1.0, 0.0])
    (tmp_path / FEEDBACK).touch()  # no folder can be made there
    for _ in range(2):
        writer.add(label)
    writer.flush(always=True)
    (tmp_path / FEEDBACK).unlink()
    writer.add(label)
    writer.flush(always=True)
    found = counts.read()
    assert [found["labels", outcome] for outcome in ("written", "lost")] == [1, 2]


def test_requests_of_one_session_share_a_file(
    by_user: WriterSettings, counts: SharedCounts, request_: Request, tmp_path: Path
) -> None:
    writer = Writer(by_user, counts)
    for i in range(40):
        context = request_.context | {"user_id": f"u{i % 20}"}
        body = orjson.dumps({"context": context, "candidates": request_.candidates})
        writer.add(prediction(body, len(request_.rows)))
    writer.flush(always=True)
    files = parquet_files(tmp_path / REQUESTS)
    users = [set(pq.read_table(file)["user_id"].to_pylist()) for file in files]
    assert 1 < len(files) <= 8
    assert sum(len(each) for each in users) == len(set.union(*users)) == 20


def test_rows_of_one_request_share_a_file(
    by_user: WriterSettings, counts: SharedCounts, request_: Request, tmp_path: Path
) -> None:
    writer = Writer(by_user, counts)
    rows = [row | {"user_id": f"u{i}"} for i, row in enumerate(request_.rows)]
    writer.add(prediction(orjson.dumps({"instances": rows}), len(rows), ranking=False))
    writer.flush(always=True)
    (file,) = parquet_files(tmp_path / REQUESTS)
    stored = pq.read_table(file)
    assert stored["log.row"].to_pylist() == list(range(len(rows)))
    assert stored["user_id"].to_pylist() == [row["user_id"] for row in rows]


def test_an_integer_beyond_64_bits_is_logged_as_missing(
    settings: WriterSettings,
    counts: SharedCounts,
    request_: Request,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = Writer(settings, counts)
    odd = [row | {"position": 10**30 if i else 2**63} for i, row in enumerate(request_.rows)]
    candidates = [{"position": row["position"]} for row in odd] + [{"position": 3}]
    for body in ({"instances": odd}, {"columns": {"position": [10**400, 2]}}, {"candidates": candidates}):
        given = json.dumps(body).encode()
        rows = len(next(iter(body.values()))) if "columns" not in body else 2
        writer.add(prediction(given, rows, ranking="candidates" in body))
    writer.flush(always=True)
    found = counts.read()
    assert [found["requests", outcome] for outcome in ("written", "invalid", "lost")] == [3, 0, 0]
    (file,) = parquet_files(tmp_path / REQUESTS)
    positions = pq.read_table(file)["position"].to_pylist()
    assert positions == [*([None] for _ in odd), [None], [2], [*(None for _ in odd), 3]]
    assert not caplog.messages


def test_a_log_that_grows_fast_is_hardly_larger_than_it_may_be(
    settings: WriterSettings, counts: SharedCounts
) -> None:
    """Clients choose how long values are: until the next check, a minute later, it could be any size."""
    max_bytes, random = 2**20, np.random.default_rng(7)
    log = settings.log.model_copy(update={"max_bytes": max_bytes})
    writer = Writer(settings.model_copy(update={"log": log}), counts)
    sizes = []
    for _ in range(24):
        body = orjson.dumps({"instances": [{"user_id": random.bytes(100_000).hex()}]})
        writer.add(prediction(body, 1, ranking=False))
        writer.flush(always=True)
        sizes.append(sum(file.stat().st_size for file in log.folder.rglob("*.parquet")))
    assert max_bytes / 2 < max(sizes) <= max_bytes
    assert counts.read()["requests", "written"] == 24


def test_a_log_that_was_removed_while_it_is_written_can_be_read_and_continued(
    settings: WriterSettings, counts: SharedCounts, request_: Request
) -> None:
    folder, schema = settings.log.folder / "log", settings.schema_
    hashing = settings.log.model_copy(update={"folder": folder, "hash": ("user_id",), "window_s": 1.0})
    PredictionLog(hashing, schema).close()
    key = (folder / "hash.key").read_bytes()
    writer = Writer(settings.model_copy(update={"log": hashing}), counts)
    shutil.rmtree(folder)
    asked = prediction(ranking(request_), len(request_.rows))
    writer.add(structs.replace(asked, at_us=asked.at_us - 10_000_000))
    writer.flush(always=True)
    assert (folder / "hash.key").read_bytes() == key
    assert PredictionLogReader(folder, schema).rules.window_s == 1
    PredictionLog(hashing, schema).close()


def test_a_signal_to_all_processes_of_the_service_costs_no_record(
    settings: WriterSettings, tmp_path: Path
) -> None:
    """SIGHUP reloads tokens (`systemctl kill -s HUP`), or comes with the end of a terminal."""
    often = settings.log.model_copy(update={"flush_s": 0.05})
    prediction_log = PredictionLog(often, settings.schema_)
    assert prediction_log.send_labels("before", "shop", [0], [1.0])
    wait_until(lambda: prediction_log.counts()["labels", "written"] == 1, "the writer does not run")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(prediction_log.pipe.pid, number)
    assert prediction_log.send_labels("after", "shop", [0], [1.0])
    prediction_log.close()
    files = parquet_files(tmp_path / FEEDBACK)
    found = [id for file in files for id in pq.read_table(file)["request_id"].to_pylist()]
    assert sorted(found) == ["after", "before"]
