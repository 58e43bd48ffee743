"""Starts a worker process, sends it commands, and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from polyrec.models.errors import PolyrecError
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.planner.plan import PlannedPath

ROOT = Path(__file__).parents[3]


class MeasureError(PolyrecError):
    """Raised for a path that cannot be measured."""


class Worker:
    """A worker process with one open path, which ends with the `with` block."""

    def __init__(self, path: PlannedPath) -> None:
        self._path = path
        environ = dict(os.environ)
        # one thread per lane like the server, and the import path of this process
        environ |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "polyrec.measure.profile.worker"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # in a terminal, Ctrl-C must reach only this process, which ends its workers
        )

    def open(self, largest: int, seed: int, tiers: TierSettings | None = None) -> dict[str, Any]:
        """Opens the path. tiers: settings for its rows; None: all are in memory.

        Raises MeasureError if it cannot be opened on this machine.
        """
        path = self._path
        return self._send(
            do="open",
            bundle=str(path.bundle),
            runtime=path.runtime,
            device=path.device,
            precision=path.precision,
            width=path.width,
            largest=largest,
            seed=seed,
            tiers=None if tiers is None else tiers.model_dump(mode="json"),
        )

    def measure(self, rows: int, batches: int, seconds: float, evict: int = 0) -> dict[str, Any]:
        """Measures batches, see PathUnderTest.measure. Raises MeasureError."""
        return self._send(do="measure", rows=rows, batches=batches, seconds=seconds, evict=evict)

    def measure_tiers(self, rows: int, batches: int, seconds: float, ahead: bool) -> dict[str, Any]:
        """Measures batches over tiers, see PathUnderTest.measure_tiers. Raises MeasureError."""
        return self._send(do="measure_tiers", rows=rows, batches=batches, seconds=seconds, ahead=ahead)

    def _send(self, **command: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            raise MeasureError(f"path '{self._path.name}': its process ended with status {status}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MeasureError(f"path '{self._path.name}': {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process, by force if it takes more than 10 s."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()  # it may be in the middle of a measurement that nobody reads
        self.close()
