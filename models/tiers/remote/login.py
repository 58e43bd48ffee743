"""Separates the credentials of a remote store from its URL.

A URL may contain user and password. A password from the settings or from the plan's `password_file` takes
precedence. `place` returns the URL without secrets, for logs and pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.files import read_regular
from polyrec.models.tiers.tier_settings import RemoteStore

MAX_PASSWORD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials of a connection to a store.

    username: None for the default user. ca_file: certificate authorities in addition to the system's, for
    TLS.
    """

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None

    @staticmethod
    def from_url(url: str) -> Login:
        """Parses the credentials in a URL."""
        parts = urlsplit(url)
        return Login(unquote(parts.username or "") or None, unquote(parts.password or "") or None)


def login_of(store: RemoteStore) -> Login:
    """Returns the credentials of a plan's store.

    Raises RuntimeUnavailable if the file with the password or the authorities cannot be read.
    """
    in_url = Login.from_url(store.url)
    password, file = in_url.password, "password_file"
    try:
        if store.password is not None:
            password = store.password.get_secret_value()
        elif store.password_file is not None:
            password = _password(store.password_file)
        if store.ca_file is not None:
            file = "ca_file"
            store.ca_file.open().close()
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise RuntimeUnavailable(f"placement: the store's {file} cannot be read: {why}") from None
    return Login(in_url.username, password, store.ca_file)


def without_login(url: str) -> str:
    """Returns the URL without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def place(url: str) -> str:
    """Returns the store's URL for display, without secrets or folders."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{where or Path(parts.path).name}{parts.path if where else ''}"


def _password(file: Path) -> str:
    password = read_regular(file, MAX_PASSWORD_BYTES).decode().strip("\r\n")
    if not password:
        raise ValueError("it is empty")
    return password
