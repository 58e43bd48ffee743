"""POST /v1/rank: one context and its candidates in, their order and scores out."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.dispatch.answer import Answer
from polyrec.server.http.call import HotEndpoint, Parsed
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.documents import OptionHeaders, RankingRequest, RankingResponse
from polyrec.server.http.openapi import CLIENT_ERRORS, PATH_HEADER, Endpoint


class RankCodec:
    """`{"context": {...}, "candidates": {...}, "top_k": n}` -> `{"order": [...], "scores": [...], ...}`."""

    endpoint = "rank"
    has_options = False

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        request = serving.decoder.rank(body)
        return Parsed(request.rows, request=request.top_k)

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        # Stable: candidates of equal score keep the order in which they were sent.
        probabilities = answer.probabilities
        order = (-probabilities).argsort(kind="stable")[: parsed.request]
        content = {
            "order": order,
            "scores": probabilities[order],
            "path": path.name,
            "quality": path.quality,
            "degraded": answer.degraded,
            "reason": answer.reason,
        }
        return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), headers=(path.header,))


def rank_endpoint(rank: HotEndpoint) -> Endpoint:
    """Declares POST /v1/rank."""
    return Endpoint(
        "/v1/rank",
        rank,
        method="POST",
        tag="predictions",
        summary="Rank the candidates of one context",
        description="The context is read and computed once. Candidates of equal score keep their order.",
        request=RankingRequest,
        headers=OptionHeaders,
        response=RankingResponse,
        response_headers=PATH_HEADER,
        errors=CLIENT_ERRORS,
        token="maybe",
    )
