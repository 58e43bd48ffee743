"""Follows drift: periodically moves rows that became hot up a tier and cold rows down.

A background thread builds each new order from a sample of the lookups and installs it as a whole
(models/tiers/updates/drift.py). It runs only if a plan or the operator sets an interval, because it helps
only if popularity changes (docs/tiers.md), and copying large vocabularies holds the interpreter lock for
milliseconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from polyrec.models.tiers.updates.drift import Drift, DriftReport

log = logging.getLogger("polyrec.serving")

OnMoves = Callable[[DriftReport], None]
"""Callback of the thread after each attempt to reorder rows."""


class DriftFollower:
    """Reorders the rows of stacks every `every_s` seconds. drifts: by path name."""

    def __init__(self, drifts: Mapping[str, Drift], every_s: float, on_moves: OnMoves) -> None:
        self._drifts = drifts
        self._every_s = every_s
        self._on_moves = on_moves
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="polyrec-drift", daemon=True)

    def begin(self) -> None:
        """Starts the thread. All runtimes must be open already, as they are opened in the first order."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after it has finished the order that it is building."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            for path, drift in self._drifts.items():
                if self._closed.is_set():
                    return
                try:
                    moves = drift.reorder()
                except OSError as e:
                    log.warning("the rows of %s keep their order for now: %s", path, e)
                except Exception:
                    log.exception("no new order of the rows of %s", path)
                else:
                    self._on_moves(moves)
