"""Tokens of four clients and an administrator, and requests that bring them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

SHOP, RANKING, ONCALL = "shop-token-0123456789", "ranking-token-0123456789", "on-call-token-0123456789"
HOURLY = "hourly-token-0123456789"
ADMIN_TOKEN = "the admin token of POLYREC_ADMIN_TOKEN"
CLIENTS = [
    {"name": "shop", "sha256": sha256(SHOP.encode()).hexdigest(), "requests_per_second": 5},
    {"name": "ranking", "token": RANKING, "rights": ["priority", "quality"]},
    {"name": "on-call", "token": ONCALL, "rights": ["admin"]},
    {"name": "hourly", "token": HOURLY, "requests_per_second": 1 / 3600},
]


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", b"Bearer " + token.encode())]


def write(file: Path, content: Any) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return file


def sent(token: str | None, **headers: str) -> dict[str, str]:
    own = {} if token is None else {"authorization": f"Bearer {token}"}
    return own | {name.replace("_", "-"): value for name, value in headers.items()}
