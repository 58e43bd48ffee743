"""Builds bodies of /v1/predict and /v1/rank from rows, and of /v1/feedback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from polyrec.client.errors import InvalidRequest
from polyrec.client.rows import Rows, columns_of, context_of

PREDICT, RANK, FEEDBACK = "/v1/predict", "/v1/rank", "/v1/feedback"


def predict_body(rows: Rows) -> bytes:
    """Encodes rows as JSON columns, which the server reads faster than objects. Raises InvalidRequest."""
    columns = columns_of(rows)
    return _json({"columns": columns} if columns else {"instances": _empty(rows)})


def rank_body(context: Mapping[str, Any] | None, candidates: Rows, top_k: int | None) -> bytes:
    """Encodes one context and its candidates as JSON. Raises InvalidRequest."""
    content: dict[str, Any] = {"candidates": columns_of(candidates) or _empty(candidates)}
    if context is not None:
        content["context"] = context_of(context)
    if top_k is not None:
        content["top_k"] = top_k
    return _json(content)


def feedback_body(request_id: str, positives: Iterable[int] | None, labels: Iterable[float] | None) -> bytes:
    """Encodes the labels of one request as JSON. Raises InvalidRequest."""
    content: dict[str, Any] = {"request_id": request_id}
    if positives is not None:
        content["positives"] = [int(row) for row in positives]
    if labels is not None:
        content["labels"] = [float(label) for label in labels]
    return _json(content)


def _empty(rows: Rows) -> list[dict[str, Any]]:
    """Returns rows without any feature, whose number columns could not express."""
    return [{} for _ in rows] if isinstance(rows, Sequence) else []


def _json(content: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as e:
        raise InvalidRequest(f"{_unsendable(content)} cannot be sent as JSON: {e}") from None


def _unsendable(content: Mapping[str, Any]) -> str:
    """Names the first feature that JSON cannot represent."""
    for features in content.values():
        for name, values in features.items() if isinstance(features, Mapping) else ():
            try:
                orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
            except orjson.JSONEncodeError:
                return f"'{name}'"
    return "a value"
