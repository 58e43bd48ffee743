"""Runs `polyrec feed`: reads a Redis stream as a consumer group, and posts its updates in their order.

An entry is acknowledged in the stream once the server has acknowledged its update, so delivery is at least
once. Each call has a key, so that the server does not apply a repeated one again. Updates that the server
refuses go to the stream `<name>:rejected` with the reason, since they would block all later ones. While the
server cannot be reached, the feed retries. While the store cannot be reached, it retries from the first
unacknowledged entry, since a lost reply may have delivered some.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import redis
from pydantic import ValidationError
from redis.backoff import NoBackoff
from redis.retry import Retry

from polyrec.client.admin import TOKEN
from polyrec.models.errors import PolyrecError
from polyrec.models.files import one_line
from polyrec.models.text import printable, public
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError
from polyrec.models.tiers.updates.update_file import encode_update, parse_update
from polyrec.server.http.admin_embeddings import BINARY, MAX_BODY_BYTES, UpdateRequest, table_update

log = logging.getLogger("polyrec.feed")

STORE_PASSWORD = "POLYREC_STORE_PASSWORD"
CONSUMER = "polyrec"
READ_ENTRIES = 500
"""Maximum entries of a read."""
BLOCK_MS = 500
MOST_REJECTED = 10_000
"""Maximum rejected entries that are kept."""
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
STORE_S = 5.0
"""Longest wait for an answer of the store."""
KEY_CHARACTERS = 40
"""Characters of the stream's name in a call's key, which may have 128 in all."""
LATEST_TIME = 1e11
"""Latest Unix time that a call accepts, in seconds."""
REPORT_S = 30.0
OPTIONS = ("add", "expires_s", "path")


class FeedFailed(PolyrecError):
    """The feed cannot continue: a wrong URL, stream, token or path."""


class Rejected(PolyrecError):
    """The server refuses an update, and would refuse it again."""


class Ended(Exception):
    """A signal ended the feed before an update was sent; later ones must not be sent either."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the stream. id: as Redis names it. options: of the call. update: by table."""

    id: str
    options: Mapping[str, str]
    update: Mapping[str, TableUpdate]

    @property
    def rows(self) -> int:
        return sum(len(t.values) + len(t.retracted) for t in self.update.values())

    @property
    def time(self) -> float:
        """Unix time at which the entry was made, in seconds."""
        return int(self.id.partition("-")[0]) / 1e3


def parse_entry(id: str, fields: Mapping[bytes, bytes]) -> Entry:
    """Parses an entry: `json` is the document of the HTTP call, or `safetensors` a file of updates.

    With `safetensors` the options of the call are further fields. Raises UpdateError.
    """
    names = {name.decode(errors="replace") for name in fields}
    if "safetensors" in names and not names - {"safetensors", *OPTIONS}:
        given = {name: fields[name.encode()].decode(errors="replace") for name in names & set(OPTIONS)}
        return Entry(id, given, parse_update(fields[b"safetensors"]))
    if names != {"json"}:
        raise UpdateError(f"an entry has one field `json` or `safetensors`, not {', '.join(sorted(names))}")
    try:
        request = UpdateRequest.model_validate_json(fields[b"json"])
    except ValidationError as e:
        raise UpdateError(one_line(e)) from None
    if request.tables is None or request.key is not None or request.time is not None:
        raise UpdateError("an entry has `tables`, and neither `file`, `key` nor `time`")
    chosen = request.model_dump(include=set(OPTIONS), exclude_defaults=True)
    update = {name: table_update(name, table) for name, table in request.tables.items()}
    return Entry(id, {name: _text(value) for name, value in chosen.items()}, update)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def merged(entries: Sequence[Entry], most_rows: int) -> Iterator[list[Entry]]:
    """Yields runs of entries that one call can carry in their order.

    Entries of one run have the same options, and name the rows of a table in the same way. A call retracts
    values after it applies all rows, so a retraction ends a run.
    """
    run: list[Entry] = []
    for entry in entries:
        if run and not (_can_join(run[0], entry) and sum(e.rows for e in run) + entry.rows <= most_rows):
            yield run
            run = []
        run.append(entry)
        if any(t.retracted for t in entry.update.values()):
            yield run
            run = []
    if run:
        yield run


def _can_join(first: Entry, entry: Entry) -> bool:
    return first.options == entry.options and all(
        (t.names is None) == (first.update[name].names is None)
        and t.values.shape[1:] == first.update[name].values.shape[1:]
        if name in first.update
        else False
        for name, t in entry.update.items()
    )


def joined(run: Sequence[Entry]) -> dict[str, TableUpdate]:
    """Returns the updates of a run as one."""
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


@dataclass(slots=True)
class Feed:
    """A stream and the server that gets its updates.

    call_url: of the admin call. most_rows: of a call. sent: rows so far. rejected: entries so far. lag_s: age
    of the last sent entry when the server acknowledged it.
    """

    store: redis.Redis
    stream: str
    group: str
    client: httpx.Client
    call_url: str
    path: str | None = None
    most_rows: int = 1000
    ending: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    rejected: int = 0
    lag_s: float = 0.0

    def open(self) -> None:
        """Creates the group, at the stream's beginning, if there is none. Raises FeedFailed."""
        try:
            self.store.xgroup_create(self.stream, self.group, "0", mkstream=True)
        except redis.ResponseError as e:
            if not str(e).startswith("BUSYGROUP"):
                raise FeedFailed(f"stream '{printable(self.stream)}': {e}") from None

    def run(self, once: bool) -> None:
        """Sends updates until `ending`, or with `once` until there are no more. Raises FeedFailed."""
        # first the entries that were read before a crash and not acknowledged
        position, reported, wait_s = "0", time.monotonic(), FIRST_WAIT_S
        while not self.ending.is_set():
            try:
                entries = self._read(position, block=not once)
                if position == "0":
                    position = "0" if entries else ">"
                elif once and not entries:
                    return
                self._send(entries)
            except Ended:
                return
            except redis.RedisError as e:
                if not _is_transient(e):
                    raise FeedFailed(f"stream '{printable(self.stream)}': {e}") from None
                log.warning("the store does not answer, trying again in %.1f s: %s", wait_s, e)
                # after a failover, open connections lead to a server that is now a replica
                self.store.connection_pool.disconnect()
                self.ending.wait(wait_s)
                position, wait_s = "0", min(2 * wait_s, LONGEST_WAIT_S)
                continue
            wait_s = FIRST_WAIT_S
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                log.info(
                    "%d rows sent, %d entries rejected, lag %.2f s", self.sent, self.rejected, self.lag_s
                )

    def _read(self, position: str, block: bool) -> list[tuple[str, dict[bytes, bytes]]]:
        wait = BLOCK_MS if block else None
        reply = self.store.xreadgroup(self.group, CONSUMER, {self.stream: position}, READ_ENTRIES, wait)
        found = reply.values() if isinstance(reply, dict) else (entries for _, entries in reply or ())
        flat = [entry for entries in found for entry in _flat(entries)]
        return [(id.decode(), fields) for id, fields in flat]

    def _send(self, read: Sequence[tuple[str, dict[bytes, bytes]]]) -> None:
        good: list[Entry] = []
        for id, fields in read:
            if not fields:  # trimmed since it was read
                self.store.xack(self.stream, self.group, id)
                continue
            try:
                good.append(parse_entry(id, fields))
            except UpdateError as e:
                self._post_all(good)
                good = []
                self._reject(id, fields, str(e))
        self._post_all(good)

    def _post_all(self, entries: Sequence[Entry]) -> None:
        for run in merged(entries, self.most_rows):
            try:
                self._post(run)
            except Rejected as e:
                if len(run) == 1:
                    self._reject(run[0].id, None, str(e))
                else:
                    # one by one, to find the wrong entry
                    for entry in run:
                        try:
                            self._post([entry])
                        except Rejected as of_one:
                            self._reject(entry.id, None, str(of_one))

    def _post(self, run: Sequence[Entry]) -> None:
        """Posts a run, and acknowledges it. Raises Rejected, FeedFailed, Ended."""
        ids = [entry.id for entry in run]
        stream = quote(self.stream, safe="")[:KEY_CHARACTERS]
        query = {**run[0].options, "key": f"{stream}:{ids[0]}:{ids[-1]}"}
        if run[-1].time <= LATEST_TIME:  # else the entry's id is not a time
            query["time"] = str(run[-1].time)
        if self.path is not None:
            query["path"] = self.path
        body, wait_s = encode_update(joined(run)), FIRST_WAIT_S
        if len(body) > MAX_BODY_BYTES:
            raise Rejected(f"an update of {len(body)} bytes; a call has at most {MAX_BODY_BYTES}")
        while not self.ending.is_set():
            try:
                answer = self.client.post(
                    self.call_url, params=query, content=body, headers={"content-type": BINARY}
                )
                failed = f"{answer.status_code}: {_error_of(answer)}"
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
                raise FeedFailed(f"'{self.call_url}': {e}") from None
            except httpx.TransportError as e:
                failed, status = str(e), 0
            else:
                status = answer.status_code
            if status == 200:
                self.store.xack(self.stream, self.group, *ids)
                self.sent += sum(entry.rows for entry in run)
                self.lag_s = time.time() - run[-1].time
                return
            if status in (400, 413, 422):
                raise Rejected(failed)
            if 300 <= status < 500 and status != 429:
                raise FeedFailed(f"'{self.call_url}' answers {failed}")
            log.warning("the server did not take an update, trying again in %.1f s: %s", wait_s, failed)
            self.ending.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        raise Ended

    def _reject(self, id: str, fields: Mapping[bytes, bytes] | None, reason: str) -> None:
        """Moves an entry to the stream of rejected ones."""
        log.warning("entry %s is rejected: %s", id, reason)
        self.rejected += 1
        if fields is None:
            found = self.store.xrange(self.stream, id, id)
            fields = found[0][1] if found else {}
        kept = {**fields, b"rejected_id": id.encode(), b"rejected_reason": reason.encode()}
        self.store.xadd(f"{self.stream}:rejected", kept, maxlen=MOST_REJECTED, approximate=True)
        self.store.xack(self.stream, self.group, id)


def _is_transient(error: redis.RedisError) -> bool:
    """Whether the store may answer later: it is unreachable, or fails over."""
    if isinstance(error, redis.ResponseError):
        away = isinstance(error, (redis.ReadOnlyError, redis.exceptions.ClusterDownError))
        return away or str(error).startswith("UNBLOCKED")
    lasting = redis.AuthenticationError, redis.exceptions.AuthorizationError
    return isinstance(error, (redis.ConnectionError, redis.TimeoutError)) and not isinstance(error, lasting)


def _flat(entries: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of a reply, which RESP3 nests once more than RESP2."""
    return [e for part in entries for e in (part if isinstance(part, list) else [part])]


def _error_of(answer: httpx.Response) -> str:
    try:
        return printable(str(json.loads(answer.content)["error"]))
    except (ValueError, KeyError, TypeError):
        return printable(answer.text[:200])


def run_feed(args: Any) -> int:
    """Feeds until a signal, or with --once until the stream's end; returns the exit status."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    token = os.environ.get(TOKEN)
    if not token:
        raise FeedFailed(f"the variable {TOKEN} is not set; it is the token that the server was given")
    if args.most_rows < 1:
        raise FeedFailed(f"--most-rows {args.most_rows}: a call has at least one row")
    password = os.environ.get(STORE_PASSWORD)
    try:
        # redis-py would repeat a read whose reply was lost, and so skip the entries of the first one
        store = redis.Redis.from_url(
            args.store,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=STORE_S,
            socket_connect_timeout=STORE_S,
            **({} if password is None else {"password": password}),
        )
    except ValueError as e:
        # an invalid port may be a part of the password
        raise FeedFailed(f"'{public(args.store)}': {str(e).partition(' as ')[0]}") from None
    call_url = f"{args.url.rstrip('/')}/v1/{f'models/{args.model}/' if args.model else ''}admin/embeddings"
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(headers=headers, timeout=60.0, trust_env=False) as client, store:
        feed = Feed(store, args.stream, args.group, client, call_url, args.path, args.most_rows)
        before = {n: signal.signal(n, lambda *_: feed.ending.set()) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            feed.open()
            feed.run(args.once)
        except redis.RedisError as e:
            raise FeedFailed(f"the store: {e}") from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    print(f"{feed.sent:,} rows sent, {feed.rejected:,} entries rejected")
    return 0
