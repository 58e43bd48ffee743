"""The files of a prediction log, which `polyrec serve --prediction-log` writes (server/prediction_log/).

FOLDER/log.json                                how labels are joined, see `LogRules`
FOLDER/requests/2026-11-23T17/part-*.parquet   one row per request: its context once, candidates as lists
FOLDER/feedback/2026-11-23T17/part-*.parquet   labels: request id, row of the request, label, time
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field

from polyrec.models.data.columns import TARGET, column_kind
from polyrec.models.errors import DataError
from polyrec.models.files import Strict, read_json, validate_as
from polyrec.models.schema.schema import Schema

RULES = "log.json"
REQUESTS, FEEDBACK = "requests", "feedback"
HOUR = "%Y-%m-%dT%H"
"""Format of the name of an hour's folder, UTC."""
TIME, REQUEST_ID, SCORES = "log.time", "log.request_id", "log.scores"
KEY, ROW = "log.key", "log.row"
PATH, VERSION, REASON = "log.path", "log.version", "log.reason"
"""Columns beside the features; no feature's name has a dot."""
KEY_BITS = 12
"""Bits of a request's key below its time in microseconds."""
MAX_WINDOW_S = 1e8
TIME_TYPE = pa.timestamp("us", tz="UTC")
LOG_COLUMNS = pa.schema(
    [
        (TIME, TIME_TYPE),
        (KEY, pa.int64()),
        (ROW, pa.int32()),
        (REQUEST_ID, pa.string()),
        (PATH, pa.string()),
        (VERSION, pa.string()),
        (REASON, pa.string()),
        (SCORES, pa.list_(pa.float32())),
    ]
)
"""Columns of each stored row, before its features.

A ranking is one stored row, other requests are several, which are neighbors. time: when the answer was
written. key: grows with the time and differs between requests (and their groups). row: the stored row's
first row in the request. scores: of its rows.
"""
LABEL_COLUMNS = pa.schema(
    [
        ("request_id", pa.string()),
        ("row", pa.int32()),
        ("label", pa.float64()),
        ("time", TIME_TYPE),
        ("client", pa.string()),
    ]
)
"""Columns of a file of labels. row: of the request, from 0. time: null counts as within the window. client:
sender; null in files that the operator put there."""


class LogRules(Strict):
    """The rules of a log, in its log.json.

    for_schema: name of the schema. features: the stored features, with their types.
    window_s: seconds after an answer in which its labels count; a request is read once they have passed.
    unlabeled: whether a request without any label counts as all negatives or is left out.
    """

    format: Literal["polyrec-predictions-1"] = "polyrec-predictions-1"
    for_schema: str
    features: dict[str, str]
    window_s: Annotated[float, Field(gt=0, le=MAX_WINDOW_S)] = 3600.0
    unlabeled: Literal["negative", "leave_out"] = "negative"


def is_prediction_log(path: Path) -> bool:
    """Returns whether a folder is a prediction log."""
    return (path / RULES).is_file()


def load_rules(folder: Path) -> LogRules:
    """Reads the rules of a log. Raises DataError."""
    what = f"prediction log '{folder}'"
    try:
        raw = read_json(folder / RULES, what, DataError)
    except FileNotFoundError:
        raise DataError(
            f"no {what}: there is no {RULES}, which `polyrec serve --prediction-log` writes"
        ) from None
    return validate_as(LogRules, raw, what, DataError)


def stored_types(schema: Schema) -> dict[str, pa.DataType]:
    """Returns the types of the features in request files: one value for the context, lists for candidates."""
    types: dict[str, pa.DataType] = {}
    for role in (schema.context, schema.candidate):
        for name in role.names:
            one = TARGET[column_kind(schema, name)]
            types[name] = one if role is schema.context else pa.list_(one)
    return types


def stored_names(schema: Schema) -> dict[str, str]:
    """Returns the stored features with the names of their types, for `LogRules`."""
    return {name: str(type_) for name, type_ in stored_types(schema).items()}


@lru_cache(2**14)
def hour_named(folder: str) -> datetime | None:
    """Returns the hour that a folder is named after, None if it has another name."""
    try:
        return datetime.strptime(folder, HOUR).replace(tzinfo=UTC)
    except ValueError:
        return None
