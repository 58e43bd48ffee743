"""Names and versions of a served model as clients see them.

The name comes from the bundle or from `--model-name`. Clients of the Open Inference Protocol parse versions
as numbers, so each bundle version (a hash) also has a number, which is the same on every server.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from polyrec.server.errors import NotFound, shortened

ALIAS = "dlrm"
"""A name that every model also answers to, for clients older than model names."""
RESERVED = "stats"
"""Cannot be a model's name, since /v2/models/stats is an endpoint."""
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_HEX = re.compile(r"[0-9a-f]{1,15}")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Name and version of the served model.

    name: valid in a URL.
    version: the bundle's version.
    number: the version in the Open Inference Protocol.
    """

    name: str
    version: str
    number: str

    def check(self, name: str, version: str | None = None) -> None:
        """Raises NotFound if a request names another model or version.

        version: the bundle's version or its number; None if the request names none.
        """
        if name not in (self.name, ALIAS):
            raise NotFound(f"unknown model '{shortened(name)}'; this server has '{self.name}'")
        if version not in (None, self.number, self.version):
            raise NotFound(
                f"model '{self.name}' has no version '{shortened(version or '')}'; it serves '{self.number}'"
            )


def served_model(bundle_name: str, version: str, name: str | None) -> ServedModel:
    """Returns a bundle's served model. name: the operator's; None for the bundle's, made valid in a URL."""
    fit = name or _UNFIT.sub("-", bundle_name).strip("-.")
    return ServedModel(ALIAS if fit in ("", RESERVED) else fit, version, version_number(version))


def version_number(version: str) -> str:
    """Converts a bundle's version to a number: hexadecimal digits by value, anything else to a 48-bit hash.

    The number has at most 60 bits, as clients parse it as a signed 64-bit integer.
    """
    if _HEX.fullmatch(version):
        return str(int(version, 16))
    return str(int.from_bytes(hashlib.sha256(version.encode("utf-8", "replace")).digest()[:6], "big"))
