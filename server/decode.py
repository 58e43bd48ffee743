"""The body of /v1/predict or /v1/rank -> rows.

Raw bytes go in, checked columns come out: one list per feature, whatever the number of rows. The JSON
is parsed straight into typed structs that are generated from the schema, so types are checked in C and
unknown features are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from models.errors import FeatureError
from models.schema import Categorical, Dense, Schema
from planner.plan import Limits
from server.errors import Invalid, Malformed, TooLarge
from server.rows import Column, Columns

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `(.*)`)?$", re.DOTALL)
_BAD_BYTE = re.compile(r"\(byte (\d+)\)$")
_NOT_A_NUMBER = re.compile(rb"-?(?:NaN|Infinity|inf|nan)")
_KEY = re.compile(rb'"([^"\\]{1,64})"\s*:')

COMMAS_A_VALUE = 4
COUNTED_FROM_BYTES = 2**20

Feature = Dense | Categorical


@dataclass(slots=True)
class RankRequest:
    """One context and its candidates, and how many of them the client wants back."""

    rows: Columns
    top_k: int


class Decoder:
    """Reads the bodies of one schema."""

    def __init__(self, schema: Schema, limits: Limits) -> None:
        self._limits = limits
        self._most_commas = most_commas(schema, limits)
        self._context = _features(schema, "context")
        self._candidate = _features(schema, "candidate")
        self._everything = self._context + self._candidate
        self._names = tuple(f.name for f in self._context), tuple(f.name for f in self._candidate)
        row, columns = _row(self._everything), _columns(self._everything)
        predict = msgspec.defstruct(
            "Predict",
            [("instances", list[row] | None, None), ("columns", columns | None, None)],  # type: ignore[valid-type]
            forbid_unknown_fields=True,
        )
        candidates = _columns(self._candidate) | list[_row(self._candidate)]  # type: ignore[misc]
        rank = msgspec.defstruct(
            "Rank",
            [
                ("candidates", candidates),
                ("context", _row(self._context) | None, None),
                ("top_k", Annotated[int, msgspec.Meta(ge=1, le=limits.max_request_rows)] | None, None),
            ],
            forbid_unknown_fields=True,
        )
        self._predict = msgspec.json.Decoder(predict)
        self._rank = msgspec.json.Decoder(rank)

    def predict(self, body: bytes) -> Columns:
        """`{"instances": [...]}` or `{"columns": {...}}` -> rows that have a context each.

        Raises Malformed, Invalid, TooLarge or FeatureError.
        """
        request = self._parse(self._predict, body)
        if (request.instances is None) == (request.columns is None):
            raise Invalid(
                "the body needs either 'instances' (a list of rows) or 'columns' (lists by feature)"
            )
        if request.columns is None:
            columns, rows = self._read(self._everything, request.instances, "instances")
        else:
            columns, rows = self._read(self._everything, request.columns, "columns")
        split = len(self._context)
        return Columns(self._names, columns[:split], columns[split:], rows, rows)

    def rank(self, body: bytes) -> RankRequest:
        """`{"context": {...}, "candidates": {...} or [...], "top_k": n}` -> n rows of one context.

        Raises Malformed, Invalid, TooLarge or FeatureError.
        """
        request = self._parse(self._rank, body)
        candidate, rows = self._read(self._candidate, request.candidates, "candidates")
        if request.context is None:
            context: list[Column] = [None] * len(self._context)
        else:
            context = [None if value is None else (value,) for value in astuple(request.context)]
        columns = Columns(self._names, context, candidate, rows, 1, np.zeros(rows, np.int64))
        return RankRequest(columns, min(request.top_k or rows, rows))

    def _read(self, features: Sequence[Feature], given: Any, where: str) -> tuple[Sequence[Column], int]:
        """Columns, or rows turned into columns -> (columns in the features' order, number of rows)."""
        if isinstance(given, list):
            rows = len(given)
            # Checked before the rows are turned: zip(*) takes one argument a row.
            self._check_rows(rows, where)
            return list(zip(*map(astuple, given), strict=True)), rows
        columns: tuple[Column, ...] = astuple(given)
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
        check_commas(body, self._most_commas)
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as e:
            raise Invalid(self._explain(str(e))) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Malformed(explain_malformed(body, str(e))) from None
        except RecursionError:
            raise Malformed("the body is nested too deeply") from None

    def _explain(self, message: str) -> str:
        """msgspec's message; for an unknown field, what it should have been."""
        unknown = _UNKNOWN.match(message)
        if unknown is None:
            return message.replace("`", "")
        name, where = unknown[1], unknown[2] or "$"
        roles = {f.name: f.role for f in self._everything}
        if where == "$":
            return f"unknown key '{name}'" + (
                f"; feature '{name}' belongs inside 'context', 'candidates', 'instances' or 'columns'"
                if name in roles
                else "; expected 'instances' or 'columns' (predict); 'context', 'candidates', 'top_k' (rank)"
            )
        if name in roles:
            home = "'context'" if roles[name] == "context" else "'candidates'"
            return f"feature '{name}' is a {roles[name]} feature: it belongs in {home} (at {where})"
        allowed = self._context if where == "$.context" else self._candidate
        if not where.startswith(("$.context", "$.candidates")):
            allowed = self._everything
        return f"unknown feature '{name}' at {where}; known: {', '.join(f.name for f in allowed)}"


def most_commas(schema: Schema, limits: Limits) -> int:
    """More commas than a valid body can have, with room for some inside strings."""
    features = len(schema.dense) + len(schema.categorical)
    listed = sum(f.max_length for f in schema.categorical if f.multi)
    return limits.max_request_rows * (COMMAS_A_VALUE * features + listed)


def check_commas(body: bytes, most: int) -> None:
    """Refuses, before it is parsed, a large body of more values than any valid one has.

    Five million empty rows fit into 16 MiB, and would hold the event loop for a second. Raises TooLarge.
    """
    if len(body) > COUNTED_FROM_BYTES and body.count(b",") > most:
        raise TooLarge(f"the body has more than {most} values; that is more than any valid request")


def explain_malformed(body: bytes, message: str) -> str:
    """What is wrong with bytes that are no JSON, with the key before the place if there is one."""
    if not body:
        return "the body is empty; JSON is expected"
    if message.startswith("'utf-8'"):
        return f"the body is not UTF-8: {message}"
    if "truncated" in message:
        return f"the JSON is truncated after {len(body)} bytes"
    found = _BAD_BYTE.search(message)
    if found is None:
        return message
    at = int(found[1])
    at -= body[at - 1 : at] == b"-"
    literal = _NOT_A_NUMBER.match(body, at)
    if literal is None:
        return message
    keys = _KEY.findall(body, max(0, at - 2**16), at)
    near = f" in '{keys[-1].decode(errors='replace')}'" if keys else ""
    return f"{literal[0].decode()} is not a JSON number (byte {at}){near}; leave the value out or send null"


def _features(schema: Schema, role: str) -> tuple[Feature, ...]:
    features: tuple[Feature, ...] = (*schema.dense, *schema.categorical)
    return tuple(f for f in features if f.role == role)


def _value(feature: Feature) -> Any:
    if isinstance(feature, Dense):
        return float
    one = str if feature.type == "string" else int
    return list[one] if feature.multi else one  # type: ignore[valid-type]


def _row(features: Sequence[Feature]) -> Any:
    """A struct with one optional value per feature."""
    return _struct("Row", features, lambda f: _value(f) | None)


def _columns(features: Sequence[Feature]) -> Any:
    """A struct with one optional list of optional values per feature."""
    return _struct("Columns", features, lambda f: list[_value(f) | None] | None)  # type: ignore[misc]


def _struct(name: str, features: Sequence[Feature], kind: Callable[[Feature], Any]) -> Any:
    # Attributes are numbered: a feature may be named like something a Python class already has.
    fields = [(f"f{i}", kind(f), None) for i, f in enumerate(features)]
    rename = {f"f{i}": f.name for i, f in enumerate(features)}
    return msgspec.defstruct(name, fields, rename=rename, forbid_unknown_fields=True)
