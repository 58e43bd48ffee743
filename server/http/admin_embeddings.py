"""POST /v1/admin/embeddings: new values of rows, while the server answers. Needs the token.

    {"path": PATH, "file": FILE}                     a file of updates, as the server sees it
    {"path": PATH, "tables": {TABLE: {"ids": [...], "rows": [[...], ...]}}}
    {"path": PATH, "tables": {TABLE: {"values": ["u1", null, ...], "rows": [[...], ...]}}}

`path` may be left out where only one bundle has its rows in tiers; paths that share tiers share updates. Rows
are named by stable id, or by the values that clients send (null is the missing row). All of one call is seen
at once: no batch is computed from half of it. The answer says how many rows; they are written into the tiers
behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import ValidationError, model_validator
from starlette.requests import Request
from starlette.routing import Route

from polyrec.models.files import MOST_SERVED_BYTES, Strict, one_line
from polyrec.models.schema.batch import I64
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.text import public
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError, apply_update, load_update
from polyrec.server.app.background import run_in_thread
from polyrec.server.errors import Invalid, Malformed
from polyrec.server.http.admin import Admin
from polyrec.server.http.connection.reply import Reply

MAX_BODY_BYTES = 64 << 20

Stacks = Callable[[], Mapping[str, TierStack]]
"""The tiers that are served now, by path: asked at every call, since a reload brings others."""


class GivenRows(Strict):
    """Rows of one table, by `ids` or by `values`."""

    rows: tuple[tuple[float, ...], ...]
    ids: tuple[int, ...] | None = None
    values: tuple[str | int | None, ...] | None = None

    @model_validator(mode="after")
    def _named_once(self) -> GivenRows:
        if (self.ids is None) == (self.values is None):
            raise ValueError("name the rows either by `ids` or by `values`")
        named = self.ids if self.ids is not None else self.values or ()
        if len(named) != len(self.rows):
            raise ValueError(f"{len(named)} rows are named, {len(self.rows)} are given")
        return self


class Update(Strict):
    """One call."""

    path: str | None = None
    file: Path | None = None
    tables: dict[str, GivenRows] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Update:
        if (self.file is None) == (self.tables is None):
            raise ValueError("give either a `file` or `tables`")
        return self


class Embeddings:
    """Updates of the rows of what is served. stacks: see Stacks."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks

    def update(self, asked: Update) -> dict[str, Any]:
        """Applies one update; blocks while it is read. Raises Invalid."""
        path, stack = self._stack(asked.path)
        try:
            if asked.file is not None:
                rows = apply_update(stack, load_update(asked.file, _most_bytes(stack)))
            else:
                given = asked.tables or {}
                rows = apply_update(stack, {t: _table(stack, t, g) for t, g in given.items()})
        except UpdateError as e:
            raise Invalid(public(str(e))) from None
        return {"path": path, "rows": rows}

    def _stack(self, path: str | None) -> tuple[str, TierStack]:
        stacks = self._stacks()
        known = ", ".join(stacks)
        if not stacks:
            raise Invalid("no path has its rows in tiers: the plan has no placement for any")
        if path is None:
            if len({id(stack) for stack in stacks.values()}) > 1:
                raise Invalid(f"name the path whose rows change; with tiers are: {known}")
            return next(iter(stacks.items()))
        if path not in stacks:
            raise Invalid(f"path '{path}' has no tiers; those that have: {known}")
        return path, stacks[path]


def embeddings_route(admin: Admin, embeddings: Embeddings) -> Route:
    """The page, behind the admin's token."""

    async def answer(request: Request) -> Reply:
        # parsing and checking of a large update would hold the loop
        return await admin.perform(
            request,
            "embeddings",
            MAX_BODY_BYTES,
            lambda body: run_in_thread(lambda: embeddings.update(parsed(body))),
        )

    return Route("/v1/admin/embeddings", answer, methods=["POST"])


def parsed(body: bytes) -> Update:
    """Raises Malformed, Invalid."""
    try:
        return Update.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as e:
        raise Malformed(f"the body is not JSON: {e}") from None
    except ValidationError as e:
        raise Invalid(one_line(e)) from None


def _most_bytes(stack: TierStack) -> int:
    """Of a file with every row once, and its header: what is beyond is not read into memory."""
    tiers = stack.tiers
    return tiers.layout.total * (8 + 4 * tiers.row_format.width) + MOST_SERVED_BYTES


def _table(stack: TierStack, table: str, given: GivenRows) -> TableUpdate:
    encoder = stack.views.newest.encoder
    vocabulary = encoder.vocabularies.get(table) if encoder is not None else None
    if vocabulary is None:
        raise UpdateError(f"update: there is no table '{table}'")
    try:
        rows = np.array(given.rows, np.float32).reshape(len(given.rows), -1)
    except ValueError:
        raise UpdateError(f"update: rows of table '{table}' have different lengths") from None
    if given.ids is not None:
        try:
            return TableUpdate(np.array(given.ids, np.int64), rows)
        except OverflowError:
            raise UpdateError(f"update: an id of table '{table}' is too large") from None
    return TableUpdate(_ids(table, vocabulary, given.values or ()), rows)


def _ids(table: str, vocabulary: Vocabulary, values: tuple[str | int | None, ...]) -> I64:
    known = vocabulary.rank_by_value()
    ids = np.empty(len(values), np.int64)
    of_rank = np.empty(vocabulary.rows, np.int64)
    of_rank[vocabulary.rank_of_id] = np.arange(vocabulary.rows)
    for i, value in enumerate(values):
        rank = known.get(value)
        if rank is None and isinstance(value, int) and vocabulary.values is None:
            rank = int(vocabulary.rank_of_id[value]) if 0 <= value < vocabulary.size else None
        if rank is None or rank < 0:
            raise UpdateError(f"update: table '{table}' has no value {value!r}")
        ids[i] = of_rank[rank]
    return ids
