"""Parses the JSON bodies of /v1/predict and /v1/rank into columns, one list per feature.

msgspec parses a body into typed structs generated from the schema, so that types are checked in C and unknown
features are rejected. No body takes more than a few milliseconds: its structure is counted before parsing
(`server/codecs/body_limits.py`), potentially slow numbers are converted separately
(`server/codecs/json_numbers.py`), and error messages quote a bounded part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from polyrec.models.errors import FeatureError
from polyrec.models.schema.request.codes import hashed_apart
from polyrec.models.schema.schema import Categorical, Dense, Schema
from polyrec.planner.plan import Limits
from polyrec.server.codecs.body_limits import BodyLimits
from polyrec.server.codecs.json_numbers import MISSING, convert_column, convert_values, may_be_slow
from polyrec.server.codecs.request_features import ColumnFeatures
from polyrec.server.codecs.rows import Column, Columns
from polyrec.server.errors import QUOTED, Invalid, Malformed, TooLarge, shortened

MAX_DIGITS = 640
"""Maximum digits of an integer in a body; the smallest limit that sys.set_int_max_str_digits takes."""
SEARCHED_BYTES = 2**16
"""Bytes before an error's position that are searched for the key it belongs to."""

_UNKNOWN = "Object contains unknown field `"
_BAD_BYTE = re.compile(r"\(byte (\d+)\)$")
_NOT_A_NUMBER = re.compile(rb"-?(?:NaN|Infinity|inf|nan)")
# a first surrogate that is not followed by a second escape or the beginning of one
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u|\\?$)")
_LONGEST_ESCAPE = 12
_GOT_NO_INTEGER = re.compile(r"Expected int(?: \| null)?, got (bool|float)")
_NO_INTEGER = {
    "bool": "true is 1, and false 0",
    "float": "write 7, not 7.0 (pandas makes floats of integers beside missing values: astype('Int64'))",
}


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The column that identifies which rows of /v1/predict belong to one request; not a feature."""

    name: str


Feature = Dense | Categorical | GroupKey


@dataclass(slots=True)
class RankRequest:
    """One context with its candidates, and the number of candidates to return."""

    rows: Columns
    top_k: int


@dataclass(frozen=True, slots=True)
class _Parsers:
    """The parsers of both endpoints, either with numbers converted or with numbers left raw."""

    predict: msgspec.json.Decoder[Any]
    rank: msgspec.json.Decoder[Any]


class JsonDecoder:
    """Parses the bodies of one schema.

    body_limits: limits on their bytes and structure.
    computes: whether to compute request features, if the schema has any.
    """

    def __init__(self, schema: Schema, limits: Limits, computes: bool = True) -> None:
        self._limits = limits
        self.body_limits = BodyLimits.from_schema(schema, limits)
        self._context = _features(schema, "context")
        self._candidate = _features(schema, "candidate")
        self._everything = self._context + self._candidate
        self._names = tuple(f.name for f in self._context), tuple(f.name for f in self._candidate)
        self._computed = frozenset(f.name for f in schema.request)
        self._request = ColumnFeatures(schema) if schema.request and computes else None
        # with request features, a body may combine rows of several requests
        self._predicted: tuple[Feature, ...] = self._everything
        self._group: int | None = None
        if schema.request and schema.group is not None:
            names = [f.name for f in self._everything]
            if schema.group not in names:
                self._predicted += (GroupKey(schema.group),)
            self._group = [*names, schema.group].index(schema.group)
        self._typed = self._parsers(raw_numbers=False)
        self._raw = self._parsers(raw_numbers=True)

    def _parsers(self, raw_numbers: bool) -> _Parsers:
        row, columns = _row(self._predicted, raw_numbers), _columns(self._predicted, raw_numbers)
        predict = msgspec.defstruct(
            "Predict",
            [("instances", list[row] | None, None), ("columns", columns | None, None)],  # type: ignore[valid-type]
            forbid_unknown_fields=True,
        )
        candidate = _row(self._candidate, raw_numbers)
        candidates = _columns(self._candidate, raw_numbers) | list[candidate]  # type: ignore[valid-type]
        top_k = Annotated[int, msgspec.Meta(ge=1, le=self._limits.max_request_rows)]
        rank = msgspec.defstruct(
            "Rank",
            [
                ("candidates", candidates),
                ("context", _row(self._context, raw_numbers) | None, None),
                ("top_k", top_k | None, None),
            ],
            forbid_unknown_fields=True,
        )
        return _Parsers(msgspec.json.Decoder(predict), msgspec.json.Decoder(rank))

    def predict(self, body: bytes) -> Columns:
        """Parses `{"instances": [...]}` or `{"columns": {...}}` into rows that each have their own context.

        Raises Malformed, Invalid, TooLarge or FeatureError.
        """
        raw_numbers = may_be_slow(body)
        request = self._parse((self._raw if raw_numbers else self._typed).predict, body)
        if (request.instances is None) == (request.columns is None):
            raise Invalid(
                "the body needs either 'instances' (a list of rows) or 'columns' (lists by feature)"
            )
        if request.columns is None:
            columns, rows = self._read(self._predicted, request.instances, "instances", raw_numbers)
        else:
            columns, rows = self._read(self._predicted, request.columns, "columns", raw_numbers)
        split, end = len(self._context), len(self._everything)
        context, candidate = columns[:split], columns[split:end]
        features = group = None
        if self._group is not None:
            group = self._groups(columns[self._group], self._predicted[self._group].name)
        if self._request is not None:
            features = self._request.plain(*self._named(context, candidate), rows, group)
        return Columns(self._names, context, candidate, rows, rows, None, features, group)

    def _named(
        self, context: Sequence[Column], candidate: Sequence[Column]
    ) -> tuple[dict[str, Column], dict[str, Column]]:
        one, other = self._names
        return dict(zip(one, context, strict=True)), dict(zip(other, candidate, strict=True))

    def _groups(self, column: Column, name: str) -> Column:
        """Returns the request of each row, None if all rows are of one request (no column `name`)."""
        if column is None or None not in column:
            return None if column is None else hashed_apart(column)
        missing = [value is None for value in column]
        if all(missing):
            return None
        raise FeatureError(
            name, f"a value is missing; give it in all rows or in none (row {missing.index(True)})"
        )

    def rank(self, body: bytes) -> RankRequest:
        """Parses `{"context": {...}, "candidates": {...} or [...], "top_k": n}` into rows of one context.

        Raises Malformed, Invalid, TooLarge or FeatureError.
        """
        raw_numbers = may_be_slow(body)
        request = self._parse((self._raw if raw_numbers else self._typed).rank, body)
        candidate, rows = self._read(self._candidate, request.candidates, "candidates", raw_numbers)
        if request.context is None:
            context: list[Column] = [None] * len(self._context)
        else:
            context = [None if value is None else (value,) for value in astuple(request.context)]
            if raw_numbers:
                for i, feature in enumerate(self._context):
                    if isinstance(feature, Dense):
                        context[i] = convert_values(context[i] or (), f"$.context.{feature.name}")
        features = None
        if self._request is not None:
            features = self._request.ranked(*self._named(context, candidate), rows)
        columns = Columns(self._names, context, candidate, rows, 1, np.zeros(rows, np.int64), features)
        return RankRequest(columns, min(request.top_k or rows, rows))

    def _read(
        self, features: Sequence[Feature], given: Any, where: str, raw_numbers: bool
    ) -> tuple[Sequence[Column], int]:
        """Returns columns in the order of `features` and the number of rows; transposes rows to columns."""
        columns: list[Any]
        if isinstance(given, list):
            rows = len(given)
            # checked before transposing, as zip(*) takes one argument per row
            self._check_rows(rows, where)
            columns = list(zip(*map(astuple, given), strict=True))
            if raw_numbers:
                for i, feature in enumerate(features):
                    if isinstance(feature, Dense):
                        columns[i] = convert_values(columns[i], f"$.{where}[{{}}].{feature.name}")
            return columns, rows
        columns = list(astuple(given))
        if raw_numbers:
            for i, feature in enumerate(features):
                if isinstance(feature, Dense):
                    place = f"$.{where}.{feature.name}"
                    columns[i] = convert_column(columns[i], place, self._limits.max_request_rows)
        sizes = [len(column) for column in columns if column is not None]
        rows = max(sizes, default=0)
        self._check_rows(rows, where)
        if sizes.count(rows) != len(sizes):
            present = [f.name for f, column in zip(features, columns, strict=True) if column is not None]
            odd = next(i for i, size in enumerate(sizes) if size != rows)
            longest = present[sizes.index(rows)]
            raise FeatureError(present[odd], f"{sizes[odd]} values, but '{longest}' has {rows}")
        return columns, rows

    def _check_rows(self, rows: int, where: str) -> None:
        if rows == 0:
            raise Invalid(f"'{where}' has no rows")
        if rows > self._limits.max_request_rows:
            raise TooLarge(f"'{where}' has {rows} rows; the limit is {self._limits.max_request_rows}")

    def _parse(self, decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
        self.body_limits.check_rows(body)
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as e:
            raise Invalid(self._explain(str(e))) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Malformed(explain_malformed(body, str(e))) from None
        except RecursionError:
            raise Malformed("the body is nested too deeply") from None

    def _explain(self, message: str) -> str:
        """Converts msgspec's message to ours, which lists the valid names for an unknown field."""
        if not message.startswith(_UNKNOWN):
            said = message.replace("`", "")
            got = _GOT_NO_INTEGER.search(said)
            return f"{said}; {_NO_INTEGER[got[1]]}" if got else said
        # the location comes last and consists of names from the schema
        rest = message.removeprefix(_UNKNOWN).removesuffix("`")
        name, found, where = rest.rpartition("` - at `")
        if not found:
            name, where = rest, "$"
        name = shortened(name)
        roles = {f.name: f.role for f in self._everything}
        if where == "$":
            return f"unknown key '{name}'" + (
                f"; feature '{name}' belongs inside 'context', 'candidates', 'instances' or 'columns'"
                if name in roles
                else "; expected 'instances' or 'columns' (predict); 'context', 'candidates', 'top_k' (rank)"
            )
        if name in self._computed:
            return f"feature '{name}' is computed from the rows of the request: leave it out (at {where})"
        if name in roles:
            key = "'context'" if roles[name] == "context" else "'candidates'"
            return f"feature '{name}' is a {roles[name]} feature: it belongs in {key} (at {where})"
        allowed: tuple[Feature, ...] = self._context if where == "$.context" else self._candidate
        if not where.startswith(("$.context", "$.candidates")):
            allowed = self._predicted
        return f"unknown feature '{name}' at {where}; known: {', '.join(f.name for f in allowed)}"


def explain_malformed(body: bytes, message: str) -> str:
    """Returns a message for bytes that are not JSON, with the key before the error.

    message: msgspec's message.
    """
    if not body:
        return "the body is empty; JSON is expected"
    if message.startswith("'utf-8'"):
        return f"the body is not UTF-8: {message}"
    if "truncated" in message:
        # msgspec also reports a lone surrogate near the end of the body this way
        lone = _LONE_SURROGATE.search(body, max(0, len(body) - _LONGEST_ESCAPE))
        if lone is None:
            return f"the JSON is truncated after {len(body)} bytes"
        return _lone_surrogate(lone.start())
    found = _BAD_BYTE.search(message)
    if found is None:
        return message
    at = int(found[1])
    if "surrogate" in message:
        return _lone_surrogate(body.rfind(b"\\u", 0, at))
    at -= body[at - 1 : at] == b"-"
    literal = _NOT_A_NUMBER.match(body, at)
    if literal is None:
        return message
    key = _key_before(body, at)
    near = f" in '{key}'" if key else ""
    return f"{literal[0].decode()} is not a JSON number (byte {at}){near}; leave the value out or send null"


def _lone_surrogate(at: int) -> str:
    return f"a string has half of a UTF-16 surrogate pair (byte {at}); escape both halves, or none"


def _key_before(body: bytes, at: int) -> str:
    """Returns the last key before a byte position, empty if there is none nearby."""
    end = body.rfind(b'":', max(0, at - SEARCHED_BYTES), at)
    begin = body.rfind(b'"', max(0, end - QUOTED - 1), max(0, end))
    return "" if begin < 0 else body[begin + 1 : end].decode(errors="replace")


def _features(schema: Schema, role: str) -> tuple[Dense | Categorical, ...]:
    features: tuple[Dense | Categorical, ...] = (*schema.dense, *schema.categorical)
    return tuple(f for f in features if f.role == role)


def _value(feature: Feature) -> Any:
    if isinstance(feature, Dense):
        return float
    if isinstance(feature, GroupKey):
        return str | int
    one: Any = str if feature.type == "string" else int
    return list[one] if feature.multi else one


def _row(features: Sequence[Feature], raw_numbers: bool) -> Any:
    """Returns a struct type with one optional value per feature."""
    return _struct("Row", features, raw_numbers, lambda f: _value(f) | None)


def _columns(features: Sequence[Feature], raw_numbers: bool) -> Any:
    """Returns a struct type with one optional list of optional values per feature."""
    return _struct("Columns", features, raw_numbers, lambda f: list[_value(f) | None] | None)  # type: ignore[misc]


def _struct(name: str, features: Sequence[Feature], raw_numbers: bool, kind: Callable[[Feature], Any]) -> Any:
    # numbered attributes, since a feature's name may clash with an attribute of Python classes
    fields = [
        (f"f{i}", msgspec.Raw, MISSING) if raw_numbers and isinstance(f, Dense) else (f"f{i}", kind(f), None)
        for i, f in enumerate(features)
    ]
    rename = {f"f{i}": f.name for i, f in enumerate(features)}
    # gc=False, as parsed JSON has no cycles; rows then take a third less time
    return msgspec.defstruct(name, fields, rename=rename, forbid_unknown_fields=True, gc=False)
