"""The judge's process, started only by server/live_quality/live.py.

With the argument `idle` it runs in the kernel's idle class (sched(7), SCHED_IDLE) from its first import on,
so that it gets only spare CPU time.
"""

from __future__ import annotations

import sys

from polyrec.server.app.signals import ignore_signals_of_service
from polyrec.server.priority import take_spare_time


def main() -> None:
    ignore_signals_of_service()
    if sys.argv[1:] == ["idle"]:
        take_spare_time()
    # slow imports, after the priority is lowered
    import torch

    from polyrec.server.app.logs import log_to_stderr
    from polyrec.server.live_quality.rounds import run

    log_to_stderr("warning")
    torch.set_num_threads(1)
    run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
