"""A worker process that cannot be started leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

from polyrec.server.lanes.child import ROOT

NEEDED = 16
"""More descriptors than the parent needs to start a worker."""
# in a process of its own, where nothing else opens descriptors
SCRIPT = f"""
import os, resource
from polyrec.models.errors import RuntimeUnavailable
from polyrec.server.lanes.child import Child

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before = set(os.listdir("/proc/self/fd"))
for free in range({NEEDED}):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 + free, hard))
    try:
        Child("cpu0", "{{}}").end()
    except RuntimeUnavailable as e:
        print(e)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert set(os.listdir("/proc/self/fd")) == before, free
"""


def test_without_descriptors_the_reason_is_said_and_none_stays_open() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reasons = done.stdout.splitlines()
    assert 4 < len(reasons) < NEEDED
    assert all("lane 'cpu0': its process cannot be started: [Errno 24]" in reason for reason in reasons)
