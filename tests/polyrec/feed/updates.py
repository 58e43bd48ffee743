"""Updates of the item table of the small bundle, and what its server counts."""

from __future__ import annotations

import json
from typing import Any

import httpx

from polyrec.server.child import ServerProcess

WIDTH = 8


def document(value: str, number: float, **options: Any) -> bytes:
    return json.dumps(
        {"tables": {"item": {"values": [value], "rows": [[number] * WIDTH]}}, **options}
    ).encode()


def metrics(server: ServerProcess, name: str) -> dict[str, float]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)
    }
