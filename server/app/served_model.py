"""The name and version under which a generation is served.

Clients of the inference protocol parse a version as a number, so a bundle's version also has a number, the
same on every server. The name is the bundle's, or the operator's (`--model-name`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from polyrec.server.errors import NotFound, shortened

ALIAS = "dlrm"
"""Another name of every model, for clients that were written before models had their own."""
RESERVED = "stats"
"""No model's name: /v2/models/stats is a page."""
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_HEX = re.compile(r"[0-9a-f]{1,15}")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Names and versions of the model that is served.

    name: valid in a URL. version: the bundle's. number: the version in the inference protocol.
    """

    name: str
    version: str
    number: str

    def check(self, name: str, version: str | None = None) -> None:
        """Raises NotFound unless a request's model and version, if any, are the ones that are served.

        version: the bundle's or its number.
        """
        if name not in (self.name, ALIAS):
            raise NotFound(f"unknown model '{shortened(name)}'; this server has '{self.name}'")
        if version not in (None, self.number, self.version):
            raise NotFound(
                f"model '{self.name}' has no version '{shortened(version or '')}'; it serves '{self.number}'"
            )


def served_model(bundle_name: str, version: str, name: str | None) -> ServedModel:
    """The served model of a bundle. name: the operator's; None: the bundle's, unfit characters replaced."""
    fit = name or _UNFIT.sub("-", bundle_name).strip("-.")
    return ServedModel(ALIAS if fit in ("", RESERVED) else fit, version, version_number(version))


def version_number(version: str) -> str:
    """The number of a bundle's version: its value as hexadecimal digits, or 48 bits of its hash.

    At most 60 bits, as clients read 64 with a sign.
    """
    if _HEX.fullmatch(version):
        return str(int(version, 16))
    return str(int.from_bytes(hashlib.sha256(version.encode("utf-8", "replace")).digest()[:6], "big"))
