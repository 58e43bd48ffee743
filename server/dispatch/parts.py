"""Encodes parts of queries as one batch, and distributes the batch's probabilities over the queries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.planner.routing.query import DEGRADED, Dispatch, Part, Reason
from polyrec.server.codecs.rows import Rows, encode
from polyrec.server.dispatch.answer import Answer, QueryPayload, fail, settle
from polyrec.server.errors import Invalid
from polyrec.server.lanes.tiered_runtime import BatchView


def encode_parts(parts: list[Part], encoder: Encoder) -> tuple[list[Part], Batch | None]:
    """Encodes the rows of all parts as one batch.

    Returns the parts in the batch's order, plain rows first, and the batch. A query that cannot be encoded
    fails and is left out; the batch is None if no part is left.
    """
    if not parts:
        return [], None
    if len(parts) > 1:
        parts = sorted(parts, key=lambda part: not part.query.payload.rows.plain)
    looked_up = parts[0].query.payload.looked_up
    if looked_up is not None and looked_up.encoder is encoder and looked_up.matches(parts):
        return parts, looked_up.batch
    rows = [_rows(part) for part in parts]
    try:
        return parts, encode(rows, encoder)
    except FeatureError as e:
        if len(parts) == 1:
            fail(parts[0].query, e)
            return [], None
    sound: list[Part] = []
    for part, part_rows in zip(parts, rows, strict=True):
        try:
            part_rows.encode(encoder)
        except FeatureError as e:
            fail(part.query, e)
        else:
            sound.append(part)
    return sound, encode([_rows(part) for part in sound], encoder) if sound else None


def scatter(
    dispatch: Dispatch,
    parts: Sequence[Part],
    probabilities: F32,
    took_s: float,
    lost: BatchView | None = None,
    encode_s: float = 0.0,
) -> None:
    """Answers every query whose rows are complete.

    probabilities: float32 [rows of all parts], in the order of `parts`.
    took_s: seconds of the whole batch.
    lost: the batch's view, if the remote store failed to return some of its rows.
    encode_s: seconds of encoding the batch.
    """
    rows = probabilities.size
    reason = dispatch.reason.value if dispatch.reason in DEGRADED else None
    # checks all at once: the sum of squares is finite if all are, and four times as fast as isfinite
    finite = math.isfinite(probabilities.dot(probabilities))
    first = 0
    for part in parts:
        query, answered = part.query, probabilities[first : first + part.rows]
        first += part.rows
        payload: QueryPayload = query.payload
        if payload.answer.done():
            continue
        if lost is not None and not (payload.looked_up and payload.looked_up.needs_no_store(query, lost)):
            payload.lost = True
        if not finite and not math.isfinite(float(answered.sum())):
            fail(query, Invalid("the features give no finite probability; a dense value is far too large"))
            continue
        if part.rows < query.rows:
            if payload.probabilities is None:
                payload.probabilities = np.full(query.rows, np.nan, np.float32)
            whole = _joined(payload.probabilities, part, answered)
            if whole is None:
                continue
            answered = whole
        query.settled = True
        queue_s = max(0.0, dispatch.started_s - query.arrival_s)
        reason_of_query = Reason.FAILURE.value if payload.lost else reason
        lane = dispatch.lane
        answer = Answer(answered, dispatch.path, reason_of_query, queue_s, took_s, rows, lane, encode_s)
        settle(query, answer)


def _rows(part: Part) -> Rows:
    rows: Rows = part.query.payload.rows
    return rows if part.rows == rows.rows else rows.part(part.first, part.rows)


def _joined(whole: F32, part: Part, answered: F32) -> F32 | None:
    """Adds a part to a split query's probabilities; returns them once they are complete, else None."""
    whole[part.first : part.first + part.rows] = answered
    return None if np.isnan(whole).any() else whole
