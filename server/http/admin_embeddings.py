"""POST /v1/admin/embeddings: replaces rows of embedding tables while the server answers.

    {"path": PATH, "file": FILE}                     a file of updates, as the server sees it
    {"path": PATH, "tables": {TABLE: {"ids": [...], "rows": [[...], ...]}}}
    {"path": PATH, "tables": {TABLE: {"values": ["u1", null, ...], "rows": [[...], ...]}}}
    a file of updates itself, with Content-Type: application/octet-stream, PATH and NAME as ?path= and ?key=

`path` may be left out where only one bundle has its rows in tiers; paths that share tiers share updates. Rows
are named by stable id, or by the values that clients send (null is the missing row). An update is atomic: no
batch sees half of it. With `"key": NAME` it is applied once, however often it is sent. The response has the
number of rows; they are written into the tiers afterwards. With an update log they are on the disk before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError, model_validator
from starlette.requests import Request

from polyrec.models.files import MOST_SERVED_BYTES, Strict, one_line
from polyrec.models.schema.batch import I64
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.text import public
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.update import (
    TableUpdate,
    Update,
    UpdateError,
    UpdateNotKept,
    apply_update,
    load_update,
    parse_update,
)
from polyrec.server.app.background import run_in_thread
from polyrec.server.errors import Invalid, NotReady
from polyrec.server.http.admin import Admin, admin_endpoint, parse_arguments
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.documents import UpdateResponse
from polyrec.server.http.openapi import Endpoint

MAX_BODY_BYTES = 64 << 20

Stacks = Callable[[], Mapping[str, TierStack]]
"""Returns the tiers of the present generation, by path; called for every update."""


Key = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
BINARY = "application/octet-stream"


class RowUpdate(Strict):
    """Rows of one table, by `ids` or by `values`."""

    rows: tuple[tuple[float, ...], ...]
    ids: tuple[int, ...] | None = None
    values: tuple[str | int | None, ...] | None = None

    @model_validator(mode="after")
    def _named_once(self) -> RowUpdate:
        if (self.ids is None) == (self.values is None):
            raise ValueError("name the rows either by `ids` or by `values`")
        named = self.ids if self.ids is not None else self.values or ()
        if len(named) != len(self.rows):
            raise ValueError(f"{len(named)} rows are named, {len(self.rows)} are given")
        return self


class UpdateRequest(Strict):
    """New rows in a `file` of updates on the server, or in `tables` by name.

    key: the caller's name for the update; one that was applied under this name is not applied again.
    """

    path: str | None = None
    key: Key | None = None
    file: Path | None = None
    tables: dict[str, RowUpdate] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> UpdateRequest:
        if (self.file is None) == (self.tables is None):
            raise ValueError("give either a `file` or `tables`")
        return self


class BinaryUpdate(Strict):
    """Path and key of a call with a binary body, in its query; see UpdateRequest."""

    path: str | None = None
    key: Key | None = None


class Embeddings:
    """Applies updates to the tiers of the paths."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks

    def update(self, request: UpdateRequest) -> dict[str, Any]:
        """Applies one update; blocks while a file is read or a log written. Raises Invalid or NotReady."""

        def read(stack: TierStack) -> Update:
            if request.file is not None:
                return load_update(request.file, _max_file_bytes(stack))
            return {name: _table(stack, name, t) for name, t in (request.tables or {}).items()}

        return self._apply(request.path, request.key, read)

    def update_binary(self, request: BinaryUpdate, body: bytes) -> dict[str, Any]:
        """Applies a file of updates that was sent. Raises as `update`."""
        return self._apply(request.path, request.key, lambda stack: parse_update(body))

    def _apply(
        self, path: str | None, key: str | None, read: Callable[[TierStack], Update]
    ) -> dict[str, Any]:
        path, stack = self._stack(path)
        try:
            applied = apply_update(stack, read(stack), key or "")
        except UpdateNotKept as e:
            raise NotReady(public(str(e))) from None
        except UpdateError as e:
            raise Invalid(public(str(e))) from None
        answer = {"path": path, "rows": applied.rows}
        return answer if key is None else answer | {"repeated": applied.repeated}

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


def embeddings_route(admin: Admin, embeddings: Embeddings) -> Endpoint:
    """The call, for tokens with the right `admin`."""

    async def answer(request: Request) -> Reply:
        binary = request.headers.get("content-type", "").partition(";")[0].strip().lower() == BINARY

        def update(body: bytes) -> dict[str, Any]:
            if not binary:
                return embeddings.update(parse_arguments(UpdateRequest, body))
            try:
                query = BinaryUpdate.model_validate(dict(request.query_params))
            except ValidationError as e:
                raise Invalid(one_line(e)) from None
            return embeddings.update_binary(query, body)

        # Parsing a large update would block the event loop.
        return await admin.perform(
            request, "embeddings", MAX_BODY_BYTES, lambda body: run_in_thread(lambda: update(body))
        )

    return admin_endpoint(
        "embeddings", answer, "Replace rows of embedding tables", UpdateRequest, UpdateResponse
    )


def _max_file_bytes(stack: TierStack) -> int:
    """Bytes of a file with every row once, and its header; a larger one is not read into memory."""
    tiers = stack.tiers
    return tiers.layout.total * (8 + 4 * tiers.row_format.width) + MOST_SERVED_BYTES


def _table(stack: TierStack, table: str, update: RowUpdate) -> TableUpdate:
    encoder = stack.views.newest.encoder
    vocabulary = encoder.vocabularies.get(table) if encoder is not None else None
    if vocabulary is None:
        raise UpdateError(f"update: there is no table '{table}'")
    try:
        rows = np.array(update.rows, np.float32).reshape(len(update.rows), -1)
    except ValueError:
        raise UpdateError(f"update: rows of table '{table}' have different lengths") from None
    if update.ids is not None:
        try:
            return TableUpdate(np.array(update.ids, np.int64), rows)
        except OverflowError:
            raise UpdateError(f"update: an id of table '{table}' is too large") from None
    return TableUpdate(_ids(table, vocabulary, update.values or ()), rows)


def _ids(table: str, vocabulary: Vocabulary, values: tuple[str | int | None, ...]) -> I64:
    rank_by_value = vocabulary.rank_by_value()
    ids = np.empty(len(values), np.int64)
    id_of_rank = np.empty(vocabulary.rows, np.int64)
    id_of_rank[vocabulary.rank_of_id] = np.arange(vocabulary.rows)
    for i, value in enumerate(values):
        rank = rank_by_value.get(value)
        if rank is None and isinstance(value, int) and vocabulary.values is None:
            rank = int(vocabulary.rank_of_id[value]) if 0 <= value < vocabulary.size else None
        if rank is None or rank < 0:
            raise UpdateError(f"update: table '{table}' has no value {value!r}")
        ids[i] = id_of_rank[rank]
    return ids
