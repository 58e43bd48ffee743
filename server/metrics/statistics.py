"""Cumulative statistics of one model for the inference protocol's statistics extension.

Counts and nanoseconds since the server's start; clients compute differences. A request's compute_infer is the
time of its batch, as in Triton. Requests are buffered as in `server/metrics/counting.py`, which reports the
batches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FLUSH_SIZE = 32
"""Maximum number of buffered requests."""


@dataclass(slots=True)
class Duration:
    """Number of events and their total time."""

    count: int = 0
    ns: int = 0

    def add(self, *seconds: float) -> None:
        self.count += len(seconds)
        self.ns += int(sum(seconds) * 1e9)

    def document(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class Statistics:
    """Statistics of one model."""

    inferences: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=dict)
    _answered: list[tuple[int, float, float, float, float, float]] = field(default_factory=list)
    _last_s: float = 0.0

    def succeeded(
        self, rows: int, total_s: float, queue_s: float, parse_s: float, infer_s: float, serialize_s: float
    ) -> None:
        """Records an answered request: its rows, and the seconds in total and of each phase."""
        self._answered.append((rows, total_s, queue_s, parse_s, infer_s, serialize_s))
        self._last_s = time.time()
        if len(self._answered) >= FLUSH_SIZE:
            self._add_up()

    def failed(self, total_s: float) -> None:
        self.fail.add(total_s)

    def executed(self, rows: Sequence[int], infer_s: Sequence[float]) -> None:
        """Records batches; the number of different sizes is bounded by the plan's limits."""
        self.executions += len(rows)
        for size, seconds in zip(rows, infer_s, strict=True):
            duration = self.batches.get(size)
            if duration is None:
                duration = self.batches[size] = Duration()
            duration.add(seconds)

    def _add_up(self) -> None:
        if not self._answered:
            return
        rows, *seconds = zip(*self._answered, strict=True)
        self._answered.clear()
        self.inferences += sum(rows)
        phases = (self.success, self.queue, self.compute_input, self.compute_infer, self.compute_output)
        for duration, took_s in zip(phases, seconds, strict=True):
            duration.add(*took_s)

    def document(self, model: str, version: str) -> dict[str, Any]:
        """Returns one entry of `model_stats`."""
        self._add_up()
        nothing = Duration().document()
        return {
            "name": model,
            "version": version,
            "last_inference": int(self._last_s * 1e3),
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.document(),
                "fail": self.fail.document(),
                "queue": self.queue.document(),
                "compute_input": self.compute_input.document(),
                "compute_infer": self.compute_infer.document(),
                "compute_output": self.compute_output.document(),
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": nothing,
                    "compute_infer": duration.document(),
                    "compute_output": nothing,
                }
                for rows, duration in sorted(self.batches.items())
            ],
            "memory_usage": [],
        }
