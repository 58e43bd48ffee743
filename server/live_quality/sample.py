"""Samples the requests of a prediction log whose labels are final, to be scored again.

A request is sampled once its labels' window has passed: before that, a row without a label may still become a
positive. Each round reads a bounded number of random files, and a bounded number of requests of each, so that
the work does not grow with the traffic.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polyrec.models.data.prediction_log.log_format import (
    HOUR,
    KEY,
    PATH,
    REQUEST_ID,
    REQUESTS,
    ROW,
    SCORES,
    TIME,
    VERSION,
    load_rules,
)
from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import Schema
from polyrec.server.live_quality.labels import RequestLabels, join_labels
from polyrec.server.prediction_log.files import listed

FILES = 16
"""Maximum files of requests read in a round."""
MAX_ROWS = 50_000
"""Maximum rows of the requests of a round."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRequest:
    """A request of the log with final labels.

    ranking: whether `body` is a /v1/rank request rather than /v1/predict. served: float32 [rows], scores of
    its answer, computed by `path` of bundle `version`.
    """

    path: str
    version: str
    ranking: bool
    body: bytes
    served: F32
    labels: RequestLabels


class LogSampler:
    """Samples each request of a log at most once.

    span_s: maximum age of requests. settle_s: time until a server's answers are in the log's files. requests:
    maximum number per round. Methods raise DataError for a log that cannot be read.
    """

    def __init__(self, folder: Path, schema: Schema, span_s: float, settle_s: float, requests: int) -> None:
        self._folder = folder
        self._schema = schema
        self._span_s = span_s
        self._requests = requests
        self._random = random.Random(0)
        self.repeated = 0
        """Number of requests omitted so far because another request had their id."""
        self._seen: set[Path] = set()
        rules = load_rules(folder)
        self.window_s = rules.window_s
        self.final_after_s = rules.window_s + settle_s
        """Time from an answer until it can be sampled."""
        self._leave_out = rules.unlabeled == "leave_out"

    def oldest_s(self, now_s: float) -> float:
        """Returns the earliest time of requests that still count, as Unix time in seconds."""
        return now_s - self.final_after_s - self._span_s

    def sample(self, now_s: float) -> list[LoggedRequest]:
        """Returns at most `requests` random requests that were not returned before."""
        final_s = now_s - self.final_after_s
        files = self._files(final_s)
        chosen = self._random.sample(files, min(FILES, len(files)))
        self._seen.update(chosen)
        found: list[LoggedRequest] = []
        ids: list[pa.Array] = []
        for file in chosen:
            requests, ids_of_file = self._read(file, max(1, self._requests // len(chosen)))
            found += requests
            ids.append(ids_of_file)
        self._random.shuffle(found)
        found = self._unambiguous(found, ids)
        rows = np.cumsum([request.served.size for request in found])
        found = found[: min(self._requests, int(np.searchsorted(rows, MAX_ROWS, "right")))]
        join_labels(self._folder, [request.labels for request in found], self.window_s)
        return [r for r in found if r.labels.clients or not self._leave_out]

    def _unambiguous(self, found: list[LoggedRequest], ids: Sequence[pa.Array]) -> list[LoggedRequest]:
        """Returns the requests whose ids are unique. ids: ids of all requests in each file of the round.

        Clients choose ids, so one that knows another's id could have its own rows measured with the other's
        labels.
        """
        if not found:
            return found
        counted = pc.value_counts(pa.concat_arrays(ids))
        repeated = set(counted.field(0).filter(pc.greater(counted.field(1), 1)).to_pylist())
        kept = [request for request in found if request.labels.request_id not in repeated]
        self.repeated += len(found) - len(kept)
        return kept

    def _files(self, final_s: float) -> list[Path]:
        """Returns the unread files whose requests are all final and not too old."""
        found: list[Path] = []
        there: set[Path] = set()
        for hour in listed(self._folder / REQUESTS, "*"):
            try:
                begun_s = datetime.strptime(hour.name, HOUR).replace(tzinfo=UTC).timestamp()
            except ValueError:
                continue
            if begun_s > final_s or begun_s + 3600 < final_s - self._span_s:
                continue
            for file in listed(hour, "part-*.parquet"):
                there.add(file)
                try:
                    # a file is written after the answers of all its requests
                    if file not in self._seen and file.stat().st_mtime <= final_s:
                        found.append(file)
                except FileNotFoundError:
                    continue  # removed, as it is too old or the log too large
        self._seen &= there
        return found

    def _read(self, file: Path, max_requests: int) -> tuple[list[LoggedRequest], pa.Array]:
        """Reads `max_requests` random requests of a file, and all ids; nothing if it is gone or damaged."""
        try:
            table = pq.read_table(file, use_threads=False)
            row = table.column(ROW).to_numpy()
            first = np.flatnonzero(row == 0)
            end = np.append(first[1:], row.size)
            picked = sorted(self._random.sample(range(first.size), min(max_requests, first.size)))
            ids = table.column(REQUEST_ID).combine_chunks().take(pa.array(first))
            times = table.column(TIME).cast(pa.int64()).to_numpy()
            requests = [
                self._request(table.slice(first[i], end[i] - first[i]).to_pylist(), int(times[first[i]]))
                for i in picked
            ]
            return requests, ids
        except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
            return [], pa.array([], pa.string())

    def _request(self, stored: Sequence[dict[str, Any]], at_us: int) -> LoggedRequest:
        """Rebuilds a request from its stored rows: a single one is a ranking, several are plain rows."""
        about = stored[0]
        for row in stored:
            for bag in self._schema.context.bags:
                row[bag.name] = _without_nulls(row[bag.name])
            for bag in self._schema.candidate.bags:
                row[bag.name] = [_without_nulls(values) for values in row[bag.name]]
        context, candidate = self._schema.context.names, self._schema.candidate.names
        served = np.concatenate([np.asarray(row[SCORES], np.float32) for row in stored])
        body: dict[str, Any]
        candidates = {name: [value for row in stored for value in row[name]] for name in candidate}
        if len(stored) == 1:
            body = {"context": {name: about[name] for name in context}, "candidates": candidates}
        else:
            each = [row for row in stored for _ in row[SCORES]]
            columns = {name: [row[name] for row in each] for name in context} | candidates
            if self._schema.request and self._schema.group is not None:
                columns.setdefault(self._schema.group, [row[KEY] for row in each])
            body = {"columns": columns}
        labels = RequestLabels.unlabeled(about[REQUEST_ID], at_us, served.size)
        ranking = len(stored) == 1
        return LoggedRequest(about[PATH], about[VERSION], ranking, orjson.dumps(body), served, labels)


def _without_nulls(values: list[Any] | None) -> list[Any] | None:
    """Returns a list without null ids, which the lists of a request body cannot contain."""
    return None if values is None else [value for value in values if value is not None]
