"""Posts the updates of a source to a server, in order.

A message is acknowledged in its source after the server has acknowledged its update, so delivery is at least
once. Each call has a key, by which the server ignores repeats. Updates that the server refuses are rejected
with the reason, since they would block all later ones. If the server cannot be reached, the feed retries. If
the source cannot be reached, it retries from the first unacknowledged message, since a lost reply may have
delivered some.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from polyrec.feed.entries import Entry, joined, merged, parse_entry
from polyrec.feed.source import MOST_ROWS, READ_MESSAGES, FeedFailed, Message, Source, SourceAway
from polyrec.models.errors import PolyrecError
from polyrec.models.text import error_in, printable
from polyrec.models.tiers.updates.update import UpdateError
from polyrec.models.tiers.updates.update_file import encode_update
from polyrec.server.http.admin_embeddings import BINARY, MAX_BODY_BYTES

log = logging.getLogger("polyrec.feed")

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
PASSING = (408, 429)
"""Statuses below 500 that pass: an update that arrived too slowly, and too many."""
KEY_BYTES = 16
"""Bytes of the digest in a call's key."""
REPORT_S = 30.0
GATHER_S = 0.4
"""Shortest time between two reads, unless a read returned as many messages as it can. An update costs the
server 4 ms plus 0.6 us a row, so rows that arrive one by one are gathered and sent together."""


class Rejected(PolyrecError):
    """Raised when the server refuses an update and would refuse it again."""


class FeedEnded(Exception):
    """Raised when a signal ended the feed before an update was sent; later ones must not be sent either."""


@dataclass(slots=True)
class Feed:
    """A source and the server that gets its updates.

    call_url: URL of the admin call. most_rows: maximum rows per call.
    sent: rows sent so far. rejected: messages rejected so far.
    lag_s: age of the last message when the server acknowledged it.
    """

    source: Source
    client: httpx.Client
    call_url: str
    path: str | None = None
    most_rows: int = MOST_ROWS
    ending: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    rejected: int = 0
    lag_s: float = 0.0

    def run(self, once: bool) -> None:
        """Sends updates until `ending` is set, or with `once` until none are left. Raises FeedFailed."""
        reported, wait_s, away = time.monotonic(), FIRST_WAIT_S, False
        while not self.ending.is_set():
            try:
                if away:
                    self.source.rewind()
                    away = False
                messages = self.source.read(block=not once)
                read_s = time.monotonic()
                if once and not messages:
                    return
                self._send(messages)
                if not once and 0 < len(messages) < READ_MESSAGES:
                    self.ending.wait(max(0.0, read_s + GATHER_S - time.monotonic()))
            except FeedEnded:
                return
            except SourceAway as e:
                log.warning("the source does not answer, trying again in %.1f s: %s", wait_s, e)
                self.ending.wait(wait_s)
                wait_s, away = min(2 * wait_s, LONGEST_WAIT_S), True
                continue
            if wait_s > FIRST_WAIT_S:
                log.warning("the source answers again")
            wait_s = FIRST_WAIT_S
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                log.info(
                    "%d rows sent, %d entries rejected, lag %.2f s", self.sent, self.rejected, self.lag_s
                )

    def _send(self, read: Sequence[Message]) -> None:
        good: list[Entry] = []
        for message in read:
            try:
                good.append(parse_entry(message))
            except UpdateError as e:
                self._post_all(good)
                good = []
                self._reject(message, str(e))
        self._post_all(good)

    def _post_all(self, entries: Sequence[Entry]) -> None:
        for run in merged(entries, self.most_rows):
            try:
                self._post(run)
            except Rejected as e:
                if len(run) == 1:
                    self._reject(run[0].message, str(e))
                else:
                    # one by one, to find the wrong entry
                    for entry in run:
                        try:
                            self._post([entry])
                        except Rejected as of_one:
                            self._reject(entry.message, str(of_one))

    def _post(self, run: Sequence[Entry]) -> None:
        """Posts a run until the server takes it, and acknowledges it. Raises FeedEnded, or as `_call`."""
        body, made_s, wait_s = encode_update(joined(run)), run[-1].message.time_s, FIRST_WAIT_S
        if len(body) > MAX_BODY_BYTES:
            raise Rejected(f"an update of {len(body)} bytes; a call has at most {MAX_BODY_BYTES}")
        query = {**run[0].options, "key": _key(self.source.name, run, body)}
        if made_s is not None:
            query["time"] = str(made_s)
        if self.path is not None:
            query["path"] = self.path
        while not self.ending.is_set():
            failure = self._call(query, body)
            if failure is None:
                if wait_s > FIRST_WAIT_S:
                    log.warning("the server takes updates again")
                self.source.acknowledge([entry.message for entry in run])
                self.sent += sum(entry.rows for entry in run)
                if made_s is not None:
                    self.lag_s = time.time() - made_s
                return
            log.warning("the server did not take an update, trying again in %.1f s: %s", wait_s, failure)
            self.ending.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        raise FeedEnded

    def _call(self, query: Mapping[str, str], body: bytes) -> str | None:
        """Calls the server once; returns None if it took the update, or why not if it may take it later.

        Raises Rejected or FeedFailed.
        """
        try:
            answer = self.client.post(
                self.call_url, params=query, content=body, headers={"content-type": BINARY}
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
            raise FeedFailed(f"'{self.call_url}': {e}") from None
        except httpx.RequestError as e:  # also an answer that cannot be decoded
            return str(e)
        status = answer.status_code
        if status == 200:
            return None
        failure = f"{status}: {_error_of(answer)}"
        if status in (400, 413, 422):
            raise Rejected(failure)
        if 300 <= status < 500 and status not in PASSING:
            raise FeedFailed(f"'{self.call_url}' answers {failure}")
        return failure

    def _reject(self, message: Message, reason: str) -> None:
        reason = printable(reason)  # it may quote the message, including line breaks
        log.warning("entry %s is rejected: %s", message.id, reason)
        self.source.reject(message, reason)
        self.rejected += 1


def _key(source: str, run: Sequence[Entry], body: bytes) -> str:
    """Returns the key of a call, which is the same only for the same entries of a source.

    Ids alone may coincide between two sources, such as streams written in the same millisecond, or after a
    source was recreated. An update with another's key would be mistaken for a repeat and lost.
    """
    first, last = run[0].message.id, run[-1].message.id
    digest = hashlib.blake2b(json.dumps([source, last, run[0].options]).encode(), digest_size=KEY_BYTES)
    digest.update(body)
    return f"{first}:{digest.hexdigest()}"


def _error_of(answer: httpx.Response) -> str:
    error = error_in(answer.content)
    return printable(answer.text[:200]) if error is None else error
