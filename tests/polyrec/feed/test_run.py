"""Tests how a signal ends `polyrec feed`."""

import subprocess
import sys

SIGNAL_IN_WAIT = """
import signal, threading
from polyrec.feed.run import end_at_signal

ending = threading.Event()
signal.signal(signal.SIGTERM, end_at_signal(ending))
with ending._cond:  # as `ending.wait` holds it for a moment
    signal.raise_signal(signal.SIGTERM)
assert ending.wait(10)
"""


def test_a_signal_that_interrupts_the_wait_for_more_entries_ends_the_feed() -> None:
    # in a process, which a deadlock of its main thread would block for good
    subprocess.run([sys.executable, "-c", SIGNAL_IN_WAIT], check=True, timeout=60)
