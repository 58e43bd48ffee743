"""POST /v1/admin/embeddings: replaces, adds and retracts rows of embedding tables while the server answers.

    {"path": PATH, "file": FILE}                     a file of updates, as the server sees it
    {"path": PATH, "tables": {TABLE: {"ids": [...], "rows": [[...], ...]}}}
    {"path": PATH, "tables": {TABLE: {"values": ["u1", null, ...], "rows": [[...], ...]}}}
    {"path": PATH, "tables": {TABLE: {"retract": ["u1", ...]}}}
    a file of updates itself, with Content-Type: application/octet-stream; options as ?path= and so on

`path` may be omitted if only one bundle has its rows in tiers; paths that share tiers share updates. Rows are
identified by stable id, or by the values that clients send (null is the row for missing values). An update is
atomic, so no batch sees a part of it. With `"key": NAME` it is applied only once, however often it is sent.
With `"add": true` unknown values take reserved rows, for `"expires_s"` seconds if given. `"time"` is when the
vectors were computed. The response has the number of rows; the tiers are written after it, but the update
log, if there is one, before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator
from starlette.requests import Request

from polyrec.models.files import MAX_SERVED_BYTES, Strict, one_line
from polyrec.models.text import public
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.updates.update import (
    AddOptions,
    TableUpdate,
    Update,
    UpdateError,
    UpdateNotKept,
    apply_update,
)
from polyrec.models.tiers.updates.update_file import load_update, parse_update
from polyrec.server.app.background import run_in_thread
from polyrec.server.clock import clock
from polyrec.server.errors import Invalid, NotReady
from polyrec.server.http.admin import Admin, admin_endpoint, parse_arguments
from polyrec.server.http.connection.reply import Reply
from polyrec.server.http.documents import UpdateResponse
from polyrec.server.http.openapi import Endpoint

MAX_BODY_BYTES = 64 << 20
"""Maximum size of a file of updates."""
MAX_JSON_BYTES = MAX_SERVED_BYTES
"""Maximum size of a JSON body. Parsing holds the GIL, so all other requests wait."""

PACE_S = 60.0
"""Time between audit lines of a client's accepted updates that are warnings; the others are level info."""

Stacks = Callable[[], Mapping[str, TierStack]]
"""Returns the tiers of the current generation by path; called for every update."""


Key = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
BINARY = "application/octet-stream"


WholeNumber = Annotated[int, Field(strict=True)]
"""Rejects `true`, `1.0` and `"1"`, which would identify a row that the sender did not mean."""
Number = Annotated[float, Field(strict=True)]


class RowUpdate(Strict):
    """Rows of one table, by `ids` or by `values`. retract: values to treat as unknown from now on."""

    rows: tuple[tuple[Number, ...], ...] = ()
    ids: tuple[WholeNumber, ...] | None = None
    values: tuple[str | WholeNumber | None, ...] | None = None
    retract: tuple[str | WholeNumber, ...] = ()

    @model_validator(mode="after")
    def _named_once(self) -> RowUpdate:
        if self.retract and self.ids is None and self.values is None and not self.rows:
            return self
        if (self.ids is None) == (self.values is None):
            raise ValueError("name the rows either by `ids` or by `values`")
        named = self.ids if self.ids is not None else self.values or ()
        if len(named) != len(self.rows):
            raise ValueError(f"{len(named)} rows are named, {len(self.rows)} are given")
        return self


class UpdateOptions(Strict):
    """Options common to all forms of the call.

    key: the caller's name for the update; an update is applied only once per key.
    add: whether values unknown to the table take reserved rows.
    expires_s: seconds after which added values are removed again; None keeps them.
    time: Unix time at which the vectors were computed.
    """

    path: str | None = None
    key: Key | None = None
    add: bool = False
    expires_s: Annotated[float, Field(gt=0, le=10 * 365 * 86400)] | None = None
    time: Annotated[float, Field(ge=0, le=1e11)] | None = None

    @model_validator(mode="after")
    def _expires_if_added(self) -> Self:
        if self.expires_s is not None and not self.add:
            raise ValueError("`expires_s` is of values that are added: give `add` too")
        return self

    def adding(self) -> AddOptions | None:
        """Returns how new values are added, None if they are errors."""
        if not self.add:
            return None
        return AddOptions(0.0 if self.expires_s is None else time.time() + self.expires_s)


class UpdateRequest(UpdateOptions):
    """New rows, either in a `file` on the server or in `tables`."""

    file: Path | None = None
    tables: dict[str, RowUpdate] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> UpdateRequest:
        if (self.file is None) == (self.tables is None):
            raise ValueError("give either a `file` or `tables`")
        return self


class Embeddings:
    """Applies row updates to the tiers of paths."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks

    def update(self, request: UpdateRequest, subject: dict[str, str]) -> dict[str, Any]:
        """Applies one update; blocks for file I/O. Raises Invalid or NotReady.

        subject: filled with path, tables, key and number of changed rows as they become known.
        """

        def read(stack: TierStack) -> Update:
            if request.file is not None:
                return load_update(request.file, _max_file_bytes(stack))
            return {name: table_update(name, t) for name, t in (request.tables or {}).items()}

        return self._apply(request, read, subject)

    def update_binary(self, options: UpdateOptions, body: bytes, subject: dict[str, str]) -> dict[str, Any]:
        """Applies a file of updates from a request's body. Raises the same errors as `update`."""
        return self._apply(options, lambda stack: parse_update(body), subject)

    def _apply(
        self, options: UpdateOptions, read: Callable[[TierStack], Update], subject: dict[str, str]
    ) -> dict[str, Any]:
        if options.key is not None:
            subject["key"] = options.key
        path, stack = self._stack(options.path)
        subject["path"] = path
        try:
            update = read(stack)
            subject["tables"] = ",".join(update)
            applied = apply_update(stack, update, options.key or "", options.adding(), options.time)
        except UpdateNotKept as e:
            raise NotReady(public(str(e))) from None
        except UpdateError as e:
            raise Invalid(public(str(e))) from None
        subject["rows"] = str(applied.rows)
        answer: dict[str, Any] = {"path": path, "rows": applied.rows}
        if options.add:
            answer["added"] = applied.added
        if any(one.retracted for one in update.values()):
            answer["retracted"] = applied.retracted
            subject["retracted"] = str(applied.retracted)
        return answer if options.key is None else answer | {"repeated": applied.repeated}

    def _stack(self, path: str | None) -> tuple[str, TierStack]:
        stacks = self._stacks()
        known = ", ".join(stacks)
        if not stacks:
            raise Invalid("no path accepts row updates; start the server with --updates")
        if path is None:
            if len({id(stack) for stack in stacks.values()}) > 1:
                raise Invalid(f"name the path to update; paths that accept updates: {known}")
            return next(iter(stacks.items()))
        if path not in stacks:
            raise Invalid(f"path '{path}' accepts no updates; paths that do: {known}")
        return path, stacks[path]


class AuditPace:
    """Chooses which accepted updates are warnings of the audit log: one in PACE_S of each client.

    A feed sends five a second, which would bury everything else.
    """

    def __init__(self, now_s: Callable[[], float] = clock) -> None:
        self._now_s = now_s
        self._told: dict[str, tuple[float, int]] = {}

    def is_routine(self, client: str, subject: dict[str, str]) -> bool:
        """Returns whether the client's last warning is recent; else adds the updates since to the line."""
        now_s = self._now_s()
        told_s, since = self._told.get(client, (-math.inf, 0))
        if now_s - told_s < PACE_S:
            self._told[client] = told_s, since + 1
            return True
        if since:
            subject["more_since_last_line"] = str(since)
        self._told[client] = now_s, 0
        return False


def embeddings_route(admin: Admin, embeddings: Embeddings) -> Endpoint:
    """Returns the endpoint, for tokens with the right `admin`."""
    pace = AuditPace()

    async def answer(request: Request) -> Reply:
        binary = request.headers.get("content-type", "").partition(";")[0].strip().lower() == BINARY

        subject: dict[str, str] = {}

        def update(body: bytes) -> dict[str, Any]:
            if not binary:
                return embeddings.update(parse_arguments(UpdateRequest, body), subject)
            try:
                query = UpdateOptions.model_validate_strings(dict(request.query_params))
            except ValidationError as e:
                raise Invalid(one_line(e)) from None
            return embeddings.update_binary(query, body, subject)

        # in a thread, as parsing a large update would block the event loop
        max_bytes = MAX_BODY_BYTES if binary else MAX_JSON_BYTES
        return await admin.perform(
            request,
            "embeddings",
            max_bytes,
            lambda body: run_in_thread(lambda: update(body)),
            subject,
            is_routine=lambda client: pace.is_routine(client, subject),
        )

    return admin_endpoint(
        "embeddings", answer, "Replace rows of embedding tables", UpdateRequest, UpdateResponse
    )


def _max_file_bytes(stack: TierStack) -> int:
    """Returns the size of a file that has every row once; larger files are rejected unread."""
    tiers = stack.tiers
    return tiers.layout.total * (8 + 4 * tiers.row_format.width) + MAX_SERVED_BYTES


def table_update(table: str, update: RowUpdate) -> TableUpdate:
    """Converts the update of one table. Raises UpdateError."""
    if update.ids is None and update.values is None:
        return TableUpdate.retraction(update.retract)
    try:
        rows = np.array(update.rows, np.float32).reshape(len(update.rows), -1 if update.rows else 0)
    except ValueError:
        raise UpdateError(f"update: rows of table '{table}' have different lengths") from None
    try:
        ids = np.array(update.ids or (), np.int64)
    except OverflowError:
        raise UpdateError(f"update: an id of table '{table}' is too large") from None
    return TableUpdate(ids, rows, None if update.ids is not None else update.values, update.retract)
