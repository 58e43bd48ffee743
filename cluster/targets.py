"""Targets of requests at every ingress: which are refused, and how one is handed on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

ADMINISTRATION = "^/v1/(models/[^/]+/)?admin(/|$) ^/v2/repository/models/"
"""Expressions of the paths, decoded as the server decodes them, that are not for a replica by chance:
a string, as HAProxy takes them."""


def is_administration(path: str) -> bool:
    """Whether a decoded path is one of administration."""
    return any(re.search(expression, path) for expression in ADMINISTRATION.split())


def target_of(scope: Mapping[str, Any]) -> str:
    """Returns the target of an ASGI request as the client wrote it; the server decodes it."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")
