"""Runs commands in namespaces of their own, where a cluster has all ports to itself and leaves nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

ENTER = (
    *("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'ip link set lo up && exec "$@"', "sh"),
)
"""Begins a command that runs in new namespaces."""


def available() -> bool:
    """Whether this process may make namespaces, which takes root, `unshare` and `ip`."""
    return os.geteuid() == 0 and subprocess.run([*ENTER, "true"], capture_output=True).returncode == 0


def environment(folder: str) -> Mapping[str, str]:
    """Returns the variables for a cluster whose files are in a folder, of a short path, as it has sockets."""
    return {**os.environ, "RAY_TMPDIR": folder, "TMPDIR": folder}
