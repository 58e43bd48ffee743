"""Logs failures of work that is repeated, at most once a minute."""

from __future__ import annotations

import logging
import math

from polyrec.server.clock import clock

EVERY_S = 60.0


class FailureLog:
    """Logs failures of one kind of work. message: what to log."""

    def __init__(self, log: logging.Logger, message: str) -> None:
        self._log, self._message = log, message
        self._logged_s = -math.inf

    def exception(self) -> None:
        """Logs the exception being handled, unless one was logged within EVERY_S."""
        if clock() - self._logged_s >= EVERY_S:
            self._logged_s = clock()
            self._log.exception(self._message)
