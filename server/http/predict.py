"""POST /v1/predict: rows in, one probability each out."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.dispatch.answer import Answer
from polyrec.server.http.call import Parsed
from polyrec.server.http.connection.reply import Reply


class PredictForm:
    """`{"instances": [...]}` or `{"columns": {...}}` -> `{"predictions": [...], ...}`."""

    endpoint = "predict"
    has_options = False

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        return Parsed(serving.decoder.predict(body))

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        content = {
            "predictions": answer.probabilities,
            "path": path.name,
            "degraded": answer.degraded,
            "reason": answer.reason,
        }
        return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), headers=(path.header,))
