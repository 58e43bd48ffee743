"""Connection pool and health of one Redis server.

Every failure starts a new generation of connections; failures of older connections are then ignored. A failed
server is not used until `revive` succeeds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from polyrec.models.tiers.remote.login import Login, place
from polyrec.models.tiers.remote.resp import Link

log = logging.getLogger("polyrec.tiers")


@dataclass(frozen=True, slots=True)
class PooledLink:
    """A connection and its generation."""

    link: Link
    generation: int


class Node:
    """One server. Thread-safe. lost: called when the server fails. login: default: from the URL."""

    def __init__(self, url: str, lost: Callable[[], None], login: Login | None = None) -> None:
        self.url = url
        self._login = login
        self.failures = 0
        self._lost = lost
        self._lock = threading.Lock()
        self._idle: list[PooledLink] = []
        self._generation = 0
        self._up = True
        self._closed = False

    @property
    def up(self) -> bool:
        """Whether the last request succeeded."""
        return self._up

    @property
    def place(self) -> str:
        """The server's URL for display."""
        return place(self.url)

    def take(self, timeout_s: float) -> PooledLink | None:
        """Returns a pooled or new connection; None if the server is down."""
        with self._lock:
            if not self._up:
                return None
            if self._idle:
                return self._idle.pop()
        try:
            return self.open_link(timeout_s)
        except OSError:
            return None

    def connect(self, timeout_s: float) -> Link:
        """Opens a connection outside of the pool. Raises OSError."""
        return Link(self.url, timeout_s, self._login)

    def open_link(self, timeout_s: float) -> PooledLink:
        """Opens a connection. Raises OSError, counted as a failure."""
        with self._lock:
            generation = self._generation
        try:
            return PooledLink(self.connect(timeout_s), generation)
        except OSError as e:
            self._note(e, generation)
            raise

    def give_back(self, pooled: PooledLink) -> None:
        """Returns a connection to the pool after a complete reply."""
        with self._lock:
            if pooled.generation == self._generation and not self._closed:
                self._idle.append(pooled)
                return
        pooled.link.close()

    def failed(self, error: Exception, pooled: PooledLink) -> None:
        """Closes a failed connection and marks the server as down."""
        pooled.link.close()
        self._note(error, pooled.generation)

    def revive(self, timeout_s: float) -> None:
        """Marks the server as up if it answers. Raises OSError if it does not."""
        if self._up:
            return
        link = self.connect(timeout_s)
        with self._lock:
            pooled = PooledLink(link, self._generation)
            self._up = True
        self.give_back(pooled)
        log.info("the remote store at %s answers again", self.place)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for pooled in idle:
            pooled.link.close()

    def _note(self, error: Exception, generation: int) -> None:
        with self._lock:
            self.failures += 1
            if generation != self._generation or self._closed:
                return
            self._generation += 1
            self._up = False
            idle, self._idle = self._idle, []
        for pooled in idle:
            pooled.link.close()
        log.warning("the remote store at %s failed: %s", self.place, error)
        self._lost()
