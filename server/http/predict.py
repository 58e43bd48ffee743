"""POST /v1/predict: rows in, one probability each out."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.dispatch.answer import Answer
from polyrec.server.http.call import HotEndpoint, Parsed
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.documents import OptionHeaders, PredictColumns, PredictInstances, PredictResponse
from polyrec.server.http.openapi import CLIENT_ERRORS, PATH_HEADER, Endpoint


class PredictCodec:
    """`{"instances": [...]}` or `{"columns": {...}}` -> `{"predictions": [...], ...}`."""

    endpoint = "predict"
    has_options = False

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        return Parsed(serving.decoder.predict(body))

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        content = {
            "predictions": answer.probabilities,
            "path": path.name,
            "quality": path.quality,
            "degraded": answer.degraded,
            "reason": answer.reason,
        }
        return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), headers=(path.header,))


def predict_endpoint(predict: HotEndpoint) -> Endpoint:
    """Declares POST /v1/predict."""
    return Endpoint(
        "/v1/predict",
        predict,
        method="POST",
        tag="predictions",
        summary="Predict the probability of each row",
        description="Rows as objects (`instances`) or as lists by feature (`columns`).",
        request=PredictInstances | PredictColumns,
        headers=OptionHeaders,
        response=PredictResponse,
        response_headers=PATH_HEADER,
        errors=CLIENT_ERRORS,
        token="maybe",
    )
