"""Plans that put rows where they do not fit, for tests of the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import Plan

TOKEN = "a token of sixteen and more"
ALLOWED = {"authorization": f"Bearer {TOKEN}"}

Cut = Callable[[int], dict[str, int]]


def an_eighth(rows: int) -> dict[str, int]:
    """Puts an eighth of a table in memory, the rest on disk."""
    return {"host": rows // 8, "disk": rows - rows // 8}


def placed_plan(
    bundle: Bundle,
    directory: Path,
    cut: Cut = an_eighth,
    *,
    lane: str = "thread",
    lanes: int = 1,
    pages: int = 16,
    **more: Any,
) -> Plan:
    """One path on the CPU, its tables cut. pages: that host memory holds. more: of the placement."""
    tables = {t: cut(v.rows) for t, v in bundle.encoder.vocabularies.items()}
    # not measured: random ids, as a server would measure with, are nothing for so small a cache
    latency = {"rows": [1, 1024], "median_s": [1e-4, 2e-3], "tail_s": [2e-4, 4e-3]}
    planned = {"name": "table@cpu", "bundle": bundle.path, "runtime": "onnx", "latency": latency}
    one = {"path": "table@cpu", "tables": tables, "cache_bytes": pages * 4096}
    return Plan.model_validate(
        {
            "paths": [planned],
            "lanes": [{"name": f"cpu.{i}", "device": "cpu", "kind": lane} for i in range(lanes)],
            "placement": {"paths": [one], "directory": directory} | more,
            "default_budget_ms": 60_000,
        }
    )
