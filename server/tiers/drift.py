"""Following drift: every so often, rows that have become hot move up a tier, and cold ones down.

A thread beside the requests builds each new order from a sample of what was looked up and installs it whole
(models/tiers/updates/drift.py). It is off unless a plan or the operator says how often: it helps where
popularity moves, costs some where it does not (docs/tiers.md), and copying large vocabularies takes the
interpreter lock for milliseconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from polyrec.models.tiers.updates.drift import Drift, Moves

log = logging.getLogger("polyrec.serving")

Told = Callable[[Moves], None]


class Following:
    """Follows the popularity of stacks, by the name of a path, every `every_s` seconds."""

    def __init__(self, drifts: Mapping[str, Drift], every_s: float, told: Told) -> None:
        self._drifts = drifts
        self._every_s = every_s
        self._told = told
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polyrec-drift", daemon=True)

    def begin(self) -> None:
        """From now on: once every runtime is open, since those are opened in the first order."""
        self._thread.start()

    def close(self) -> None:
        """Ends it, after the order that is being built."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            for path, drift in self._drifts.items():
                if self._closed.is_set():
                    return
                try:
                    moves = drift.follow()
                except OSError as e:
                    log.warning("the rows of %s keep their order for now: %s", path, e)
                except Exception:
                    log.exception("no new order of the rows of %s", path)
                else:
                    self._told(moves)
