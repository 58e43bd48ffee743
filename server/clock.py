"""The server's clock: monotonic seconds, the same in all processes of a machine."""

from __future__ import annotations

import time

clock = time.perf_counter
