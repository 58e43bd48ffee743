"""The server's clock, monotonic seconds and the same in all processes of a machine, and its timers."""

from __future__ import annotations

import time

clock = time.perf_counter

TIMER_S = 1e-3
"""Resolution of uvloop's timers, which may fire so much too early. A shorter one would fire at once, again
and again until the time has come."""
