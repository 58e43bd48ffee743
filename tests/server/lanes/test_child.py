"""A worker process that cannot be started leaves nothing behind."""

from __future__ import annotations

import gc
import os
import resource

from polyrec.models.errors import RuntimeUnavailable
from polyrec.server.lanes.child import Child

NEEDED = 16
"""More descriptors than the parent needs to start a worker."""


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_without_descriptors_the_reason_is_said_and_none_stays_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    before = open_descriptors()
    most = max(map(int, before))
    reasons = []
    for free in range(NEEDED):
        # the limit is on the number of a descriptor, so lower free numbers are taken first
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(most + 1 - len(before))]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most + 2 + free, hard))
        try:
            Child("cpu0", "{}").end()
        except RuntimeUnavailable as e:
            reasons.append(str(e))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
        gc.collect()
        assert open_descriptors() == before
    assert 4 < len(reasons) < NEEDED
    assert all("lane 'cpu0': its process cannot be started: [Errno 24]" in reason for reason in reasons)
