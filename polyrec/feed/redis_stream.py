"""Reads a feed from a Redis stream; a consumer group remembers what was acknowledged.

Rejected entries go to the stream `<name>:rejected`. Entries trimmed since they were read count as done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from polyrec.feed.source import (
    ANSWER_S,
    BLOCK_S,
    LATEST_TIME_S,
    READ_MESSAGES,
    FeedFailed,
    Message,
    SourceAway,
)
from polyrec.models.text import printable, public
from polyrec.models.tiers.remote.refusal import refusal

CONSUMER = "polyrec"
MAX_REJECTED = 10_000
"""Maximum rejected entries that are kept."""
AWAY = redis.ReadOnlyError, redis.exceptions.ClusterDownError, redis.exceptions.OutOfMemoryError
AWAY_CODES = "UNBLOCKED", "NOGROUP", "MISCONF", "NOREPLICAS", "BUSY "
"""Codes of other errors that pass: a stream or group made anew (`rewind`), a full disk, lost replicas,
a long script."""
PENDING, NEW = "0", ">"
"""Positions of a read: entries that were read and not acknowledged, and those never read."""


class RedisStream:
    """A stream of updates. group: the consumer group. url: of the store, to ask why it closes connections."""

    def __init__(self, store: redis.Redis, name: str, group: str, url: str | None = None) -> None:
        self.name, self._url = name, url
        self._store, self._group = store, group
        self._position = PENDING

    @staticmethod
    def connect(url: str, name: str, group: str, password: str | None = None) -> RedisStream:
        """Connects to a store. Raises FeedFailed for an invalid URL. password: overrides the URL's."""
        try:
            # without retries: redis-py would repeat a read whose reply was lost, and so skip the entries of
            # the first
            store = redis.Redis.from_url(
                url,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=ANSWER_S,
                socket_connect_timeout=ANSWER_S,
            )
        except ValueError as e:
            # do not show an invalid port, which may be part of the password
            raise FeedFailed(f"'{public(url)}': {str(e).partition(' as ')[0]}") from None
        if password is not None:
            # not an argument of from_url, which prefers the URL's
            store.connection_pool.connection_kwargs["password"] = password
        return RedisStream(store, name, group, url)

    def open(self) -> None:
        """Creates the group, at the stream's beginning, if there is none."""
        try:
            with self._reported():
                self._store.xgroup_create(self.name, self._group, "0", mkstream=True)
        except FeedFailed as e:
            if "BUSYGROUP" not in str(e):
                raise

    def read(self, block: bool) -> list[Message]:
        while True:
            entries = self._read(block)
            if self._position == PENDING and not entries:
                self._position = NEW
                continue
            messages = [_message(id.decode(), fields) for id, fields in entries if fields]
            if len(messages) < len(entries):
                trimmed = [id for id, fields in entries if not fields]
                with self._reported():
                    self._store.xack(self.name, self._group, *trimmed)
            if messages or not entries:
                return messages

    def acknowledge(self, messages: Sequence[Message]) -> None:
        with self._reported():
            self._store.xack(self.name, self._group, *(message.id for message in messages))

    def reject(self, message: Message, reason: str) -> None:
        kept: dict[Any, Any] = dict(message.fields)
        kept |= {b"rejected_id": message.id.encode(), b"rejected_reason": reason.encode()}
        with self._reported():
            self._store.xadd(f"{self.name}:rejected", kept, maxlen=MAX_REJECTED, approximate=True)
        self.acknowledge([message])

    def rewind(self) -> None:
        # after a failover, open connections lead to a server that is now a replica
        self._store.connection_pool.disconnect()
        # a lost reply may have delivered entries to this consumer
        self._position = PENDING
        self.open()  # the store may have come back empty

    def close(self) -> None:
        self._store.close()

    def _read(self, block: bool) -> list[tuple[bytes, dict[bytes, bytes]]]:
        wait = int(1e3 * BLOCK_S) if block else None
        with self._reported():
            reply = self._store.xreadgroup(
                self._group, CONSUMER, {self.name: self._position}, READ_MESSAGES, wait
            )
        found = reply.values() if isinstance(reply, dict) else (entries for _, entries in reply or ())
        return [entry for entries in found for entry in _flat(entries)]

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as e:
            refused = refusal(self._url) if self._url and isinstance(e, redis.ConnectionError) else None
            kind = SourceAway if refused is None and _is_transient(e) else FeedFailed
            raise kind(f"stream '{printable(self.name)}': {refused or e}") from None


def _message(id: str, fields: dict[bytes, bytes]) -> Message:
    time_s = int(id.partition("-")[0]) / 1e3
    return Message(id, fields, time_s if time_s <= LATEST_TIME_S else None)


def _is_transient(error: redis.RedisError) -> bool:
    """Returns whether the store may answer later: it is unreachable, failing over, came back empty, or is
    full.
    """
    if isinstance(error, redis.ResponseError):
        return isinstance(error, AWAY) or str(error).startswith(AWAY_CODES)
    lasting = redis.AuthenticationError, redis.exceptions.AuthorizationError
    return isinstance(error, (redis.ConnectionError, redis.TimeoutError)) and not isinstance(error, lasting)


def _flat(entries: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Flattens the entries of a reply, which RESP3 nests one level deeper than RESP2."""
    return [e for part in entries for e in (part if isinstance(part, list) else [part])]
