"""Credentials and TLS of a remote store, and its URL without them.

A URL may carry user and password itself; a password from the settings, or from the plan's `password_file`,
goes before that. What is shown or logged is `place`, which has neither.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.files import read_regular
from polyrec.models.tiers.placement import RemoteStore

TLS_SCHEME = "rediss"
MOST_PASSWORD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Login:
    """username: None for the default user. tls: None for a plain connection."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @staticmethod
    def of_url(url: str) -> Login:
        """What a URL says itself, with the system's certificate authorities."""
        parts = urlsplit(url)
        return Login(
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
            ssl.create_default_context() if parts.scheme == TLS_SCHEME else None,
        )


def login_of(store: RemoteStore) -> Login:
    """How a plan's store is entered. Raises RuntimeUnavailable: a file of the password or of the authorities
    cannot be read."""
    said = Login.of_url(store.url)
    password, tls = said.password, said.tls
    try:
        if store.password is not None:
            password = store.password.get_secret_value()
        elif store.password_file is not None:
            password = _password(store.password_file)
    except (OSError, ValueError) as e:
        raise RuntimeUnavailable(f"placement: the store's password_file cannot be read: {_why(e)}") from None
    try:
        if store.ca_file is not None and tls is not None:
            tls = ssl.create_default_context(cafile=store.ca_file)
    except OSError as e:
        raise RuntimeUnavailable(f"placement: the store's ca_file cannot be read: {_why(e)}") from None
    return Login(said.username, password, tls)


def bare(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def place(url: str) -> str:
    """Where a store is, for people: neither secrets nor folders."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{where or Path(parts.path).name}{parts.path if where else ''}"


def _password(file: Path) -> str:
    password = read_regular(file, MOST_PASSWORD_BYTES).decode().strip("\r\n")
    if not password:
        raise ValueError("it is empty")
    return password


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
