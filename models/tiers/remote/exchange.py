"""Requests on their way to several servers at once, read by one thread as the answers come, in one time-out.

A server that is late costs nobody else's answer: what it has not sent, or not even taken, when the time is
over is given up; what the others have sent by then is read, also where the reader itself came late.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Sequence

from polyrec.models.tiers.remote.resp import Link, Reading, clock


class Exchange:
    """One server's: sends `data` as far as it goes without waiting. reading: of the answer, on that link.

    error: why there is no whole answer; None once `finish` has it.
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
        """Whether nothing more is to come."""
        return self._over or self.error is not None

    @property
    def events(self) -> int:
        """What is waited for, as `select.poll` has it."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def move(self, events: int) -> None:
        """Goes on, now that the link is ready for `events`."""
        if events & select.POLLOUT:
            self._guarded(self._send)
        if events & ~select.POLLOUT:
            self._guarded(self._receive)

    def give_up(self) -> None:
        """The time is over."""
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
    """Until every answer is whole, or `until_s` by `clock`; those that are not have an error then."""
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
