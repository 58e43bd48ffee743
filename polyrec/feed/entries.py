"""Parses the messages of a feed into updates, and joins consecutive ones into the updates of single calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from polyrec.feed.source import Message
from polyrec.models.files import one_line
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError
from polyrec.models.tiers.updates.update_file import parse_update
from polyrec.server.http.admin_embeddings import MAX_BODY_BYTES, MAX_JSON_BYTES, UpdateRequest, table_update

OPTIONS = ("add", "expires_s", "path")
"""Options of the HTTP call that a message may have."""
MAX_OPTION_CHARACTERS = 256
"""Options are in the URL of the call; the answer to one that is too long says nothing of the message."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message that contains an update. options: of the admin call. update: by table."""

    message: Message
    options: Mapping[str, str]
    update: Mapping[str, TableUpdate]

    @property
    def rows(self) -> int:
        return sum(len(t.values) + len(t.retracted) for t in self.update.values())


def parse_entry(message: Message) -> Entry:
    """Parses a message: `json` is the document of the HTTP call, or `safetensors` an update file.

    With `safetensors`, the options of the call are additional fields. Raises UpdateError, also for a message
    larger than the call allows, because parsing takes time and memory that grow with the message.
    """
    fields = message.fields
    for name, max_bytes in ((b"json", MAX_JSON_BYTES), (b"safetensors", MAX_BODY_BYTES)):
        if len(fields.get(name, b"")) > max_bytes:
            raise UpdateError(f"`{name.decode()}` of {len(fields[name])} bytes; at most {max_bytes}")
    names = {name.decode(errors="replace") for name in fields}
    if "safetensors" in names and not names - {"safetensors", *OPTIONS}:
        given = {name: fields[name.encode()].decode(errors="replace") for name in names & set(OPTIONS)}
        return Entry(message, _checked(given), parse_update(fields[b"safetensors"]))
    if "json" in names and names <= {"json", *OPTIONS}:
        if names != {"json"}:
            raise UpdateError(
                f"{', '.join(sorted(names - {'json'}))}: beside `json`, options are keys of its document"
            )
    else:
        raise UpdateError(f"an entry has one field `json` or `safetensors`, not {', '.join(sorted(names))}")
    try:
        request = UpdateRequest.model_validate_json(fields[b"json"])
    except ValidationError as e:
        raise UpdateError(one_line(e)) from None
    if request.tables is None or request.key is not None or request.time is not None:
        raise UpdateError("an entry has `tables`, and neither `file`, `key` nor `time`")
    chosen = request.model_dump(include=set(OPTIONS), exclude_defaults=True)
    update = {name: table_update(name, table) for name, table in request.tables.items()}
    return Entry(message, _checked({name: _text(value) for name, value in chosen.items()}), update)


def _checked(options: dict[str, str]) -> dict[str, str]:
    """Returns the options of a call. Raises UpdateError if one is too long."""
    for name, value in options.items():
        if len(value) > MAX_OPTION_CHARACTERS:
            raise UpdateError(f"{name} of {len(value)} characters; at most {MAX_OPTION_CHARACTERS}")
    return options


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def merged(entries: Sequence[Entry], most_rows: int) -> Iterator[list[Entry]]:
    """Yields runs of entries that one call can carry in order.

    The entries of a run are of the same part, have the same options, and address the rows of a table in the
    same way. A call retracts values after it applies all rows, so a retraction ends a run.
    """
    run: list[Entry] = []
    rows = 0
    for entry in entries:
        if run and not (_can_join(run[0], entry) and rows + entry.rows <= most_rows):
            yield run
            run, rows = [], 0
        run.append(entry)
        rows += entry.rows
        if any(t.retracted for t in entry.update.values()):
            yield run
            run, rows = [], 0
    if run:
        yield run


def _can_join(first: Entry, entry: Entry) -> bool:
    return (first.message.part, first.options) == (entry.message.part, entry.options) and all(
        (t.names is None) == (first.update[name].names is None)
        and t.values.shape[1:] == first.update[name].values.shape[1:]
        if name in first.update
        else False
        for name, t in entry.update.items()
    )


def joined(run: Sequence[Entry]) -> dict[str, TableUpdate]:
    """Joins the updates of a run into one."""
    update: dict[str, TableUpdate] = {}
    for name in run[0].update:
        parts = [entry.update[name] for entry in run if name in entry.update]
        names = None if parts[0].names is None else [v for part in parts for v in part.names or ()]
        update[name] = TableUpdate(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.values for part in parts]),
            names,
            tuple(v for part in parts for v in part.retracted),
        )
    return update
