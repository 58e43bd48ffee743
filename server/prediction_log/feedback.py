"""POST /v1/feedback: labels of rows that were answered before, for the prediction log.

    {"request_id": "...", "positives": [3]}                 the rows that were clicked; the others were not
    {"request_id": "...", "labels": [0, 0, 0, 1]}           the label of each row
    {"feedback": [{...}, {...}]}                            up to MAX_ITEMS of these

Rows count from 0 in the order in which the request had them. A call needs a token with the right `feedback`
and counts against its client's rate. Labels are joined by request id when the log is read: unknown ids are
ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from starlette.requests import Request

from polyrec.models.files import Strict, one_line
from polyrec.server.app.engine import Engine
from polyrec.server.errors import Invalid, Malformed, NotFound, NotReady, RequestError, shortened
from polyrec.server.http.connection.body import read_body
from polyrec.server.http.connection.reply import Reply, error_reply, json_reply
from polyrec.server.http.openapi import Endpoint, RequestBody, Success

MAX_ITEMS = 1000
MAX_ROWS = 4096
MAX_BODY_BYTES = 2**17
"""Enough for MAX_ITEMS requests with some labels each; parsing more would delay other requests."""
Label = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
Row = Annotated[int, Field(ge=0, lt=MAX_ROWS, strict=True)]


def _integral(rows: object) -> object:
    """Converts floats like 3.0, which are integers in JSON, since some encoders write all numbers so."""
    if not isinstance(rows, list):
        return rows
    return [int(row) if type(row) is float and row.is_integer() else row for row in rows]


class _FewKeys(Strict):
    """A document of which only the first unknown key is reported, as 12,000 of them take 13 ms."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: object) -> object:
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            unknown = next(key for key in given if key not in cls.model_fields)
            raise ValueError(f"unknown key '{shortened(unknown)}'; known: {', '.join(cls.model_fields)}")
        return given


class FeedbackItem(_FewKeys):
    """Labels of one request. positives: rows with label 1. labels: the label of each row, from the first."""

    request_id: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
    # fail fast, because an error for each of 60,000 labels would delay other requests by 0.2 s
    positives: (
        Annotated[list[Row], Field(max_length=MAX_ROWS, fail_fast=True), BeforeValidator(_integral)] | None
    ) = None
    labels: Annotated[list[Label], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> FeedbackItem:
        if (self.positives is None) == (self.labels is None):
            raise ValueError("give either 'positives' or 'labels'")
        return self

    def rows(self) -> tuple[list[int], list[float]]:
        """Returns rows and their labels; if `positives` is empty, label 0 of row 0 shows that labels came."""
        if self.labels is not None:
            return list(range(len(self.labels))), self.labels
        assert self.positives is not None
        if not self.positives:
            return [0], [0.0]
        rows = sorted(set(self.positives))
        return rows, [1.0] * len(rows)


class FeedbackList(_FewKeys):
    """Labels of several requests."""

    feedback: Annotated[list[FeedbackItem], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]


class FeedbackResponse(BaseModel):
    """accepted: number of requests whose labels were accepted."""

    accepted: int


def feedback_endpoint(engine: Engine) -> Endpoint:
    """Declares POST /v1/feedback."""

    async def answer(request: Request) -> Reply:
        scope = request.scope
        try:
            client = engine.access.authorized("feedback", scope["headers"], scope.get("client"))
            engine.require_loaded()
            if engine.prediction_log is None:
                raise NotFound("this server has no prediction log; start it with --prediction-log FOLDER")
            body = await read_body(scope["headers"], request.receive, MAX_BODY_BYTES)
            items = _items(body)
        except RequestError as e:
            return error_reply(e)
        sent = [
            engine.prediction_log.send_labels(item.request_id, client.name, *item.rows()) for item in items
        ]
        if not all(sent):
            return error_reply(NotReady("labels cannot be written now; send them again later"))
        engine.metrics.feedback.only.inc(len(items))
        return json_reply({"accepted": len(items)})

    return Endpoint(
        "/v1/feedback",
        answer,
        method="POST",
        tag="predictions",
        summary="Labels of rows that were answered before",
        description="Joined with the prediction log by request id; an unknown id is no error.",
        request=RequestBody(FeedbackItem | FeedbackList),
        response=Success(FeedbackResponse),
        errors=(401, 403, 404, 413, 422, 503),
        token="always",
    )


def _items(body: bytes) -> list[FeedbackItem]:
    """Parses the body. Raises Malformed or Invalid."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as e:
        raise Malformed(f"the body is not JSON: {e}") from None
    try:
        if isinstance(found, dict) and "feedback" in found:
            return FeedbackList.model_validate(found).feedback
        return [FeedbackItem.model_validate(found)]
    except ValidationError as e:
        raise Invalid(one_line(e)) from None
