"""Settings of the HTTP connections of `Client` and `AsyncClient`, and the failures that end them."""

from __future__ import annotations

from typing import Any

import httpx

from polyrec.client.errors import InvalidRequest

BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.DecodingError)
"""Failures after which no answer can come."""


def http_settings(url: str, token: str | None) -> dict[str, Any]:
    """Returns the settings of an HTTP client for a server. Raises InvalidRequest unless it is a URL."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"url is '{url}'; it begins with http:// or https://")
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    # calls limit their own time; allow as many connections as the caller has threads or tasks
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    settings = {"base_url": url, "headers": headers, "limits": limits}
    return settings | {"trust_env": False, "verify": verifies(url)}


def verifies(url: str) -> bool:
    """Returns httpx's `verify` for a server: true unless it is http://.

    A client that verifies reads the trusted certificates when it is made, which takes 50 ms or more.
    """
    return not url.startswith("http://")
