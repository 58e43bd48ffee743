"""POST /v1/predict: rows in, one probability each out."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from models.batch import F32
from server.engine import Serving
from server.http.inference import Parsed
from server.http.reply import Reply


class PredictForm:
    """`{"instances": [...]}` or `{"columns": {...}}` -> `{"predictions": [...], ...}`."""

    endpoint = "predict"

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        return Parsed(serving.decoder.predict(body))

    def write(self, serving: Serving, parsed: Parsed, probabilities: F32) -> Reply:
        answer = {"predictions": probabilities, "path": serving.name, "reduced": False, "reason": None}
        return Reply(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), headers=(serving.header,))
