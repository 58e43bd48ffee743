"""Codecs and declarations of POST /v1/predict and POST /v1/rank.

/v1/predict takes rows and returns a probability for each. /v1/rank takes one context with its candidates and
returns the candidates' order and scores."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from starlette.types import Scope

from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.codecs.row_count import rows_of_predict, rows_of_rank
from polyrec.server.dispatch.answer import Answer
from polyrec.server.http.call import Parsed
from polyrec.server.http.connection.hot_endpoint import HotEndpoint
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.documents import (
    OptionHeaders,
    PredictColumns,
    PredictInstances,
    PredictResponse,
    RankingRequest,
    RankingResponse,
)
from polyrec.server.http.openapi import CLIENT_ERRORS, PATH_HEADER, Endpoint, RequestBody, Success


class PredictCodec:
    """`{"instances": [...]}` or `{"columns": {...}}` -> `{"predictions": [...], ...}`."""

    endpoint = "predict"
    has_options = False

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        return Parsed(serving.json_decoder.predict(body))

    def count_rows(self, serving: Serving, body: bytes) -> int | None:
        serving.json_decoder.body_limits.check_rows(body)
        return rows_of_predict(body)

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        return _reply({"predictions": answer.probabilities}, answer, path)


class RankCodec:
    """`{"context": {...}, "candidates": {...}, "top_k": n}` -> `{"order": [...], "scores": [...], ...}`."""

    endpoint = "rank"
    has_options = False

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        request = serving.json_decoder.rank(body)
        return Parsed(request.rows, request.top_k)

    def count_rows(self, serving: Serving, body: bytes) -> int | None:
        serving.json_decoder.body_limits.check_rows(body)
        return rows_of_rank(body)

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        # a stable sort, so that candidates with equal scores keep the order in which they were sent
        probabilities = answer.probabilities
        order = (-probabilities).argsort(kind="stable")[: parsed.reply_form]
        return _reply({"order": order, "scores": probabilities[order]}, answer, path)


def predict_endpoint(predict: HotEndpoint) -> Endpoint:
    """Declares POST /v1/predict."""
    return _endpoint(
        "/v1/predict",
        predict,
        PredictInstances | PredictColumns,
        PredictResponse,
        summary="Predict the probability of each row",
        description="Rows as objects (`instances`) or as lists by feature (`columns`).",
    )


def rank_endpoint(rank: HotEndpoint) -> Endpoint:
    """Declares POST /v1/rank."""
    return _endpoint(
        "/v1/rank",
        rank,
        RankingRequest,
        RankingResponse,
        summary="Rank the candidates of one context",
        description="The context is read and computed once. Candidates of equal score keep their order.",
    )


def _reply(content: dict[str, Any], answer: Answer, path: OpenPath) -> Reply:
    content["path"] = path.name
    content["quality"] = path.quality
    content["degraded"] = answer.degraded
    content["reason"] = answer.reason
    return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), headers=(path.header,))


def _endpoint(
    path: str, answer: HotEndpoint, request: Any, response: type[BaseModel], summary: str, description: str
) -> Endpoint:
    return Endpoint(
        path,
        answer,
        method="POST",
        tag="predictions",
        summary=summary,
        description=description,
        headers=OptionHeaders,
        request=RequestBody(request),
        response=Success(response, headers=PATH_HEADER),
        errors=CLIENT_ERRORS,
        token="maybe",
    )
