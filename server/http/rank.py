"""POST /v1/rank: one context and its candidates in, their order and scores out."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from models.batch import F32
from server.engine import Serving
from server.http.inference import Parsed
from server.http.reply import Reply


class RankForm:
    """`{"context": {...}, "candidates": {...}, "top_k": n}` -> `{"order": [...], "scores": [...], ...}`."""

    endpoint = "rank"

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        request = serving.decoder.rank(body)
        return Parsed(request.rows, asked=request.top_k)

    def write(self, serving: Serving, parsed: Parsed, probabilities: F32) -> Reply:
        # Stable: candidates of equal score keep the order in which they were sent.
        order = (-probabilities).argsort(kind="stable")[: parsed.asked]
        answer = {
            "order": order,
            "scores": probabilities[order],
            "path": serving.name,
            "reduced": False,
            "reason": None,
        }
        return Reply(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), headers=(serving.header,))
