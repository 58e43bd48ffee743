"""Reads the tokens file, which lists clients with their tokens, rights and request rates.

    {"clients": [{"name": "shop", "sha256": "9f86d08...", "requests_per_second": 500},
                 {"name": "ranking", "token": "...", "rights": ["priority", "quality"]},
                 {"name": "on-call", "sha256": "...", "rights": ["admin"]}],
     "anonymous": {"requests_per_second": 10}}

A client sends its token as `Authorization: Bearer TOKEN`. The file contains either the token or its SHA-256
(`printf %s TOKEN | sha256sum`), from which a random token (`openssl rand -hex 32`) cannot be recovered.
Without `anonymous`, predictions require a token. server/access/access.py enforces the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from polyrec.models.errors import PolyrecError
from polyrec.models.files import MAX_SERVED_BYTES, Strict, read_json, validate_as

Right = Literal["priority", "quality", "feedback", "admin"]
OpenRight = Literal["priority", "quality"]
"""A right that may be granted to all clients."""
ANONYMOUS = "anonymous"
ADMIN_VARIABLE = "POLYREC_ADMIN_TOKEN"
"""The environment variable of the admin token; also the name of the client that sends it."""
MIN_TOKEN_LENGTH = 16


class TokensError(PolyrecError):
    """The tokens file is missing, malformed or inconsistent."""


@dataclass(frozen=True, slots=True)
class Client:
    """The authenticated sender of a request and its rights. name: appears in logs."""

    name: str
    rights: frozenset[Right]


class Allowance(Strict):
    """Rights and rate.

    requests_per_second: average, with bursts up to one second's worth; None for no limit.
    """

    rights: tuple[Right, ...] = ()
    requests_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = None


class Anonymous(Allowance):
    """Rights of clients without a token, and the rate they all share."""

    rights: tuple[OpenRight, ...] = ()


class TokenEntry(Allowance):
    """One client, with either its token or the token's SHA-256 in hexadecimal."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]+$", max_length=64)]
    token: SecretStr | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None

    @model_validator(mode="after")
    def _one_secret(self) -> TokenEntry:
        if (self.token is None) == (self.sha256 is None):
            raise ValueError(f"client '{self.name}' needs either 'token' or 'sha256'")
        if self.token is not None and len(self.token.get_secret_value()) < MIN_TOKEN_LENGTH:
            raise ValueError(f"the token of client '{self.name}' has less than {MIN_TOKEN_LENGTH} characters")
        if self.name in (ANONYMOUS, ADMIN_VARIABLE):
            raise ValueError(f"the name '{self.name}' is taken")
        return self

    @property
    def digest(self) -> bytes:
        """The token's SHA-256, 32 bytes."""
        if self.token is not None:
            return digest_of(self.token.get_secret_value().encode())
        assert self.sha256 is not None
        return bytes.fromhex(self.sha256)


class Tokens(Strict):
    """The whole file. anonymous: rights of requests without a token; None rejects such requests."""

    clients: Annotated[tuple[TokenEntry, ...], Field(max_length=1000)]
    anonymous: Anonymous | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Tokens:
        names: set[str] = set()
        owners: dict[bytes, str] = {}
        for entry in self.clients:
            if entry.name in names:
                raise ValueError(f"client '{entry.name}' is listed twice")
            names.add(entry.name)
            other = owners.setdefault(entry.digest, entry.name)
            if other != entry.name:
                raise ValueError(f"clients '{other}' and '{entry.name}' have the same token")
        return self


def digest_of(token: bytes) -> bytes:
    """Returns a token's SHA-256, 32 bytes."""
    return sha256(token).digest()


def load_tokens(file: Path) -> Tokens:
    """Reads a tokens file. Raises TokensError with one line that names the key but no secret."""
    what = f"tokens file '{file.name}'"
    try:
        raw = read_json(file, what, TokensError, MAX_SERVED_BYTES)
    except FileNotFoundError:
        raise TokensError(f"there is no {what}") from None
    _check_keys(raw, what)
    return validate_as(Tokens, raw, what, TokensError, secret=True)


def _check_keys(value: object, what: str) -> None:
    """Raises TokensError for an unknown key as long as a token, which an error must not show."""
    if isinstance(value, list):
        for part in value:
            _check_keys(part, what)
    elif isinstance(value, dict):
        for key, part in value.items():
            if len(key) >= MIN_TOKEN_LENGTH and key not in Allowance.model_fields:
                raise TokensError(f"{what}: an unknown key of {len(key)} characters, perhaps a token")
            _check_keys(part, what)
