"""Cumulative statistics of one model, as the inference protocol's statistics extension wants them.

Counts and nanoseconds since the server started; a client takes differences. compute_infer of a
request is the time of the batch that it was executed in, as in Triton.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Duration:
    """How often something took place, and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += int(seconds * 1e9)

    def document(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class Statistics:
    """What one model has done."""

    inferences: int = 0
    executions: int = 0
    last_ms: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, Duration] = field(default_factory=dict)

    def succeeded(
        self, rows: int, total_s: float, queue_s: float, parse_s: float, infer_s: float, serialise_s: float
    ) -> None:
        self.inferences += rows
        self.last_ms = int(time.time() * 1e3)
        self.success.add(total_s)
        self.queue.add(queue_s)
        self.compute_input.add(parse_s)
        self.compute_infer.add(infer_s)
        self.compute_output.add(serialise_s)

    def failed(self, total_s: float) -> None:
        self.fail.add(total_s)

    def executed(self, rows: int, infer_s: float) -> None:
        """One batch; the number of different sizes is bounded by the plan's limits."""
        self.executions += 1
        duration = self.batches.get(rows)
        if duration is None:
            duration = self.batches[rows] = Duration()
        duration.add(infer_s)

    def document(self, model: str, version: str) -> dict[str, Any]:
        """One entry of `model_stats`."""
        nothing = Duration().document()
        return {
            "name": model,
            "version": version,
            "last_inference": self.last_ms,
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
