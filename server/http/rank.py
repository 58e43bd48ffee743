"""POST /v1/rank: one context and its candidates in, their order and scores out."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from polyrec.server.app.serving import OpenPath, Serving
from polyrec.server.dispatch.answer import Answer
from polyrec.server.http.call import Parsed
from polyrec.server.http.connection.reply import Reply


class RankForm:
    """`{"context": {...}, "candidates": {...}, "top_k": n}` -> `{"order": [...], "scores": [...], ...}`."""

    endpoint = "rank"
    has_options = False

    def parse(self, serving: Serving, scope: Scope, body: bytes) -> Parsed:
        request = serving.decoder.rank(body)
        return Parsed(request.rows, asked=request.top_k)

    def write(self, serving: Serving, parsed: Parsed, answer: Answer, path: OpenPath) -> Reply:
        # Stable: candidates of equal score keep the order in which they were sent.
        probabilities = answer.probabilities
        order = (-probabilities).argsort(kind="stable")[: parsed.asked]
        content = {
            "order": order,
            "scores": probabilities[order],
            "path": path.name,
            "degraded": answer.degraded,
            "reason": answer.reason,
        }
        return Reply(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), headers=(path.header,))
