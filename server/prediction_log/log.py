"""The server's end of the prediction log: samples answers and sends them to the writer process."""

from __future__ import annotations

import logging
import os
import random
import time
from pathlib import Path

import numpy as np
import orjson

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.manifest import VOCABULARY
from polyrec.models.data.prediction_log.log_format import RULES, LogRules, load_rules, stored_names
from polyrec.models.errors import PolyrecError
from polyrec.models.files import create_whole
from polyrec.models.schema.schema import Schema
from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.codecs.rows import RankedTensors, Rows, Tensors
from polyrec.server.dispatch.answer import Answer
from polyrec.server.prediction_log.counts import Outcome, SharedCounts
from polyrec.server.prediction_log.privacy import hide_functions, load_key
from polyrec.server.prediction_log.records import (
    Feedback,
    IdRows,
    JsonRows,
    Prediction,
    VocabularyFile,
    pack,
)
from polyrec.server.prediction_log.settings import PredictionLogSettings
from polyrec.server.prediction_log.writer import WriterSettings
from polyrec.server.record_pipe import RecordPipe, close_pipes, framed

log = logging.getLogger("polyrec.prediction_log")

UNSENT_BYTES = 16 * 2**20
RESTART_S = 10.0
"""Minimum time between the start of a writer and the start of its replacement, if it exits."""


class PredictionLogError(PolyrecError):
    """Raised if a log cannot be opened: it has another schema, or its folder is not writable."""


class PredictionLog:
    """The log of one server.

    schema: schema of the logged requests; others are not logged. Raises PredictionLogError or PrivacyError.
    """

    def __init__(self, settings: PredictionLogSettings, schema: Schema) -> None:
        self._schema = schema
        self._sample = settings.sample
        self._random = random.Random().random
        self.pauses = False
        """Whether nothing is logged because the served schema is not the log's."""
        folder = settings.folder.resolve()
        if settings.session is not None and settings.session not in schema.context.names:
            raise PredictionLogError(f"the schema has no context feature '{settings.session}' to shard by")
        hide_functions(schema, settings.leave_out, settings.hash, b"")
        _begin(folder, settings, schema)
        if settings.hash:
            load_key(folder)
        self._counts = SharedCounts()
        self._known: set[str] = set()
        """Versions whose ids the writer can convert to values."""
        self._dropped = 0
        self._closed = False
        settings = settings.model_copy(update={"folder": folder})
        self._writer = WriterSettings(log=settings, schema_=schema, counts_fd=self._counts.fd)
        self.pipe = self._start()

    def follow(self, serving: Serving) -> None:
        """Switches to another generation of the plan; pauses while its schema is not the log's."""
        self.pauses = serving.bundle.manifest.schema_ != self._schema
        if self.pauses:
            log.error("requests are not logged: the schema that is served is not the log's")

    def wants(self) -> bool:
        """Returns whether to log the request that begins now."""
        return not self.pauses and (self._sample >= 1 or self._random() < self._sample)

    def send_prediction(
        self, request_id: str, rows: Rows, body: bytes, answer: Answer, path: OpenPath
    ) -> None:
        """Sends an answered request to the writer without waiting. rows: rows parsed from the body."""
        pipe = self._living()
        manifest = path.bundle.manifest
        if isinstance(rows, Tensors | RankedTensors):
            asked: JsonRows | IdRows = IdRows.from_rows(rows)
            if manifest.version not in self._known:
                # of another schema if a plan was loaded while the request was executed
                if manifest.schema_ != self._schema or not pipe.send(pack(vocabulary_file(path.bundle))):
                    self._dropped += 1
                    return
                self._known.add(manifest.version)
        else:
            asked = JsonRows(not rows.plain, body)
        scores = answer.probabilities.astype(np.float32, copy=False).tobytes()
        at_us = time.time_ns() // 1000
        record = Prediction(request_id, at_us, path.name, manifest.version, answer.reason, scores, asked)
        if not pipe.send(pack(record)):
            self._dropped += 1

    def send_labels(self, request_id: str, client: str, rows: list[int], labels: list[float]) -> bool:
        """Sends a client's labels of one request to the writer without waiting; returns False if dropped."""
        return self._living().send(pack(Feedback(request_id, client, time.time_ns() // 1000, rows, labels)))

    def counts(self) -> dict[Outcome, int]:
        """Returns the numbers of requests and of calls with labels, by outcome."""
        return self._counts.read() | {("requests", "dropped"): self._dropped}

    def close(self) -> None:
        """Lets the writer finish, in bounded time; blocks. Records sent afterwards are dropped."""
        self._closed = True
        close_pipes([self.pipe])
        self._counts.close()

    def _living(self) -> RecordPipe:
        """Returns the pipe to the writer, which is restarted some time after it has ended."""
        if self.pipe.alive or self._closed or time.monotonic() - self._started_s < RESTART_S:
            return self.pipe
        close_pipes([self.pipe])
        try:
            self.pipe = self._start()
        except OSError as e:  # no process or descriptor is left; a later record tries again
            log.error("the writer of the prediction log cannot be started: %s", e.strerror)
        return self.pipe

    def _start(self) -> RecordPipe:
        self._started_s = time.monotonic()
        self._known.clear()
        pipe = RecordPipe(
            "polyrec.server.prediction_log.writer",
            "writer of the prediction log",
            "records of it",
            log,
            os.environ,
            inherited=[self._counts.fd],
            unsent_bytes=UNSENT_BYTES,
        )
        pipe.send(framed(self._writer.model_dump_json().encode()))
        return pipe


def vocabulary_file(bundle: Bundle) -> VocabularyFile:
    """Returns the record from which the writer can convert a bundle's ids to values."""
    manifest = bundle.manifest
    descriptors = {table: each.model_dump(mode="json") for table, each in manifest.vocabularies.items()}
    digest = manifest.files[VOCABULARY].sha256
    return VocabularyFile(manifest.version, str(bundle.path / VOCABULARY), digest, orjson.dumps(descriptors))


def _begin(folder: Path, settings: PredictionLogSettings, schema: Schema) -> None:
    """Writes the rules of a new log, or checks that an existing log has this schema.

    Raises PredictionLogError.
    """
    features = stored_names(schema)
    new = LogRules(
        for_schema=schema.name, features=features, window_s=settings.window_s, unlabeled=settings.unlabeled
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / RULES
        others = [each.name for each in folder.iterdir() if not each.name.startswith(".")]
        if not file.exists():
            if others:
                raise PredictionLogError(f"'{folder}' has other things than a prediction log")
            create_whole(file, new.model_dump_json(indent=1).encode() + b"\n")
        rules = load_rules(folder)
        if (rules.for_schema, rules.features) != (schema.name, features):
            raise PredictionLogError(f"'{folder}' is a log of other features; name another folder")
        if not os.access(folder, os.W_OK):
            raise PredictionLogError(f"'{folder}' cannot be written")
    except OSError as e:
        raise PredictionLogError(f"'{folder}' cannot be a prediction log: {e.strerror}") from None
