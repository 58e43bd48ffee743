"""What a bench compares: one plan under several routing policies, on a live server with a core of its own.

A plan goes in, a URL comes out. Policies are switched while the server runs, as an operator would do it, so
that all of them have the same process, memory and warm caches.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from secrets import token_urlsafe
from types import TracebackType

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.app.run import ServerProcess, start

DYNAMIC = ("mprec", "deeprecsys", "priced")


def policies_of(plan: Plan, asked: str) -> tuple[str, ...]:
    """`all`, `static`, `dynamic`, or policies separated by commas. Raises LoadError naming the first that is
    none.
    """
    static = tuple(f"static:{path.name}" for path in plan.paths)
    groups = {"all": static + DYNAMIC, "static": static, "dynamic": DYNAMIC}
    chosen: dict[str, None] = {}
    for name in asked.split(","):
        name = name.strip()
        if name not in groups and name not in groups["all"]:
            known = ", ".join((*groups, *groups["all"]))
            raise LoadError(f"--policies: '{name}' is none; there are {known}")
        chosen |= dict.fromkeys(groups.get(name, (name,)))
    return tuple(chosen)


class Subjects:
    """A live server that follows one policy after another. cores: those it may use. Use as a context."""

    def __init__(
        self, plan: Plan, policies: Sequence[str], cores: Set[int], settings: Mapping[str, object]
    ) -> None:
        """plan: its bundles as paths that are right from here."""
        self.policies = tuple(policies)
        self._plan = plan
        self._cores = cores
        self._settings = dict(settings)
        self._token = token_urlsafe(24)
        self._followed: str | None = None
        self._child: ServerProcess | None = None

    def __enter__(self) -> Subjects:
        """Raises StartFailed."""
        paths = tuple(p.model_copy(update={"bundle": p.bundle.resolve()}) for p in self._plan.paths)
        with tempfile.TemporaryDirectory(prefix="polyrec-bench-") as folder:
            file = Path(folder) / "plan.json"
            save_plan(self._plan.model_copy(update={"paths": paths}), file)
            # policies change all the time here: of no use in a log
            own = {"drain_grace_s": 0, "plan": file, "admin_token": self._token, "log_level": "error"}
            mine = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self._cores)  # which a child inherits
            try:
                self._child = start(self._settings | own)
            finally:
                os.sched_setaffinity(0, mine)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    @property
    def url(self) -> str:
        assert self._child is not None, "use Subjects as a context"
        return self._child.url

    @property
    def pid(self) -> int:
        """Of the server's process."""
        assert self._child is not None, "use Subjects as a context"
        return self._child.process.pid

    def follow(self, policy: str) -> None:
        """From here on the server routes by that policy. Raises LoadError."""
        if policy == self._followed:
            return
        request = urllib.request.Request(
            f"{self.url}/v1/admin/routing",
            json.dumps({"policy": policy}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as e:
            raise LoadError(f"the server refused policy '{policy}': {e.read().decode()[:200]}") from None
        self._followed = policy
