"""Rules for request targets that all kinds of ingress share: which to reject, and how to forward the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

REFUSAL = "administration is refused here; ask a replica"
ADMINISTRATION = "^/v1/(models/[^/]+/)?admin(/|$) ^/v2/repository/models/"
"""Regular expressions of decoded admin paths, which must not reach an arbitrary replica (HAProxy syntax)."""


def is_administration(path: str) -> bool:
    """Whether a decoded path is an admin path."""
    return any(re.search(expression, path) for expression in ADMINISTRATION.split())


def target_of(scope: Mapping[str, Any]) -> str:
    """Returns the target of an ASGI request as the client sent it; the server decodes it."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")
