"""Implements `polyrec.load`: a bundle in this process that answers like a server.

Rows pass the server's own parser and encoder, so this accepts, refuses and answers exactly what a server
does, with the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from polyrec.client.answers import Prediction, Ranking
from polyrec.client.bodies import predict_body, rank_body
from polyrec.client.errors import InvalidRequest
from polyrec.client.rows import Rows
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.errors import FeatureError
from polyrec.models.runtimes import best_runtime, open_runtime
from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import Limits, single_path_plan
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.rows import Columns
from polyrec.server.errors import RequestError

MAX_ROWS = 2**20
"""Most rows of one call."""
MAX_BYTES = 2**32
BATCH_ROWS = 1024
"""Rows that the runtime executes together, as on a server."""


class Model:
    """A bundle executed in this process. Thread-safe; calls are serialized.

    bundle: the loaded bundle. path: the name of the path in a server, such as `table@cpu`.
    """

    def __init__(self, bundle: Bundle, runtime: str, device: str, precision: DensePrecision) -> None:
        self.bundle = bundle
        plan = single_path_plan(bundle.path, bundle.name, runtime, device, precision, bundle.width)
        self.path = plan.paths[0].name
        self._runtime = open_runtime(runtime, bundle, device, precision)
        limits = Limits(max_body_bytes=MAX_BYTES, max_request_rows=MAX_ROWS, max_queued_rows=MAX_ROWS)
        self._decoder = JsonDecoder(bundle.manifest.schema_, limits)
        # calls are serialized, because a runtime reuses its buffers
        self._lock = Lock()

    @property
    def schema(self) -> Schema:
        """The schema of its rows."""
        return self.bundle.manifest.schema_

    @property
    def quality(self) -> float | None:
        """Information gain on the test rows; None if unknown, as for an imported model."""
        return self.bundle.test_metrics.get("information")

    def predict(self, rows: Rows) -> Prediction:
        """Predicts the probability of each row.

        rows: list of dicts, dict of columns, or a pandas, polars or Arrow table; at most MAX_ROWS.
        Raises InvalidRequest.
        """
        try:
            probabilities = self._execute(self._decoder.predict(predict_body(rows)))
        except (RequestError, FeatureError) as e:
            raise _invalid(e) from None
        return Prediction(probabilities=probabilities, path=self.path, quality=self.quality)

    def rank(self, context: Mapping[str, Any] | None, candidates: Rows, top_k: int | None = None) -> Ranking:
        """Ranks the candidates of one context, best first. top_k: maximum number to return. Raises
        InvalidRequest.
        """
        try:
            request = self._decoder.rank(rank_body(context, candidates, top_k))
            probabilities = self._execute(request.rows)
        except (RequestError, FeatureError) as e:
            raise _invalid(e) from None
        order = (-probabilities).argsort(kind="stable")[: request.top_k]
        return Ranking(order=order, scores=probabilities[order], path=self.path, quality=self.quality)

    def _execute(self, rows: Columns) -> F32:
        """Returns the probabilities of rows, float32 [rows]. Raises FeatureError."""
        found = np.empty(rows.rows, np.float32)
        with self._lock:
            for first in range(0, rows.rows, BATCH_ROWS):
                part = rows.part(first, min(BATCH_ROWS, rows.rows - first))
                found[first : first + BATCH_ROWS] = self._runtime.predict(part.encode(self.bundle.encoder))
        return found


def load(
    bundle: str | Path,
    *,
    runtime: str = "auto",
    device: str | None = None,
    precision: DensePrecision = "fp32",
    width: int | None = None,
) -> Model:
    """Loads a bundle into this process.

    runtime: torch, onnx or openvino; auto: the best one on this machine.
    device: such as cpu or cuda:0.
    precision: of the dense net.
    width: a nested width; None: the widest.
    Raises BundleError or RuntimeUnavailable.
    """
    loaded = load_bundle(bundle)
    if width is None and loaded.widths:
        width = loaded.widths[-1]
    best, its_device = best_runtime()
    if runtime == "auto":
        runtime, device = best, device or its_device
    return Model(loaded.at_width(width), runtime, device or "cpu", precision)


def _invalid(error: RequestError | FeatureError) -> InvalidRequest:
    status = error.status if isinstance(error, RequestError) else HTTPStatus.UNPROCESSABLE_ENTITY
    return InvalidRequest(str(error), status.value)
