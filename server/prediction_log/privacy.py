"""Omits features from the prediction log, or replaces their values by keyed hashes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from polyrec.models.errors import PolyrecError
from polyrec.models.files import create_whole
from polyrec.models.schema.schema import Categorical, Dense, Schema

KEY_FILE = "hash.key"
KEY_BYTES = 32
REMEMBERED = 1 << 16
"""Maximum number of cached hashes."""
REMEMBERED_LENGTH = 128
"""Maximum length in characters of an id whose hash is cached."""
Hide = Callable[[Any], Any]
"""Maps a feature's value, or list of values, to its replacement in the log."""


class PrivacyError(PolyrecError):
    """Raised if a feature is unknown or cannot be hashed, or the key cannot be read."""


def hide_functions(
    schema: Schema, left_out: Sequence[str], hashed: Sequence[str], key: bytes
) -> dict[str, Hide]:
    """Returns, by feature, the functions that replace values before they are written.

    A string is replaced by 16 hexadecimal digits, an integer by a 62-bit integer; equal values get equal
    replacements.
    Raises PrivacyError.
    """
    given: tuple[Dense | Categorical, ...] = (*schema.dense, *schema.categorical)
    features = {f.name: f for f in given}
    for name in (*left_out, *hashed):
        if name not in features:
            raise PrivacyError(f"the schema has no feature '{name}'; it has {', '.join(features)}")
    hide: dict[str, Hide] = {name: lambda _: None for name in left_out}
    for name in hashed:
        feature = features[name]
        if not isinstance(feature, Categorical) or feature.cardinality is not None:
            raise PrivacyError(f"feature '{name}' cannot be hashed: only ids with a vocabulary can")
        hide[name] = _hasher(key, feature.type == "string")
    return hide


def load_key(folder: Path) -> bytes:
    """Reads the key of a log's hashes; if there is none, creates one that only its owner can read."""
    file = folder / KEY_FILE
    try:
        if not file.exists():
            create_whole(file, secrets.token_bytes(KEY_BYTES))
        key = file.read_bytes()
    except OSError as e:
        raise PrivacyError(f"cannot read '{file}': {e.strerror}") from None
    if len(key) < KEY_BYTES:
        raise PrivacyError(f"'{file}' has less than {KEY_BYTES} bytes")
    return key


def _hasher(key: bytes, string: bool) -> Hide:
    def hashed(value: str | int) -> str | int:
        digest = blake2b(str(value).encode(), digest_size=8, key=key).digest()
        return digest.hex() if string else int.from_bytes(digest, "big") >> 2

    remembered = lru_cache(REMEMBERED)(hashed)

    def one(value: str | int) -> str | int:
        if isinstance(value, str) and len(value) > REMEMBERED_LENGTH:
            return hashed(value)
        return remembered(value)

    def hide(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [None if each is None else one(each) for each in value]
        return None if value is None else one(value)

    return hide
