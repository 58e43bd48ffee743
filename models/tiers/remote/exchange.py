"""Concurrent requests to several servers from one thread, within one timeout.

A slow server does not delay the others: at the deadline its request is abandoned, and the replies that the
others have sent by then are read, even if the reader itself is late.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Sequence

from polyrec.models.tiers.remote.resp import Link, Reading, clock


class Exchange:
    """A request to one server; sends `data` without blocking. reading: parses the reply on that link.

    error: why there is no complete reply; None after `finish` if there is.
    """

    def __init__(self, link: Link, data: bytes, reading: Reading[None]) -> None:
        self.link = link
        self.error: Exception | None = None
        self._reading = reading
        self._unsent = memoryview(data)
        self._upto = 0
        self._over = False
        link.begin()
        self._guarded(self._send)
        self._guarded(self._read_on)

    @property
    def over(self) -> bool:
        """Whether the exchange has completed or failed."""
        return self._over or self.error is not None

    @property
    def events(self) -> int:
        """Events to wait for, as in `select.poll`."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def move(self, events: int) -> None:
        """Continues after the link became ready for `events`."""
        if events & select.POLLOUT:
            self._guarded(self._send)
        if events & ~select.POLLOUT:
            self._guarded(self._receive)

    def give_up(self) -> None:
        """Fails with a timeout."""
        self.error = TimeoutError("the store did not answer in time")

    def _send(self) -> None:
        self._unsent = self.link.send(self._unsent)

    def _receive(self) -> None:
        if self.link.receive(self._upto):
            self._read_on()

    def _read_on(self) -> None:
        try:
            self._upto = next(self._reading)
        except StopIteration:
            self._over = True

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, ValueError) as e:
            self.error = e


def finish(exchanges: Sequence[Exchange], until_s: float) -> None:
    """Waits until every reply is complete, or until `until_s` by `clock`; the others then have an error."""
    pending = {e.link.fileno(): e for e in exchanges if not e.over}
    poll = select.poll()
    for file, exchange in pending.items():
        poll.register(file, exchange.events)
    while pending:
        left_s = until_s - clock()
        ready = poll.poll(max(math.ceil(1e3 * left_s), 0))
        if not ready and left_s <= 0:
            for exchange in pending.values():
                exchange.give_up()
            return
        for file, events in ready:
            exchange = pending[file]
            exchange.move(events)
            if exchange.over:
                poll.unregister(file)
                del pending[file]
            elif events & select.POLLOUT:
                poll.modify(file, exchange.events)
