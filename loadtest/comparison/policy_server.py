"""Runs a live server of one plan, whose routing policy can be switched while it runs.

Switching, as an operator would do it, gives all policies the same process, memory and warm caches.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from types import TracebackType

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.child import ServerProcess, exit_description, start

EXIT_S = 1.0
"""Longest time from the end of a dead server's connections to that of its process."""
DYNAMIC = ("mprec", "deeprecsys", "priced")


def policies_of(plan: Plan, names: str) -> tuple[str, ...]:
    """Parses `all`, `static`, `dynamic`, or policies separated by commas. Raises LoadError."""
    static = tuple(f"static:{path.name}" for path in plan.paths)
    groups = {"all": static + DYNAMIC, "static": static, "dynamic": DYNAMIC}
    chosen: dict[str, None] = {}
    for name in names.split(","):
        name = name.strip()
        if name not in groups and name not in groups["all"]:
            known = ", ".join((*groups, *groups["all"]))
            raise LoadError(f"--policies: '{name}' is unknown; known: {known}")
        chosen |= dict.fromkeys(groups.get(name, (name,)))
    return tuple(chosen)


class PolicyServer:
    """A server process on `cores`, started and stopped as a context manager."""

    def __init__(
        self, plan: Plan, policies: Sequence[str], cores: Set[int], settings: Mapping[str, object]
    ) -> None:
        """Takes a plan whose bundles are paths relative to the working directory, or absolute."""
        self.policies = tuple(policies)
        self._plan = plan
        self._cores = cores
        self._settings = dict(settings)
        self._token = token_urlsafe(24)
        self._policy: str | None = None
        self._child: ServerProcess | None = None

    def __enter__(self) -> PolicyServer:
        """Starts the server. Raises StartFailed."""
        paths = tuple(p.model_copy(update={"bundle": p.bundle.resolve()}) for p in self._plan.paths)
        with tempfile.TemporaryDirectory(prefix="polyrec-bench-") as folder:
            file = Path(folder) / "plan.json"
            save_plan(self._plan.model_copy(update={"paths": paths}), file)
            # error level only, because each change of policy would be logged
            options = {"drain_grace_s": 0, "plan": file, "admin_token": self._token, "log_level": "error"}
            affinity = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self._cores)  # inherited by the child
            try:
                self._child = start(self._settings | options)
            finally:
                os.sched_setaffinity(0, affinity)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the server. Raises LoadError if it had died or does not answer, and the block failed so."""
        if self._child is None:
            return
        status = None
        if isinstance(error, OSError | LoadError):
            with suppress(subprocess.TimeoutExpired):
                status = self._child.process.wait(EXIT_S)
        self._child.stop()
        self._child = None
        if status is not None:
            raise LoadError(f"the server that was compared {exit_description(status)}") from None
        if isinstance(error, TimeoutError | urllib.error.URLError):
            raise LoadError(f"the server that was compared does not answer: {error}") from None

    @property
    def url(self) -> str:
        assert self._child is not None, "use PolicyServer as a context manager"
        return self._child.url

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._child is not None, "use PolicyServer as a context manager"
        return self._child.process.pid

    def set_policy(self, policy: str) -> None:
        """Switches the server to a policy. Raises LoadError."""
        if policy == self._policy:
            return
        request = urllib.request.Request(
            f"{self.url}/v1/admin/routing",
            json.dumps({"policy": policy}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as e:
            raise LoadError(f"the server rejected policy '{policy}': {e.read().decode()[:200]}") from None
        self._policy = policy
