"""Calls a server's admin API: JSON in, a JSON object out, every failure a one-line message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx

from polyrec.client.connection import verifies
from polyrec.models.errors import PolyrecError
from polyrec.models.text import printable

TOKEN = "POLYREC_ADMIN_TOKEN"
TIMEOUT_S = 600.0
"""A rollout's start answers once the version is open, which takes minutes for a large one."""


class AdminFailed(PolyrecError):
    """Raised when an admin call failed."""


class NoAnswer(AdminFailed):
    """Raised when the server cannot be reached or cannot answer now: it is loading, stopping or
    overloaded.
    """


class AdminCalls:
    """A connection for admin calls. Use it in a `with` block.

    url: address of the server. model: name of one of several models; None: the only one, or the first.
    token: None: from the environment. Raises AdminFailed if there is none.
    """

    def __init__(self, url: str, model: str | None = None, token: str | None = None) -> None:
        token = token or os.environ.get(TOKEN)
        if not token:
            raise AdminFailed(f"the variable {TOKEN} is not set; set it to the server's admin token")
        self._is_named = model is not None
        self._v1 = f"{url.rstrip('/')}/v1/"
        self._root = self._v1 + (f"models/{model}/" if model else "") + "admin/"
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(headers=headers, trust_env=False, verify=verifies(url))

    def __enter__(self) -> AdminCalls:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def models(self) -> list[str]:
        """Returns the names of the served models, the default first. Raises AdminFailed."""
        return [model["name"] for model in self._call("GET", self._v1 + "models", None)["models"]]

    def require_one_model(self) -> None:
        """Raises AdminFailed if the server has several models and none was named."""
        if not self._is_named and len(models := self.models()) > 1:
            raise AdminFailed(f"the server has several models; name one: --model {', --model '.join(models)}")

    def get(self, page: str) -> dict[str, Any]:
        """Fetches a page below /v1/admin/. Raises AdminFailed."""
        return self._call("GET", self._root + page, None)

    def post(self, page: str, body: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Posts to a page below /v1/admin/ and returns the answer. Raises AdminFailed."""
        return self._call("POST", self._root + page, body, timeout_s)

    def _call(
        self, method: str, url: str, body: Mapping[str, Any] | None, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        try:
            answer = self._client.request(method, url, json=body, timeout=timeout_s)
            found = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:
            raise NoAnswer(f"no answer from '{printable(url)}': {printable(str(e))}") from None
        if not isinstance(found, dict):
            raise AdminFailed(f"'{printable(url)}' is no Polyrec server")
        status = answer.status_code
        if status != 200:
            failed = NoAnswer if status == 429 or status >= 500 else AdminFailed
            raise failed(f"{status}: {printable(str(found.get('error', found)))}")
        return found
