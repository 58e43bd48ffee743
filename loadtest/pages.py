"""Pages of a live server that a load test reads: what is open, how good it is, what was counted."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

TIMEOUT_S = 10.0


def ask(url: str, page: str) -> Any:
    """A page of a server, JSON."""
    with urllib.request.urlopen(url + page, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def accuracies(url: str) -> dict[str, float]:
    """Path -> share of rows predicted right, as the server itself has it; paths without a figure are left
    out.
    """
    found: dict[str, float] = {}
    for path in ask(url, "/v1/paths")["paths"]:
        accuracy = path.get("accuracy")
        if accuracy is None:
            accuracy = (path.get("quality") or {}).get("test", {}).get("accuracy")
        if accuracy is not None:
            found[path["name"]] = float(accuracy)
    return found
