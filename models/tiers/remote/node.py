"""One redis-server as the remote tier knows it: its connections, and whether it answers.

Every failure starts a new generation of connections: what befalls one of an older generation says nothing
about the server of now. A server that has failed is left alone until `revive` finds it answering.
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
    """A connection and the generation that it belongs to."""

    link: Link
    generation: int


class Node:
    """Thread-safe. lost: hears that the server no longer answers. login: None for what the URL says."""

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
        """Whether it answered when it was last asked."""
        return self._up

    @property
    def place(self) -> str:
        """The server, for people."""
        return place(self.url)

    def take(self, timeout_s: float) -> PooledLink | None:
        """A connection, a kept one if there is any; None if the server does not answer."""
        with self._lock:
            if not self._up:
                return None
            if self._idle:
                return self._idle.pop()
        try:
            return self.dial(timeout_s)
        except OSError:
            return None

    def connect(self, timeout_s: float) -> Link:
        """A new connection, which is the caller's alone. Raises OSError."""
        return Link(self.url, timeout_s, self._login)

    def dial(self, timeout_s: float) -> PooledLink:
        """A new connection. Raises OSError, noted as a failure."""
        with self._lock:
            generation = self._generation
        try:
            return PooledLink(self.connect(timeout_s), generation)
        except OSError as e:
            self._note(e, generation)
            raise

    def give_back(self, pooled: PooledLink) -> None:
        """Keeps a connection that has been answered."""
        with self._lock:
            if pooled.generation == self._generation and not self._closed:
                self._idle.append(pooled)
                return
        pooled.link.close()

    def failed(self, error: Exception, pooled: PooledLink) -> None:
        """A connection is of no more use."""
        pooled.link.close()
        self._note(error, pooled.generation)

    def revive(self, timeout_s: float) -> None:
        """Uses the server again if it answers. Raises OSError if it does not."""
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
