"""A prediction log written by its own writer, of requests of any time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.prediction_log.log_format import RULES, LogRules, stored_names
from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Plan
from polyrec.server.codecs.rows import RankedTensors, Tensors
from polyrec.server.live_quality.settings import JudgedPath, JudgeSettings
from polyrec.server.prediction_log.counts import SharedCounts
from polyrec.server.prediction_log.log import vocabulary_file
from polyrec.server.prediction_log.records import Feedback, IdRows, JsonRows, Prediction
from polyrec.server.prediction_log.settings import PredictionLogSettings
from polyrec.server.prediction_log.writer import Writer, WriterSettings
from tests.server.conftest import Request

WINDOW_S = 600.0
NARROW, WIDE = "table.w4@cpu", "table.w8@cpu"


class LogFolder:
    """A log whose requests were answered at `at_s`, Unix time in seconds."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        rules = {"for_schema": schema.name, "features": stored_names(schema), "window_s": WINDOW_S}
        (folder / RULES).write_text(LogRules.model_validate(rules).model_dump_json())
        self.folder = folder
        self.schema = schema
        self.at_s = time.time() - 60
        self.counts = SharedCounts()
        log = PredictionLogSettings(folder=folder, flush_s=3600)
        self._writer = Writer(
            WriterSettings(log=log, schema_=schema, counts_fd=self.counts.fd, shards=1),
            self.counts,
        )

    @property
    def final_s(self) -> float:
        """A time at which all labels of what was written until now are final."""
        return time.time() + WINDOW_S + 1

    def add(
        self,
        request: Request,
        request_id: str,
        scores: F32 | None = None,
        path: str = WIDE,
        version: str = "v",
        ranking: bool = True,
    ) -> None:
        content = (
            {"context": request.context, "candidates": request.candidates}
            if ranking
            else {"columns": request.columns}
        )
        given = np.full(len(request.rows), 0.5, np.float32) if scores is None else scores
        at_us = round(1e6 * self.at_s)
        body = orjson.dumps(content)
        self._writer.add(
            Prediction(request_id, at_us, path, version, None, given.tobytes(), JsonRows(ranking, body))
        )

    def add_ids(self, bundle: Bundle, rows: Tensors | RankedTensors, request_id: str) -> None:
        """A request of the inference protocol."""
        version, at_us = bundle.manifest.version, round(1e6 * self.at_s)
        scores = np.full(rows.rows, 0.5, np.float32).tobytes()
        self._writer.add(vocabulary_file(bundle))
        self._writer.add(Prediction(request_id, at_us, WIDE, version, None, scores, IdRows.from_rows(rows)))

    def label(
        self,
        request_id: str,
        rows: Sequence[int],
        labels: Sequence[float],
        client: str = "shop",
        after_s: float = 10,
    ) -> None:
        at_us = round(1e6 * (self.at_s + after_s))
        self._writer.add(Feedback(request_id, client, at_us, list(rows), list(labels)))

    def write(self) -> None:
        """Writes what was added as files."""
        self._writer.flush(always=True)


@pytest.fixture
def log_folder(tmp_path: Path, nested: Bundle) -> Iterator[LogFolder]:
    folder = LogFolder(tmp_path, nested.manifest.schema_)
    yield folder
    folder.counts.close()


def plan_of_widths(bundle: Bundle) -> Plan:
    """A plan of both widths of a nested bundle, on one lane."""
    return Plan.model_validate(
        {
            "paths": [
                {"name": f"table.w{width}@cpu", "bundle": bundle.path, "runtime": "torch", "width": width}
                for width in (4, 8)
            ],
            "default_budget_ms": 60_000,
        }
    )


@pytest.fixture
def judge_settings(log_folder: LogFolder, nested: Bundle) -> JudgeSettings:
    version = nested.manifest.version
    return JudgeSettings(
        folder=log_folder.folder,
        paths=tuple(
            JudgedPath(
                name=f"table.w{width}@cpu",
                bundle=nested.path,
                version=version,
                runtime="torch",
                precision="fp32",
                width=width,
            )
            for width in (4, 8)
        ),
        reference=WIDE,
        span_s=86400,
        every_s=60,
        settle_s=0,
        trusted=(),
    )
